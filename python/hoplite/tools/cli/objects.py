"""`hoplite objects`, `hoplite locations` and `hoplite delete`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from hoplite.errors import HopliteError, Timeout
from hoplite.tools.cli.attach import attach, complete_ref
from hoplite.tools.cli.options import UNITS_S, json_option, seconds_option, socket_option
from hoplite.tools.cli.output import print_json, print_table, stepping
from hoplite.tools.progress import waiting_for
from hoplite.tools.quantities import write_size

# A watch lasts until the user ends it: HOPLITE_TIMEOUT must not, and a wait without a timeout would be logged.
WATCH_S = 1e8

if TYPE_CHECKING:
    from hoplite.listing import DirectoryEntry, ListedObject, LocalObject

LOCAL_ORDERS = ("ref", "size", "readers")
# Orders of the cluster's objects, with the fields that `Client.directory` sorts by.
FIELDS = {"ref": "ref", "size": "bytes", "age": "age", "copies": "copies"}


@click.command()
@click.argument("prefix", metavar="[PREFIX]", default="", shell_complete=complete_ref)
@click.option("--all", "is_cluster", is_flag=True, help="List the objects of the whole cluster.")
@click.option(
    "--sort",
    type=click.Choice([*FIELDS, "readers"]),
    default="ref",
    help="Column to sort by: refs ascending, others descending. Age and copies need --all; readers does not work with "
    "it.  [default: ref]",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Print at most N rows.  [default: all]")
@seconds_option("--timeout", "Time limit for the replies of the nodes.", default=10.0)
@socket_option
@json_option("Print one JSON list, with exact sizes.")
def objects(
    prefix: str,
    is_cluster: bool,
    sort: str,
    limit: int | None,
    timeout: float,
    socket: str | None,
    as_json: bool,
) -> None:
    """List objects on this host or in the cluster.

    With PREFIX, such as policy/, list only refs that start with it.

    \b
    Examples:
      hoplite objects policy/
      hoplite objects --all policy/
      hoplite objects --all --sort age --limit 10
      hoplite objects --json | jq 'map(.bytes) | add'
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    orders = FIELDS if is_cluster else LOCAL_ORDERS
    if sort not in orders:
        raise click.UsageError(f"--sort {sort} {'does not work with' if is_cluster else 'needs'} --all")
    step: dict[type[HopliteError], str] = {
        Timeout: "set a longer --timeout, or find the unresponsive node: hoplite status"
    }
    with attach(socket) as client, stepping(step), waiting_for("the replies of the nodes"):
        if is_cluster:
            entries = client.directory(prefix, sort=FIELDS[sort], limit=limit, timeout=timeout)
            rows: list[Any] = list(entries)
            columns, cells = CLUSTER_COLUMNS, [_cluster_row(row) for row in entries]
        else:
            copies = sorted(client.objects(prefix, timeout=timeout), key=lambda row: row["ref"])
            if sort == "size":
                copies.sort(key=lambda row: row["bytes"], reverse=True)
            elif sort == "readers":
                copies.sort(key=lambda row: row["readers"], reverse=True)
            rows = list(copies[:limit])
            columns, cells = LOCAL_COLUMNS, [_local_row(row) for row in copies[:limit]]
    if as_json:
        print_json(rows)
    else:
        print_table(columns, cells)


# Columns of any width come last.
CLUSTER_COLUMNS = ["ref", "size", "age", "copies", "owner", "job", "ttl", "dtype", "shape"]
LOCAL_COLUMNS = ["ref", "size", "state", "pinned", "readers", "dtype", "shape"]


def _cluster_row(row: DirectoryEntry) -> list[str]:
    ttl = "-" if row["ttl"] is None else _time(row["ttl"])
    copies = f"{row['copies']}" + (f" and {row['partial']} partial" if row["partial"] else "")
    size, age = write_size(row["bytes"]), _time(row["age"])
    return [row["ref"], size, age, copies, row["owner"], row["job"] or "-", ttl, *_kind(row)]


def _local_row(row: LocalObject) -> list[str]:
    pinned = "pinned" if row["pinned"] else "-"
    return [row["ref"], write_size(row["bytes"]), row["state"], pinned, str(row["readers"]), *_kind(row)]


def _time(seconds: float) -> str:
    """Writes a time in the largest unit in which it is at least 2."""
    for unit, length in sorted(UNITS_S.items(), key=lambda item: -item[1]):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def _kind(row: ListedObject) -> list[str]:
    """Returns dtype and shape of an array, or the form of another value."""
    if row["dtype"] is None:
        return ["bytes" if row["form"] == "plain" else row["form"], "-"]
    return [row["dtype"], " x ".join(map(str, row["shape"] or ())) or "scalar"]


@click.command()
@click.argument("refs", metavar="REF...", nargs=-1, required=True, shell_complete=complete_ref)
@seconds_option("--timeout", "Time limit for the owners of the objects to confirm the deletion.", default=30.0)
@socket_option
@json_option("Print a JSON object with the refs.")
def delete(refs: tuple[str, ...], timeout: float, socket: str | None, as_json: bool) -> None:
    """Delete all copies of objects in the cluster.

    Values that processes already hold stay valid. A ref without an object is not an error.

    \b
    Examples:
      hoplite delete policy/17 policy/18
      hoplite objects policy/ --json | jq -r '.[].ref' | xargs hoplite delete
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    with attach(socket) as client, waiting_for("the owners of the objects"):
        client.delete(refs, timeout=timeout)
    if as_json:
        print_json({"deleted": list(refs)})


@click.command()
@click.argument("ref", metavar="REF", shell_complete=complete_ref)
@click.option("--watch", is_flag=True, help="Print the current locations, then each change, until Ctrl-C.")
@seconds_option("--timeout", "Time limit for the list; unused with --watch.", default=10.0)
@socket_option
@json_option("Print a JSON list; with --watch one object per line.")
def locations(ref: str, watch: bool, timeout: float, socket: str | None, as_json: bool) -> None:
    """List the nodes that hold an object.

    \b
    Examples:
      hoplite locations policy/17
      hoplite locations policy/17 --watch
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    with attach(socket) as client:
        if not watch:
            with waiting_for(f"the owner of {ref}"):
                rows = [place._asdict() for place in client.locations(ref, timeout=timeout)]
            if as_json:
                print_json(rows)
            else:
                print_table(["node", "address", "copy"], [_words(row) for row in rows])
            return
        for place in client.watch_locations(ref, timeout=WATCH_S):
            row = place._asdict()
            if as_json:
                print_json(row)
            else:
                click.echo("  ".join(_words(row)))
            sys.stdout.flush()


def _words(row: dict[str, Any]) -> list[str]:
    return [row["node"], row["address"] or "-", "complete" if row["complete"] else "partial"]
