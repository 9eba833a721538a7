"""`hoplite objects`, `hoplite locations` and `hoplite delete`: what is where, and away with it."""

from __future__ import annotations

import sys
from typing import Any

import click

from hoplite.errors import GetTimeout, HopliteError
from hoplite.tools.cli.attach import attach, complete_ref
from hoplite.tools.cli.options import UNITS_S, json_option, seconds_option, socket_option
from hoplite.tools.cli.output import print_json, print_table, stepping
from hoplite.tools.quantities import write_size

# Which number of a row each order goes by.
ORDERS = {"size": "bytes", "age": "age", "readers": "readers"}


@click.command()
@click.argument("prefix", metavar="[PREFIX]", default="", shell_complete=complete_ref)
@click.option("--prefix", "also_prefix", default="", hidden=True)
@click.option("--all", "everywhere", is_flag=True, help="All objects of the cluster: ask every node for those it owns.")
@click.option(
    "--sort", type=click.Choice(list(ORDERS)), help="The largest, oldest or most read first.  [default: by ref]"
)
@seconds_option("--timeout", "With --all: how long to wait for the other nodes.", default=10.0)
@socket_option
@json_option("Print one JSON list, with exact sizes.")
def objects(
    prefix: str,
    also_prefix: str,
    everywhere: bool,
    sort: str | None,
    timeout: float,
    socket: str | None,
    as_json: bool,
) -> None:
    """List the copies that the node of this host holds, or with --all the objects of the whole cluster.

    PREFIX is what their refs begin with, such as policy/.

    \b
    Examples:
      hoplite objects policy/
      hoplite objects --all policy/
      hoplite objects --all --sort age | head
      hoplite objects --json | jq 'map(.bytes) | add'
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    if sort == "age" and not everywhere:
        raise click.UsageError("--sort age needs --all: only the owners of objects know how old they are")
    step: dict[type[HopliteError], str] = {
        GetTimeout: "a longer --timeout, or see which node is silent: hoplite status"
    }
    with attach(socket) as client, stepping(step):
        rows = client.objects(prefix or also_prefix, everywhere=everywhere, timeout=timeout)
    if sort is not None:
        rows.sort(key=lambda row: row[ORDERS[sort]], reverse=True)
    if as_json:
        print_json(rows)
        return
    # What is as wide as it likes comes last.
    if everywhere:
        columns = ["ref", "size", "age", "copies", "readers", "owner", "job", "ttl", "dtype", "shape"]
        cells = [[row["ref"], write_size(row["bytes"]), _time(row["age"]), *_life(row), *_kind(row)] for row in rows]
    else:
        columns = ["ref", "size", "state", "pinned", "dtype", "shape"]
        cells = [
            [row["ref"], write_size(row["bytes"]), row["state"], "pinned" if row["pinned"] else "-", *_kind(row)]
            for row in rows
        ]
    print_table(columns, cells)


def _life(row: dict[str, Any]) -> list[str]:
    """Who has an object, who is to know of it, and how long it lives."""
    ttl = "-" if row["ttl"] is None else _time(row["ttl"])
    return [_copies(row), str(row["readers"]), row["owner"], row["job"] or "-", ttl]


def _time(seconds: float) -> str:
    """A time in the largest unit of which it has two."""
    for unit, length in sorted(UNITS_S.items(), key=lambda item: -item[1]):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def _copies(row: dict[str, Any]) -> str:
    """How many nodes have all of an object, and how many a part."""
    return f"{row['copies']}" + (f" and {row['partial']} growing" if row["partial"] else "")


def _kind(row: dict[str, Any]) -> list[str]:
    """Dtype and shape; of what is no array what its bytes are."""
    if row["dtype"] is None:
        return ["bytes" if row["form"] == "plain" else row["form"], "-"]
    return [row["dtype"], " x ".join(map(str, row["shape"])) or "scalar"]


@click.command()
@click.argument("refs", metavar="REF...", nargs=-1, required=True, shell_complete=complete_ref)
@seconds_option("--timeout", "How long to wait until the owners of the objects know.", default=30.0)
@socket_option
@json_option("Print a JSON object with the refs.")
def delete(refs: tuple[str, ...], timeout: float, socket: str | None, as_json: bool) -> None:
    """Delete all copies of objects, everywhere.

    Arrays that a process has already got stay valid. An object that does not exist is no error.

    \b
    Examples:
      hoplite delete policy/17 policy/18
      hoplite objects policy/ --json | jq -r '.[].ref' | xargs hoplite delete
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    with attach(socket) as client:
        client.delete(refs, timeout=timeout)
    if as_json:
        print_json({"deleted": list(refs)})


@click.command()
@click.argument("ref", metavar="REF", shell_complete=complete_ref)
@click.option("--watch", is_flag=True, help="Go on, and print each location as it comes, until Ctrl-C.")
@seconds_option("--timeout", "How long to wait.", default=10.0)
@socket_option
@json_option("Print a JSON list; with --watch an object on each line.")
def locations(ref: str, watch: bool, timeout: float, socket: str | None, as_json: bool) -> None:
    """List the nodes that hold an object.

    \b
    Examples:
      hoplite locations policy/17
      hoplite locations policy/17 --watch
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    with attach(socket) as client:
        if not watch:
            rows = [place._asdict() for place in client.locations(ref, timeout=timeout)]
            if as_json:
                print_json(rows)
            else:
                print_table(["node", "address", "copy"], [_words(row) for row in rows])
            return
        for place in client.watch_locations(ref):
            row = place._asdict()
            if as_json:
                print_json(row)
            else:
                click.echo("  ".join(_words(row)))
            sys.stdout.flush()


def _words(row: dict[str, Any]) -> list[str]:
    return [row["node"], row["address"] or "-", "complete" if row["complete"] else "growing"]
