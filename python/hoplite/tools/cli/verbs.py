"""`hoplite latest`, `hoplite wait` and `hoplite reduce`: verbs of a client that need no file."""

from __future__ import annotations

import click

from hoplite.errors import Timeout, UnsupportedDtype
from hoplite.tools.cli.attach import attach, complete_ref
from hoplite.tools.cli.options import duration_option, json_option, socket_option, timeout_option
from hoplite.tools.cli.output import fail_with, print_json, stepping
from hoplite.tools.cli.patience import SILENCE_S, patiently
from hoplite.values import OPS


@click.command()
@click.argument("prefix", metavar="PREFIX")
@click.option(
    "--after", type=click.IntRange(min=-1), default=-1, metavar="N", help="Only a number above N.  [default: any]"
)
@timeout_option
@socket_option
@json_option("Print a JSON object with the ref and its number.")
def latest(prefix: str, after: int, timeout: float | None, socket: str | None, as_json: bool) -> None:
    """Print the ref with the highest number under a prefix; wait until there is one.

    \b
    Examples:
      hoplite latest policy/
      hoplite get "$(hoplite latest policy/ --after 16)" -o weights.npy
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    what = f"a name under {prefix}" + (f" above {after}" if after >= 0 else "")
    step = f"look at what is there: hoplite objects --all {prefix}"
    with attach(socket) as client, stepping({Timeout: step}):
        ref = patiently(lambda limit: client.latest(prefix, after=after, timeout=limit), what, timeout)
    if as_json:
        print_json({"ref": str(ref), "number": ref.number})
    else:
        click.echo(str(ref))


@click.command()
@click.argument("refs", metavar="REF...", nargs=-1, required=True, shell_complete=complete_ref)
@click.option("--count", type=click.IntRange(min=1), metavar="K", help="How many to wait for.  [default: all]")
@timeout_option
@socket_option
@json_option("Print a JSON object with those that came and the rest.")
def wait(refs: tuple[str, ...], count: int | None, timeout: float | None, socket: str | None, as_json: bool) -> None:
    """Wait until objects have come, and print their refs in the order in which they came.

    An object has come when all of it is somewhere in the cluster, or when it can't come any more: then get says why.
    When the time is over the command prints what has come and exits with 1.

    \b
    Examples:
      hoplite wait part/1 part/2 part/3 --count 2 --timeout 60
      hoplite wait policy/17 && hoplite get policy/17 -o weights.npy
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    wanted = len(refs) if count is None else count
    with attach(socket) as client:
        limit = SILENCE_S if timeout is None else min(timeout, SILENCE_S)
        ready, rest = client.wait(refs, count, timeout=limit)
        if len(ready) < wanted and limit != timeout:
            click.echo(f"waiting for {wanted - len(ready)} more of {len(rest)}; Ctrl-C ends it", err=True)
            ready, rest = client.wait(refs, count, timeout=None if timeout is None else timeout - limit)
    if as_json:
        print_json({"ready": [str(ref) for ref in ready], "rest": [str(ref) for ref in rest]})
    else:
        for ref in ready:
            click.echo(str(ref))
    if len(ready) < wanted:
        fail_with(
            f"{len(ready)} of {wanted} came within {timeout:g} s; missing: {_few([str(ref) for ref in rest])}",
            f"a longer --timeout, or see who holds it: hoplite locations {rest[0]}",
        )


@click.command()
@click.argument("refs", metavar="REF...", nargs=-1, required=True, shell_complete=complete_ref)
@click.option("--op", type=click.Choice(OPS), default="sum", show_default=True, help="How to fold.")
@click.option("--count", type=click.IntRange(min=1), metavar="K", help="Only the first K to arrive.  [default: all]")
@click.option("--name", metavar="NAME", help="What to call the result.  [default: an id is minted]")
@duration_option("--ttl", "Delete it so long after it is complete, as 90, 60s, 5m, 2h or 1d.  [default: never]")
@click.option("--no-wait", is_flag=True, help="Print the ref at once; the result comes later, or get says why not.")
@timeout_option
@socket_option
@json_option("Print a JSON object with the ref and what was folded.")
def reduce(
    refs: tuple[str, ...],
    op: str,
    count: int | None,
    name: str | None,
    ttl: float | None,
    no_wait: bool,
    timeout: float | None,
    socket: str | None,
    as_json: bool,
) -> None:
    """Fold arrays into one new object, and print its ref when it is there.

    The inputs need not exist yet. The nodes that hold them fold; the result is at the node of this host, and stays
    there until it is deleted.

    \b
    Examples:
      hoplite reduce grad/1 grad/2 grad/3 --count 2 --name sum/1 --timeout 60
      hoplite get "$(hoplite reduce seen/1 seen/2 --op any)" -o seen.npy
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    steps = {
        Timeout: "a longer --timeout, a smaller --count, or look at what is there: hoplite objects --all",
        UnsupportedDtype: "another --op: hoplite reduce --help",
    }
    with attach(socket) as client, stepping(steps):
        total = client.reduce(refs, op, count=count, name=name, ttl=ttl, timeout=timeout)
        inputs = None if no_wait else patiently(lambda limit: total.inputs(timeout=limit), "the inputs", timeout)
    if as_json:
        print_json({"ref": str(total), "inputs": None if inputs is None else [str(ref) for ref in inputs]})
    else:
        click.echo(str(total))


def _few(refs: list[str]) -> str:
    """The first of many: ten names fit a line or two."""
    return ", ".join(refs[:10]) + (f" and {len(refs) - 10} more" if len(refs) > 10 else "")
