"""The options for racks and pods of a lab, for all commands that create one. Knows no lab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RACKS_WANTED = "add --racks 4,4"
PODS_WANTED = "add --racks 2,2,2,2 --pods 2,2"


def read_racks(_context: click.Context, option: click.Parameter, value: str | None) -> list[int] | None:
    """Parses comma-separated numbers: hosts per rack, or racks per pod."""
    try:
        return None if value is None else [int(part) for part in value.split(",")]
    except ValueError:
        what = "racks per pod, such as 2,2" if option.name == "pods" else "hosts per rack, such as 4,4"
        raise click.BadParameter(f"{value!r} is not valid: write the numbers of {what}") from None


def racks_and_pods(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options for racks and pods to a command; see `check_racks_and_pods`."""
    for option in (
        click.option(
            "--pod-uplink", metavar="RATE", help="Rate from each pod to the core.  [default: sum of its uplinks]"
        ),
        click.option("--pods", callback=read_racks, metavar="N,N", help="Racks per pod, such as 2,2."),
        click.option("--uplink", metavar="RATE", help="Rate from each rack to the core.  [default: sum of its hosts]"),
        click.option(
            "--racks",
            callback=read_racks,
            metavar="N,N",
            help="Hosts per rack, such as 4,4; replaces the number of hosts.",
        ),
    ):
        command = option(command)
    return command


def check_racks_and_pods(options: Mapping[str, Any]) -> None:
    """Rejects options for links that the lab does not have."""
    if options["uplink"] and not options["racks"]:
        raise click.UsageError(f"--uplink needs racks: {RACKS_WANTED}")
    if options["pods"] and not options["racks"]:
        raise click.UsageError(f"--pods needs racks: {PODS_WANTED}")
    if options["pod_uplink"] and not options["pods"]:
        raise click.UsageError(f"--pod-uplink needs pods: {PODS_WANTED}")


def size_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Lab` for its racks and pods."""
    return {name: options[name] for name in ("racks", "uplink", "pods", "pod_uplink")}
