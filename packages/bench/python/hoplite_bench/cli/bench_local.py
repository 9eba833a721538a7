"""`hoplite bench local`: measures operations of a single host."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from hoplite.tools.cli.options import json_option
from hoplite.tools.cli.output import Notes, print_json, print_table
from hoplite.tools.progress import Progress
from hoplite_bench.cli import bench_options

if TYPE_CHECKING:
    from pathlib import Path

    from hoplite_bench.local_cases import Case
    from hoplite_bench.row import Row


@click.command()
@click.option(
    "--sizes",
    default="1KiB,1MiB,256MiB",
    callback=bench_options.sizes,
    show_default=True,
    help="Sizes of the array, separated by commas.",
)
@click.option(
    "--repeats", type=click.IntRange(1, 1000), default=5, show_default=True, help="Number of samples per case."
)
@bench_options.rows_file
@click.option("--no-install", is_flag=True, help="Use Ray only if it is already installed.")
@json_option("Print the rows as one JSON list instead of a table.")
def local(sizes: list[int], repeats: int, out: Path | None, resume: bool, no_install: bool, as_json: bool) -> None:
    """Measure operations of a single host.

    Compares puts, gets and reduces of Hoplite in Python and C++ with a plain copy of the same bytes and with Ray's put
    and get. Also measures how long the directory takes to register and to look up a location. Every result is
    verified. Needs 25 times as much memory as the largest size.

    \b
    Examples:
      hoplite bench local
      hoplite bench local --sizes 1MiB --out rows.jsonl
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    from hoplite_bench import local as job
    from hoplite_bench import machine
    from hoplite_bench.environments import Environments
    from hoplite_bench.results import Results

    bench_options.refuse_debug_build()
    bench_options.check_resume(out, resume=resume)
    with bench_options.running(out), Progress("starting") as progress:
        results = Results(out, resume=resume, warn=bench_options.warn)
        if strange := results.strange(job.NETWORK, machine.facts()):
            bench_options.warn(strange)
        there = {row.key(): row for row in results.on(job.NETWORK)}

        def is_done(case: Case) -> bool:
            row = there.get((case.system, case.variant, case.op, 1, case.nbytes, 0.0, 1))
            return row is not None and bool(row.samples or row.note == case.unavailable)

        for fresh in job.measure(
            sizes=sizes,
            repeats=repeats,
            environments=Environments(install=not no_install),
            report_progress=progress.notify,
            is_done=is_done,
        ):
            results.add([fresh])
    rows = results.on(job.NETWORK)
    if as_json:
        print_json([dataclasses.asdict(row) for row in rows])
    else:
        notes = Notes()
        columns = ("op", "size", "system", "variant", "median", "min", "max", "per second", "notes")
        print_table(columns, [_cells(row, notes) for row in rows], whole=2)
        notes.print()


def _cells(row: Row, notes: Notes) -> list[str]:
    from hoplite_bench import words

    cells = [row.op, words.size(row.bytes), words.name(row.system), row.variant]
    if row.seconds is None:
        cells += ["no figure", "", "", ""]
    else:
        cells += [words.seconds(row.seconds[what]) for what in ("median", "min", "max")]
        cells.append(f"{1 / row.seconds['median']:,.0f}")
    return [*cells, notes.mark(row.note) if row.note else ""]
