"""`hoplite story`: what happened to an object on all nodes."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING

import click

from hoplite.errors import HopliteError, InvalidArgument
from hoplite.settings import closest
from hoplite.tools.cli.attach import attach, complete_ref
from hoplite.tools.cli.options import json_option, socket_option
from hoplite.tools.cli.output import fail_with, print_json, print_table
from hoplite.tools.observe.words import seconds

if TYPE_CHECKING:
    from hoplite.tools.observe.collect import Snapshot
    from hoplite.tools.observe.story import Story

# Larger trees are summarized.
TREE_LINES_MAX = 32


@click.command()
@click.argument("ref", metavar="REF", shell_complete=complete_ref)
@click.option(
    "--all", "everything", is_flag=True, help="Also print repetitions, short waits, and what another node records too."
)
@socket_option
@json_option("Print one JSON object with all fields of the events.")
def story(ref: str, everything: bool, socket: str | None, as_json: bool) -> None:
    """Show what happened to an object or a reduce on all nodes.

    Events are in order of time. The clocks of the nodes are aligned. A node retains its last events only.

    \b
    Examples:
      hoplite story policy/17
      hoplite story policy/17 --json | jq -r '.events[].text'
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    # Imports asyncio, which other commands do not need.
    from hoplite.tools.observe.story import read, tell

    with attach(socket) as client:
        snapshot, others = read(client, ref)
        told = tell(ref, snapshot, everything=everything)
        if not told.events:
            try:
                is_there = bool(client.locations(ref, timeout=1))
            except InvalidArgument:
                raise
            except HopliteError as error:
                _fail(f"no node has events of {ref}: {error}", told)
            _fail(_unknown(ref, others, is_there=is_there), told)
    if as_json:
        print_json({**dataclasses.asdict(told), "nodes": snapshot.names})
    else:
        _print(told, snapshot)


def _unknown(ref: str, others: set[str], *, is_there: bool) -> str:
    if is_there:
        return f"{ref} exists, but the nodes have overwritten its events"
    return f"no node has an object or events of {ref}{closest(ref, sorted(others))}"


def _fail(message: str, told: Story) -> None:
    fail_with("; ".join([message, *told.notes]), "list the objects: hoplite objects --all")


def _print(told: Story, snapshot: Snapshot) -> None:
    rows = [[_clock(event["time"]), snapshot.names.get(event["recorder"], "-"), event["text"]] for event in told.events]
    print_table(["time", "node", "event"], rows, whole=2)
    for tree in told.trees:
        lines = tree.lines()
        click.echo(f"\n{tree.title}:")
        if len(lines) > TREE_LINES_MAX:
            widest = max(map(len, tree.children.values()))
            lines = [f"{len(lines)} nodes; {tree.root} is at the top; at most {widest} nodes receive from one"]
        for line in lines:
            click.echo(f"  {line}")
    notes = [f"note: {note}" for note in told.notes]
    if told.error and len({event["recorder"] for event in told.events}) > 1:
        notes.append(f"note: times of different nodes may be off by {seconds(told.error)}")
    if notes:
        click.echo()
    for note in notes:
        click.echo(note)


def _clock(time: float) -> str:
    return dt.datetime.fromtimestamp(time).astimezone().strftime("%H:%M:%S.%f")[:-3]
