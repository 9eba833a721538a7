"""The options that say which racks and pods a lab has, for all commands that make one. Knows no lab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RACKS_WANTED = "say --racks 4,4"
PODS_WANTED = "say --racks 2,2,2,2 --pods 2,2"


def read_racks(_context: click.Context, option: click.Parameter, value: str | None) -> list[int] | None:
    """Reads numbers with commas between them: of the hosts in each rack, or of the racks in each pod."""
    try:
        return None if value is None else [int(part) for part in value.split(",")]
    except ValueError:
        what = "racks, such as 2,2" if option.name == "pods" else "hosts, such as 4,4"
        raise click.BadParameter(f"{value!r} is not a list of numbers of {what}") from None


def racks_and_pods(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which racks and pods a lab is to have; see `check_racks_and_pods`."""
    for option in (
        click.option(
            "--pod-uplink", metavar="RATE", help="Of each pod to the core; by default all its racks' uplinks."
        ),
        click.option(
            "--pods", callback=read_racks, metavar="N,N", help="How many of the racks in each pod, such as 2,2."
        ),
        click.option("--uplink", metavar="RATE", help="Of each rack to the core; by default all that its hosts send."),
        click.option("--racks", callback=read_racks, metavar="N,N", help="Or lab hosts by rack, such as 4,4."),
    ):
        command = option(command)
    return command


def check_racks_and_pods(options: Mapping[str, Any]) -> None:
    """Refuses what is said of links that a lab of these options does not have."""
    if options["uplink"] and not options["racks"]:
        raise click.UsageError(f"--uplink is of a rack's link to the others: {RACKS_WANTED}")
    if options["pods"] and not options["racks"]:
        raise click.UsageError(f"--pods says how many racks are in each pod: {PODS_WANTED}")
    if options["pod_uplink"] and not options["pods"]:
        raise click.UsageError(f"--pod-uplink is of a pod's link to the others: {PODS_WANTED}")


def size_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """What a `Lab` is told of its racks and pods."""
    return {name: options[name] for name in ("racks", "uplink", "pods", "pod_uplink")}
