"""`hoplite status`: the state of this host's node."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from hoplite.errors import HopliteError
from hoplite.tools.cli.attach import attach
from hoplite.tools.cli.options import json_option, seconds_option, socket_option
from hoplite.tools.cli.output import print_json, print_table
from hoplite.tools.quantities import write_size

if TYPE_CHECKING:
    from hoplite import Client
    from hoplite.node_status import LimitStatus, MemberStatus, NodeDescription, RevocationStatus, Status


# Requests that have waited this long are shown, at most this many.
WAITS_AFTER_S = 5.0
WAITS_MAX = 10
WAITS_TIMEOUT_S = 2.0


@click.command()
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@seconds_option("--interval", "With --watch: time between updates.", default=2.0, least=0.1)
@socket_option
@json_option("Print one JSON object; with --watch one per line.")
def status(watch: bool, interval: float, socket: str | None, as_json: bool) -> None:
    """Show members, store, long waits and counters of this host's node.

    \b
    Examples:
      hoplite status
      hoplite status --watch
      hoplite status --json | jq .members
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    with attach(socket) as client:
        while True:
            facts = client.status()
            waits = [] if as_json else _waits(client)
            if as_json:
                print_json(facts)
            else:
                if watch:
                    # Does nothing without a terminal.
                    click.clear()
                _print(facts, waits)
            if not watch:
                return
            if not as_json:
                click.echo()
            sys.stdout.flush()
            time.sleep(interval)


def _waits(client: Client) -> list[list[str]]:
    """Returns a row for each request that has waited for long, the longest first."""
    try:
        activity = client.inspect("activity", limit=1, timeout=WAITS_TIMEOUT_S)
    except HopliteError:
        # A capability does not allow it, or the node is leaving.
        return []
    waits = [(activity["time"] - wait["since"], wait) for wait in activity["waits"]]
    waits = sorted((each for each in waits if each[0] >= WAITS_AFTER_S), key=lambda each: -each[0])
    return [
        [
            f"{waited:.0f}",
            wait["verb"],
            str(wait["process"] or "-"),
            wait["what"] or wait["ref"] or "-",
            wait["state"] or "-",
        ]
        for waited, wait in waits[:WAITS_MAX]
    ]


def _print(facts: Status, waits: list[list[str]]) -> None:
    store = facts["store"]
    rack = f", in {' > '.join(facts['place'])}" if facts["place"] else ""
    where = f"at {facts['address']}" if facts["address"] else "without a TCP port"
    click.echo(f"node     {facts['id']} {where}{rack}, in cluster {facts['cluster']}")
    click.echo(f"auth     {facts['admission']}{_revocations(facts['revocations'])}")
    if facts["barred"]:
        click.echo(f"barred   {facts['barred']}")
    click.echo(
        f"objects  {facts['objects']} on this node, {write_size(store['used'])} of {write_size(store['capacity'])}"
    )
    click.echo(f"memory   {write_size(store['mapped'])} mapped, {write_size(store['warm'])} of that free")
    if store["small"]:
        most = write_size(store["small_capacity"])
        click.echo(f"inline   {write_size(store['small'])} of {most}, small objects of other members")
    if store["spill_limit"]:
        click.echo(f"disk     {write_size(store['spilled'])} of {write_size(store['spill_limit'])} spilled")
    click.echo()
    columns = ["member", "address"]
    if any(member["place"] for member in facts["members"]):
        columns.append("place")
    is_in_doubt = facts["lost"] or any(_state(member) != "alive" for member in facts["members"])
    rows = [_row(node, has_place="place" in columns) for node in (*facts["members"], *facts["lost"])]
    if is_in_doubt:
        columns.append("state")
        states = [_state(member) for member in facts["members"]]
        states += [f"failed {lost['seconds']:.0f} s ago: {lost['reason']}" for lost in facts["lost"]]
        rows = [[*row, state] for row, state in zip(rows, states, strict=True)]
    print_table(columns, rows)
    click.echo()
    if waits:
        print_table(["seconds", "request", "process", "waits for", "because"], waits)
        click.echo()
    if facts["limits"]:
        print_table(["limit", "client", "rejected"], [_limit(row) for row in facts["limits"]])
        click.echo()
    print_table(
        ["counter", "value"],
        [
            [name, write_size(value) if name.startswith("bytes_") else str(value)]
            for name, value in facts["counters"].items()
        ],
    )


def _row(node: NodeDescription, *, has_place: bool) -> list[str]:
    row = [node["id"], node["address"] or "-"]
    return [*row, " > ".join(node["place"] or ["-"])] if has_place else row


def _limit(row: LimitStatus) -> list[str]:
    process = "a process" if row["process"] is None else f"process {row['process']}"
    return [row["limit"], f"member {row['member']}" if row["member"] else process, str(row["count"])]


def _revocations(facts: RevocationStatus | None) -> str:
    if facts is None:
        return ""
    if facts["problem"]:
        return f"; revocation list {facts['file']} is not current: {facts['problem']}"
    return f"; revocation list {facts['file']}"


def _state(member: MemberStatus) -> str:
    suspected, corrupt = member["suspected"], member["blocks_corrupt"]
    state = f"suspected by {suspected['by']} for {suspected['seconds']:.1f} s" if suspected else "alive"
    if member["via"]:
        state += f", reached through {member['via']}"
    return f"{state}, sent {corrupt} corrupt blocks" if corrupt else state
