"""`hoplite bench`: figures of this machine."""

from __future__ import annotations

import sys

import click

from hoplite.cli.output import print_json


@click.group()
def bench() -> None:
    """Measure this machine; every answer is verified before it is timed.

    \b
    Example:
      hoplite bench smoke
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines


@bench.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def smoke(as_json: bool) -> None:
    """Measure one broadcast, one local get, one small object and many clients, on loopback.

    Takes about 5 GiB of memory and a minute.

    \b
    Example:
      hoplite bench smoke --json
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    try:
        from hoplite.bench import smoke as job
    except ModuleNotFoundError as error:
        click.echo(f"error: the benchmarks need {error.name}", err=True)
        click.echo("try: pip install 'hoplite-collectives[numpy]'", err=True)
        sys.exit(1)

    report = job.main()
    if as_json:
        print_json(report)
    else:
        click.echo(job.summary(report))
