"""`hoplite bench local`: what one host does alone."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from hoplite._arguments import check_capacity
from hoplite.cli.output import fail_with, print_json, print_table, size
from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from pathlib import Path

    from hoplite.bench.row import Row


@click.command()
@click.option("--sizes", default="1KiB,1MiB,256MiB", show_default=True, help="Of an array.")
@click.option("--repeats", type=click.IntRange(1, 1000), default=5, show_default=True, help="Samples of each case.")
@click.option("--out", type=click.Path(dir_okay=False), help="A file to add the rows to, one JSON object a line.")
@click.option("--no-install", is_flag=True, help="Take Ray only if it is installed already.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as one JSON list instead of a table.")
def local(sizes: str, repeats: int, out: Path | None, no_install: bool, as_json: bool) -> None:
    """Measure what one host does alone; every answer is verified.

    Puts, gets and reduces of Hoplite beside a plain copy of as many bytes and Ray's put and get; and how long the
    directory takes to write and to look up a location. Takes 20 times the largest size of memory.

    \b
    Examples:
      hoplite bench local
      hoplite bench local --sizes 1MiB --out rows.jsonl
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    try:
        from hoplite.bench import local as job
        from hoplite.bench.environments import Environments
        from hoplite.bench.row import to_line
    except ModuleNotFoundError as error:
        fail_with(f"the benchmarks need {error.name}", "pip install 'hoplite-collectives[bench]'")

    rows = []
    with click.open_file(out or "/dev/null", "a") as file:
        for row in job.measure(
            sizes=[_size(text) for text in sizes.split(",")],
            repeats=repeats,
            environments=Environments(install=not no_install),
            report_progress=lambda text: click.echo(text, err=True),
        ):
            rows.append(row)
            file.write(to_line(row) + "\n")
            file.flush()
    if as_json:
        print_json([dataclasses.asdict(row) for row in rows])
    else:
        print_table(
            ("op", "size", "system", "variant", "median", "min", "max", "per second", "note"), map(_cells, rows)
        )


def _size(text: str) -> int:
    try:
        count = check_capacity(text)
    except HopliteError as error:
        raise click.BadParameter(f"{text!r} is no size such as 1KiB or 4096", param_hint="--sizes") from error
    assert count is not None
    return count


def _cells(row: Row) -> list[str]:
    cells = [row.op, size(row.bytes), row.system, row.variant]
    if row.seconds is None:
        return [*cells, "", "", "", "", row.note]
    cells += [f"{row.seconds[what] * 1e6:.1f} us" for what in ("median", "min", "max")]
    return [*cells, f"{1 / row.seconds['median']:.0f}", row.note]
