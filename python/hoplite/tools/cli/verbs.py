"""`hoplite latest`, `hoplite wait` and `hoplite reduce`."""

from __future__ import annotations

import math
import time

import click

from hoplite.errors import Timeout, UnsupportedDtype
from hoplite.tools.cli.attach import attach, complete_ref
from hoplite.tools.cli.options import duration_option, json_option, seconds_option, socket_option, timeout_option
from hoplite.tools.cli.output import fail_with, print_json, stepping
from hoplite.tools.progress import waiting_for
from hoplite.values import OPS

# Interval at which `hoplite wait` updates the number of missing objects.
COUNT_EVERY_S = 2.0


@click.command()
@click.argument("prefix", metavar="PREFIX")
@click.option(
    "--after", type=click.IntRange(min=-1), default=-1, metavar="N", help="Accept only numbers above N.  [default: any]"
)
@timeout_option
@socket_option
@json_option("Print a JSON object with the ref and its number.")
def latest(prefix: str, after: int, timeout: float | None, socket: str | None, as_json: bool) -> None:
    """Print the ref with the highest number under a prefix.

    Waits until there is one.

    \b
    Examples:
      hoplite latest policy/
      hoplite get "$(hoplite latest policy/ --after 16)" -o weights.npy
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    what = f"a name under {prefix}" + (f" above {after}" if after >= 0 else "")
    step = f"list the objects: hoplite objects --all {prefix}"
    with attach(socket) as client, stepping({Timeout: step}), waiting_for(what):
        ref = client.latest(prefix, after=after, timeout=timeout)
    if as_json:
        print_json({"ref": str(ref), "number": ref.number})
    else:
        click.echo(str(ref))


@click.command()
@click.argument("refs", metavar="REF...", nargs=-1, required=True, shell_complete=complete_ref)
@click.option("--count", type=click.IntRange(min=1), metavar="K", help="Number of objects to wait for.  [default: all]")
@timeout_option
@socket_option
@json_option("Print a JSON object with the objects that are ready and the rest.")
def wait(refs: tuple[str, ...], count: int | None, timeout: float | None, socket: str | None, as_json: bool) -> None:
    """Wait until objects are ready and print their refs.

    Prints the refs in the order in which the objects became ready. An object is ready when a node holds all of its
    bytes. It is also ready when it can no longer appear; get then fails with the reason. After the timeout, the
    command prints the refs that are ready and exits with 1.

    \b
    Examples:
      hoplite wait part/1 part/2 part/3 --count 2 --timeout 60
      hoplite wait policy/17 && hoplite get policy/17 -o weights.npy
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    wanted = len(refs) if count is None else count
    limit = math.inf if timeout is None else timeout
    with attach(socket) as client, waiting_for(f"{wanted} of {len(refs)} objects") as progress:
        ends = time.monotonic() + limit
        ready, rest = client.wait(refs, count, timeout=min(limit, COUNT_EVERY_S))
        while len(ready) < wanted and (left := ends - time.monotonic()) > 0:
            progress.notify(f"waiting for {wanted - len(ready)} more of {len(rest)} objects; press Ctrl-C to stop")
            more, rest = client.wait(rest, wanted - len(ready), timeout=min(left, COUNT_EVERY_S))
            ready += more
    if as_json:
        print_json({"ready": [str(ref) for ref in ready], "rest": [str(ref) for ref in rest]})
    else:
        for ref in ready:
            click.echo(str(ref))
    if len(ready) < wanted:
        fail_with(
            f"{len(ready)} of {wanted} objects were ready within {timeout:g} s; missing: {_few(list(map(str, rest)))}",
            f"set a longer --timeout, or list the holders: hoplite locations {rest[0]}",
        )


@click.command()
@click.argument("refs", metavar="REF...", nargs=-1, required=True, shell_complete=complete_ref)
@click.option("--op", type=click.Choice(OPS), default="sum", show_default=True, help="Operation on the elements.")
@click.option(
    "--count", type=click.IntRange(min=1), metavar="K", help="Fold only the first K inputs to arrive.  [default: all]"
)
@click.option("--name", metavar="NAME", help="Name of the result.  [default: a new id]")
@duration_option("--ttl", "Delete the result after this time: 90 (seconds), 60s, 5m, 2h or 1d.  [default: never]")
@seconds_option("--timeout", "Time limit for the result; after it the reduce fails.  [default: no limit]")
@socket_option
@json_option("Print a JSON object with the ref and the inputs that were folded.")
def reduce(
    refs: tuple[str, ...],
    op: str,
    count: int | None,
    name: str | None,
    ttl: float | None,
    timeout: float | None,
    socket: str | None,
    as_json: bool,
) -> None:
    """Fold arrays into one new object and print its ref.

    Prints the ref when the result exists. The inputs need not exist yet: the command waits for them. The nodes that
    hold the inputs fold them. The result stays on this host until it is deleted.

    \b
    Examples:
      hoplite reduce grad/1 grad/2 grad/3 --count 2 --name sum/1 --timeout 60
      hoplite get "$(hoplite reduce seen/1 seen/2 --op any)" -o seen.npy
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    steps = {
        Timeout: "set a longer --timeout or a smaller --count, or list the objects: hoplite objects --all",
        UnsupportedDtype: "reduce numeric arrays, or choose another --op: hoplite reduce --help",
    }
    with attach(socket) as client, stepping(steps), waiting_for("the inputs"):
        total = client.reduce(refs, op, count=count, name=name, ttl=ttl, timeout=timeout)
        inputs = total.inputs(timeout=timeout)
    if as_json:
        print_json({"ref": str(total), "inputs": [str(ref) for ref in inputs]})
    else:
        click.echo(str(total))


def _few(refs: list[str]) -> str:
    """Joins the first ten names, which fit on one or two lines."""
    return ", ".join(refs[:10]) + (f" and {len(refs) - 10} more" if len(refs) > 10 else "")
