"""`hoplite doctor`: checks of this host and of the cluster."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

import click

from hoplite import settings, sockets
from hoplite.addresses import check_address
from hoplite.errors import ConnectError, HopliteError, InvalidArgument
from hoplite.tools.cli.attach import attach, node_socket
from hoplite.tools.cli.node import DEFAULT_LISTEN
from hoplite.tools.cli.options import json_option, socket_option
from hoplite.tools.cli.output import fail_with, print_json
from hoplite.tools.doctor import Finding
from hoplite.tools.progress import Progress
from hoplite.tools.quantities import visible

if TYPE_CHECKING:
    from hoplite import Client
    from hoplite.tools.doctor import Level
    from hoplite.tools.doctor.facts import Facts

LEVELS: tuple[Level, ...] = ("problem", "warning", "ok", "unchecked")

OF_CLUSTER = "members, versions, clocks, reachability and rates need a running node"


@click.command()
@click.option(
    "--peer", metavar="HOST:PORT", help="Also check whether the node at that address admits a node of this host."
)
@click.option("--no-rate", is_flag=True, help="Skip the measurement, which sends 64 MiB to another node.")
@socket_option
@json_option("Print a JSON list of findings.")
def doctor(peer: str | None, no_rate: bool, socket: str | None, as_json: bool) -> None:
    """Check this host and the cluster, and print what to change.

    Without a running node, it checks the host only. The exit code is 1 if there is a problem.

    \b
    Examples:
      hoplite doctor
      hoplite doctor --peer 10.0.0.2:7420
      hoplite doctor --json | jq '.[] | select(.level == "problem")'
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    if peer is not None:
        try:
            check_address("--peer", peer)
        except InvalidArgument as error:
            raise click.UsageError(str(error)) from None
    with Progress("checking this host and the cluster"):
        findings = _check(peer, socket, is_rate=not no_rate)
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        _print(findings)
    problems = sum(finding.level == "problem" for finding in findings)
    if problems:
        fail_with(
            f"{problems} {'problem' if problems == 1 else 'problems'}", "make the changes after ->, and check again"
        )


def _check(peer: str | None, socket: str | None, *, is_rate: bool) -> list[Finding]:
    from hoplite.tools.doctor import facts, host

    with contextlib.ExitStack() as stack:
        client, pid, unattached = None, None, []
        try:
            client = stack.enter_context(attach(socket))
            pid = sockets.pid_of(node_socket(settings.load(address=None, socket=None), socket))
        except ConnectError as error:
            unattached = [Finding("node", "unchecked", str(error), "Start a node: hoplite node")]
        except HopliteError as error:
            unattached = [Finding("node", "problem", str(error), "Correct the setting, or select a node with --socket")]
        gathered = facts.gather(pid)
        of_settings, values = host.node_settings()
        findings = [host.kernel(gathered), host.shared_memory(gathered), host.huge_pages(gathered)]
        findings += [*host.limits(gathered), *host.kernel_settings(gathered), *of_settings]
        if client is None:
            findings.append(host.memory(gathered, values["capacity"] if values is not None else None))
            if values is not None:
                findings.append(host.port(values["listen"] or DEFAULT_LISTEN))
            findings += [*unattached, Finding("cluster", "unchecked", OF_CLUSTER)]
        else:
            findings += _cluster(client, gathered, is_rate=is_rate)
        if peer is not None:
            findings.append(host.peer(peer, values))
    return findings


def _cluster(client: Client, gathered: Facts, *, is_rate: bool) -> list[Finding]:
    from hoplite.tools.doctor import cluster, host

    try:
        view = cluster.View.of(client)
    except HopliteError as error:
        return [Finding("node", "problem", str(error), "Restart the node: hoplite node")]
    store = view.snapshot.status["store"]
    findings = [host.memory(gathered, store["capacity"], store["mapped"])]
    findings += [*cluster.members(view), cluster.versions(view), *cluster.clocks(view), *cluster.reachability(view)]
    findings += [*cluster.corruption(view), *cluster.waits(view), *cluster.rates(view)]
    findings.append(cluster.rate(client, view) if is_rate else Finding("rate", "unchecked", "--no-rate was given"))
    return findings


def _print(findings: list[Finding]) -> None:
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        click.echo(f"{finding.level:9}  {finding.check:{width}}  {visible(finding.text)}")
        if finding.fix is not None:
            click.echo(f"{'':9}  {'':{width}}  -> {visible(finding.fix)}")
    count = Counter(finding.level for finding in findings)
    click.echo(f"\n{', '.join(f'{level}: {count[level]}' for level in LEVELS)}")
