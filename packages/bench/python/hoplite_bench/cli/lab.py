"""`hoplite lab`: emulates hosts on this machine, with network namespaces."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from hoplite.tools.cli.options import json_option
from hoplite.tools.cli.output import fail_with, print_json, print_table, stepping
from hoplite.tools.cli.racks import check_racks_and_pods, racks_and_pods
from hoplite.tools.progress import Progress
from hoplite_bench.cli import bench_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite_bench.lab import Host, Lab, Pod, Rack

NAME = "lab"

NAME_OPTION = click.option("--name", metavar="NAME", help="Name of the lab; required if several are up.")
DIRECTION_OPTION = click.option(
    "--direction",
    type=click.Choice(["both", "in", "out"]),
    default="both",
    show_default=True,
    help="Direction of the traffic, as seen from the target: out is sent by it, in is sent to it.",
)

OTHER_OPTION = click.option("--other", metavar="HOST", help="Affect only the traffic between HOST and this other host.")


def links(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options for hosts and links of a lab."""
    for option in (
        click.option("--latency", metavar="TIME", help="Additional one-way delay between two hosts, such as 50us."),
        racks_and_pods,
        bench_options.flow_cap,
        click.option("--rate", default="1gbit", show_default=True, help="Rate of each host's link, per direction."),
        click.option("--hosts", type=int, metavar="N", help="Number of hosts, in one rack.  [default: 4]"),
    ):
        command = option(command)
    return command


class Labs(click.Group):
    """The lab commands, with a next step for every `LabError`."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - any type that a command returns
        """Runs a command."""
        from hoplite_bench.lab import LabError

        with stepping({LabError: "hoplite lab --help"}):
            return super().invoke(ctx)


@click.group(cls=Labs)
def lab() -> None:
    """Emulate hosts and links of a given rate in network namespaces.

    Requires root.

    \b
    Example:
      hoplite lab up --hosts 4 --rate 1gbit
      hoplite lab run node1 -- hostname
      hoplite lab cut node1 --direction in
      hoplite lab down
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines


@lab.command()
@links
@click.option("--name", default=NAME, show_default=True, help="Name of the lab.")
def up(hosts: int | None, name: str, **links: Any) -> None:  # noqa: ANN401 - the type that click passes
    """Create hosts that exist until `hoplite lab down`.

    \b
    Examples:
      hoplite lab up --racks 4,4 --rate 1gbit --uplink 2gbit
      hoplite lab up --rate 5gbit --flow-cap 1gbit
      hoplite lab up --racks 2,2,2,2 --pods 2,2 --uplink 1gbit --pod-uplink 1gbit
    """  # noqa: D301 - as above
    with Progress("creating the hosts"):
        made = _made(hosts, links, name=name, keep=True)
    for host in made.hosts:
        click.echo(f"{host.name} {host.address}")
    option = "" if name == NAME else f"--name {shlex.quote(name)} "
    click.echo(f"run a command on a host: hoplite lab run {option}{made.hosts[0].name} -- hostname", err=True)


@lab.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@NAME_OPTION
@click.argument("host")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(name: str | None, host: str, command: tuple[str, ...]) -> None:
    """Run COMMAND on HOST and exit with its status.

    \b
    Example:
      hoplite lab run node1 -- ip address
    """  # noqa: D301 - as above
    chosen = _find(name).host(host)
    words = [*chosen.entry(), *(command[1:] if command[0] == "--" else command)]
    sys.stdout.flush()
    # Nothing remains to be done here: the command inherits this terminal, its signals and the process id.
    os.execvp(words[0], words)


@lab.command()
@NAME_OPTION
def down(name: str | None) -> None:
    """Kill all processes on the hosts and remove the hosts.

    Also removes labs left behind by killed processes.

    \b
    Example:
      hoplite lab down
    """  # noqa: D301 - as above
    from hoplite_bench.lab import needs, records

    needs.check()
    with Progress("removing abandoned labs"):
        removed = records.remove_abandoned()
    for left in removed:
        click.echo(f"removed {left}, left behind by a killed process", err=True)
    if name in removed:
        return
    if removed and name is None and not any(record.owner is None for record in records.read_all()):
        return
    found = _find(name)
    if found.owner is not None:
        fail_with(f"lab {found.name} belongs to process {found.owner}, which is still running", "end that process")
    with Progress("removing the hosts"):
        found.close()
    click.echo(f"removed {found.name}", err=True)


@lab.command()
@json_option("Print one JSON list.")
def status(as_json: bool) -> None:
    """List the labs and hosts of this machine.

    Includes cut links, and the number of processes on each host.

    \b
    Example:
      hoplite lab status --json
    """  # noqa: D301 - as above
    from hoplite_bench.lab import needs, records

    needs.check()
    for left in records.abandoned():
        click.echo(f"{left} was left behind by a killed process; remove it: hoplite lab down", err=True)
    labs = []
    for record in records.read_all():
        if record.is_abandoned() or record.switch is None:
            continue
        labs.append(_described(_find(record.name)))
    if as_json:
        print_json(labs)
        return
    if not labs:
        click.echo("no lab is up; create one: hoplite lab up --hosts 4", err=True)
        return
    from hoplite.tools.quantities import write_rate

    print_table(
        ("LAB", "OWNER", "HOST", "ADDRESS", "RACK", "RATE", "CUT", "PROCESSES"),
        (
            (
                described["name"],
                "-" if described["owner"] is None else str(described["owner"]),
                host["name"],
                host["address"],
                str(host["rack"]),
                write_rate(described["rate"]),
                ", ".join(host["cut"]) or "-",
                str(len(host["processes"])),
            )
            for described in labs
            for host in described["hosts"]
        ),
    )


@lab.command()
@NAME_OPTION
@DIRECTION_OPTION
@OTHER_OPTION
@click.argument("target", metavar="HOST|RACK|POD")
def cut(name: str | None, direction: Any, other: str | None, target: str) -> None:  # noqa: ANN401 - a word, checked by click
    """Cut the link of a host, or the uplink of a rack or a pod.

    All packets on the link are dropped.

    \b
    Examples:
      hoplite lab cut rack1 --direction out
      hoplite lab cut node1 --other node2
    """  # noqa: D301 - as above
    if other is None:
        _target(name, target).cut(direction)
    else:
        _host(name, target).cut(direction, _host(name, other))


@lab.command()
@NAME_OPTION
@DIRECTION_OPTION
@OTHER_OPTION
@click.argument("target", metavar="HOST|RACK|POD")
def heal(name: str | None, direction: Any, other: str | None, target: str) -> None:  # noqa: ANN401 - as above
    """Restore a link that was cut.

    \b
    Examples:
      hoplite lab heal rack1
      hoplite lab heal node1 --other node2
    """  # noqa: D301 - as above
    if other is None:
        _target(name, target).heal(direction)
    else:
        _host(name, target).heal(direction, _host(name, other))


@lab.command()
@NAME_OPTION
@click.argument("target", metavar="HOST|RACK|POD")
@click.argument("rate", required=False)
def slow(name: str | None, target: str, rate: str | None) -> None:
    """Set the rate of a link.

    The target is the link of a host, or the uplink of a rack or a pod. Without RATE, the original rate is restored.

    \b
    Example:
      hoplite lab slow node1 100mbit
    """  # noqa: D301 - as above
    _target(name, target).slow(rate)


@lab.command()
@links
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Maximum number of measurements; stops at the first one that passes.",
)
@json_option("Print one JSON object.")
def check(hosts: int | None, rounds: int, as_json: bool, **links: Any) -> None:  # noqa: ANN401 - as click gives them
    """Test whether all links reach their rate at once.

    Creates a lab and removes it afterwards. Sends one TCP stream from each host to the next, all at the same time. If
    in every round some stream misses its rate by more than 7 %, the exit status is 1. The lab is then too large or too
    fast for this machine, or other programs were running.

    \b
    Example:
      hoplite lab check --hosts 16 --rate 500mbit
    """  # noqa: D301 - as above
    from hoplite.tools.quantities import write_rate
    from hoplite_bench.lab import check as test

    with (
        Progress("creating the hosts", unit="rounds") as progress,
        _made(hosts, links) as made,
    ):
        progress.notify("measuring the links")
        facts = made.facts()
        expected = min(facts["rate"], facts["flow_cap"] or facts["rate"])
        measured = []
        for streams in test.rounds(made, rounds):
            measured.append(streams)
            progress.advance()
            if not as_json:
                rates = sorted(stream.measured for stream in streams)
                good = "within 7 %" if all(stream.is_good for stream in streams) else "off by more than 7 %"
                click.echo(
                    f"{len(streams)} concurrent streams, expected {write_rate(expected)} each: measured "
                    f"{write_rate(rates[0])} to {write_rate(rates[-1])}; {good}"
                )
    is_good = all(stream.is_good for stream in measured[-1])
    if as_json:
        rows = [[{**vars(stream), "good": stream.is_good} for stream in streams] for streams in measured]
        print_json({"good": is_good, "lab": facts, "rounds": rows})
    else:
        click.echo(f"round trip {facts['rtt_us']:.0f} us; emulation of latency: {facts['latency_by']}")
        click.echo("good" if is_good else "not good")
    if not is_good:
        fail_with(
            "the rate of a link is off by more than 7 %",
            "use fewer hosts or a lower --rate, or stop other programs on this machine",
        )


def _made(hosts: int | None, links: dict[str, Any], **options: Any) -> Lab:  # noqa: ANN401 - the options of Lab
    from hoplite_bench.lab import Lab

    if hosts is not None and links["racks"]:
        racks = ",".join(map(str, links["racks"]))
        raise click.UsageError(f"--hosts {hosts} sets one rack, but --racks {racks} sets several: omit one of them")
    check_racks_and_pods(links)
    return Lab(hosts=4 if hosts is None and links["racks"] is None else hosts, **links, **options)


def _find(name: str | None) -> Lab:
    from hoplite_bench.lab import Lab

    return Lab.find(name)


def _host(name: str | None, target: str) -> Host:
    return _find(name).host(target)


def _target(name: str | None, target: str) -> Host | Rack | Pod:
    found = _find(name)
    for rack in found.racks:
        if rack.name == target:
            return rack
    for pod in found.pods:
        if pod.name == target:
            return pod
    return found.host(target)


def _described(found: Lab) -> dict[str, Any]:
    names = {host.address: host.name for host in found.hosts}
    return {
        **found.facts(),
        "owner": found.owner,
        "agent": str(found.agent),
        "hosts": [
            {
                "name": host.name,
                "address": host.address,
                "rack": host.rack,
                "cut": [*host.is_cut(), *(f"out to {names[lost]}" for lost in sorted(host.lost_to()))],
                "processes": host.processes(),
            }
            for host in found.hosts
        ],
        "racks": [
            {"name": rack.name, "pod": rack.pod, "hosts": len(rack.hosts), "cut": rack.is_cut()} for rack in found.racks
        ],
        "pods": [{"name": pod.name, "racks": len(pod.racks), "cut": pod.is_cut()} for pod in found.pods],
    }
