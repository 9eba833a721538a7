"""`hoplite top`: what the cluster holds and moves, in a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from hoplite.extras import install
from hoplite.tools.cli.attach import attach
from hoplite.tools.cli.options import json_option, socket_option
from hoplite.tools.cli.output import fail_with, print_json, print_table
from hoplite.tools.progress import Progress

if TYPE_CHECKING:
    from hoplite import Client
    from hoplite.tools.top.picture import Picture

# Rates are differences. The first two frames follow each other at once, the others after a second each.
FRAMES = 3
EVENTS_PRINTED = 20


@click.command()
@click.option("--once", is_flag=True, help="Print one plain snapshot and exit.")
@socket_option
@json_option("Print one snapshot as a JSON object and exit.")
def top(once: bool, socket: str | None, as_json: bool) -> int | None:
    """Show nodes, transfers, waits, readers and events of the cluster.

    Broadcasts and reduces are drawn as trees. Press ? for the keys. The display needs a terminal and the extra top;
    --once and --json need neither.

    \b
    Examples:
      hoplite top
      hoplite top --once >> cluster.log
      hoplite top --json | jq '.nodes[] | select(.state != "alive").name'
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    if once or as_json:
        # Other commands do not need it.
        import asyncio

        with attach(socket) as client, Progress("reading the activity of all nodes"):
            picture = asyncio.run(_look(client))
        if as_json:
            print_json(picture.whole())
        else:
            _print(picture)
        return None
    if not is_terminal():
        fail_with("the standard output is not a terminal", "hoplite top --once")
    try:
        from hoplite.tools.top.app import Top
    except ModuleNotFoundError as error:
        needed = str(error.name).partition(".")[0]
        fail_with(f"the display needs {needed}, which is not installed", f"{install('top')}, or hoplite top --once")
    from hoplite.tools.observe.observer import Observer

    with attach(socket) as client:
        display = Top(Observer(client))
        display.run()
    code: int | None = display.return_code
    return code


async def _look(client: Client) -> Picture:
    from hoplite.tools.observe.observer import Observer
    from hoplite.tools.top.picture import Picture

    observer = Observer(client)
    picture = Picture()
    seen = 0
    try:
        async for frame in observer.frames():
            if observer.failure is not None:
                fail_with(observer.failure, "check the node: hoplite status")
            picture.update(frame)
            seen += 1
            if seen == FRAMES:
                break
    finally:
        await observer.close()
    return picture


def _print(picture: Picture) -> None:
    from hoplite.tools.top.picture import TABS

    for line in picture.headlines():
        click.echo(line)
    for tab in TABS:
        groups = tab.groups(picture)
        click.echo(f"\n{tab.title}" if groups else f"\n{tab.title}: {tab.empty}")
        if groups:
            lines = [line for group in groups for line in group]
            if tab.title == "Events":
                lines = lines[:EVENTS_PRINTED]
            print_table(tab.columns, [[cell.text for cell in line] for line in lines], whole=1)


def is_terminal() -> bool:
    """Whether the display has a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()
