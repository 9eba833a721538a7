"""`hoplite demo`: asynchronous training on real data."""

from __future__ import annotations

import sys

import click

from hoplite.extras import install
from hoplite.tools.cli.ending import ending_in_order
from hoplite.tools.cli.options import json_option
from hoplite.tools.cli.output import print_json


@click.command()
@click.option(
    "--steps",
    type=click.IntRange(min=4),
    default=None,
    metavar="N",
    help="Number of training steps.  [default: 160]",
)
@json_option("Print one JSON object instead of the progress display.")
def demo(steps: int | None, as_json: bool) -> None:
    """Train a neural network with four nodes and eight workers.

    All of them run on this machine. In each step, the workers put their gradients. The trainer sums the first five to
    arrive and puts the new weights, which the nodes relay. One worker is slow, one leaves halfway, and one joins
    late. Takes less than a minute.

    \b
    Example:
      hoplite demo --steps 40
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    from hoplite.tools.demo import limit_threads

    limit_threads()
    try:
        from hoplite.tools.demo import run
    except ModuleNotFoundError as error:
        click.echo(f"error: the demo needs {error.name}, which is not installed", err=True)
        click.echo(f"try: {install('demo')}", err=True)
        sys.exit(1)

    with ending_in_order():
        outcome = run.main(steps=steps if steps is not None else run.STEPS, show=not as_json)
    if as_json:
        print_json(outcome.as_json())
    else:
        click.echo(run.summary(outcome))
    for complaint in outcome.complaints():
        click.echo(f"error: {complaint}", err=True)
    if outcome.complaints():
        click.echo("try: run it with more --steps, or on an idle machine", err=True)
        sys.exit(1)
