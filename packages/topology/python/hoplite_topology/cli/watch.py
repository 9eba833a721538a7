"""`hoplite topology watch`: shows the network of a running cluster, and proposes a faster order of ranks."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hoplite.errors import InvalidArgument
from hoplite.tools.cli.attach import attach
from hoplite.tools.cli.options import json_option, seconds_option
from hoplite.tools.cli.output import print_json, print_table, stepping
from hoplite_topology.problem import ALGORITHMS

if TYPE_CHECKING:
    from hoplite_topology.watching import Look


@click.command()
@click.option(
    "--socket",
    "sockets",
    multiple=True,
    metavar="PATH",
    help="Unix socket of a node; repeatable, to include more round trips.  [default: this user's node]",
)
@click.option(
    "--order",
    "order_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read the members' addresses in the order of ranks, one per line.  [default: by address]",
)
@click.option(
    "--algorithm", type=click.Choice(ALGORITHMS), default="ring", show_default=True, help="Algorithm of the ranks."
)
@seconds_option("--interval", "Time between two updates.", default=10.0, least=0.1)
@click.option("--once", is_flag=True, help="Exit after one update.")
@json_option("Print one JSON object on each line.")
def watch(
    sockets: tuple[str, ...], order_file: Path | None, algorithm: str, interval: float, once: bool, as_json: bool
) -> None:
    """Watch a running cluster and propose a faster order of ranks.

    An order is proposed if it saves more than 10 %. Nodes report which of them share a link, and measure round trips
    and receive rates with TCP_INFO.

    \b
    Example:
      hoplite topology watch
      hoplite topology watch --once --json --order hosts --algorithm halving-doubling
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    from hoplite_topology import watching
    from hoplite_topology.problem import Wanted

    step = "see hoplite topology watch --help, or hoplite status for the members"
    with contextlib.ExitStack() as stack, stepping({InvalidArgument: step}):
        order = _read(order_file) if order_file else None
        clients = [stack.enter_context(attach(socket)) for socket in sockets or (None,)]
        while True:
            seen = watching.picture([client.status() for client in clients], order)
            look = watching.look(seen, Wanted(algorithm))
            if as_json:
                print_json(look.as_json())
            else:
                _print(look, algorithm)
            if once:
                return
            sys.stdout.flush()
            time.sleep(interval)


def _read(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"can't read {path}: {error}") from None
    names = [name for line in lines if (name := line.partition("#")[0].strip())]
    if not names:
        raise InvalidArgument(f"{path} has no address: write one per line")
    return names


def _print(look: Look, algorithm: str) -> None:
    seen = look.picture
    count = len(seen.addresses)
    pairs = count * (count - 1) // 2
    click.echo(f"{count} nodes, survey: {seen.survey}, round trips known for {seen.pairs_known} of {pairs} pairs")
    rows = [
        [str(rank), address, " > ".join(place) or "-", _shortest(look, rank)]
        for rank, (address, place) in enumerate(zip(seen.addresses, seen.places, strict=True))
    ]
    print_table(["rank", "address", "place", "nearest"], rows)
    for note in look.notes:
        click.echo(f"note: {note}")
    if look.cost is None or look.planned is None or look.gain is None:
        click.echo("no proposal")
    elif look.proposal is None:
        click.echo(f"no proposal: the best order found saves only {max(look.gain, 0):.0%} of the cost of {algorithm}")
    else:
        click.echo(
            f"proposal: {algorithm} in {look.planned:,.0f} us instead of {look.cost:,.0f} us, {look.gain:.0%} less"
        )
        click.echo("order: " + " ".join(look.proposal))
    click.echo()


def _shortest(look: Look, rank: int) -> str:
    times = [time for other, time in enumerate(look.picture.times_us[rank]) if other != rank and time is not None]
    return f"{min(times):.0f} us" if times else "-"
