"""`hoplite bench steady`: compares the steps of long runs with their lower bound."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from hoplite.errors import InvalidArgument
from hoplite.sizes import check_size
from hoplite.tools.cli.options import json_option
from hoplite.tools.cli.output import print_json, print_table
from hoplite.tools.progress import Progress
from hoplite_bench.cli import bench_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite_bench.row import Row
    from hoplite_bench.steady.team import Settings

FAULTS = ("none", "cut", "kill", "freeze", "slow")
JOBS_HOSTS = 4


@click.command()
@click.option("--lab", "hosts", type=click.IntRange(3, 64), default=8, show_default=True, help="Number of hosts.")
@click.option("--rate", default="500mbit", show_default=True, help="Rate of each host's link.")
@bench_options.flow_cap
@click.option(
    "--pattern",
    "patterns",
    default="async",
    show_default=True,
    callback=bench_options.words,
    help="Patterns, separated by commas: async, sync, samples, gradients, serving, eviction.",
)
@click.option("--size", help="Size of each object.  [default: 16MiB; 256KiB for eviction]")
@click.option(
    "--steps", type=click.IntRange(2, 1_000_000), help="Steps of each run.  [default: 300; 2000 for eviction]"
)
@click.option(
    "--fault",
    type=click.Choice(FAULTS),
    default="none",
    show_default=True,
    help="Inject this fault at 15 % and at 30 % of the run.",
)
@click.option(
    "--workers-per-host",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Workers on each host except the server's.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 2),
    default=1,
    show_default=True,
    help="Number of jobs; 2 runs one job alone, then two at the same time.",
)
@click.option("--no-survey", is_flag=True, help="Disable the survey with which nodes detect shared racks.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append the rows to this file, one JSON object per line.",
)
@json_option("Print the rows as one JSON list instead of tables.")
def steady(**options: Any) -> None:  # noqa: ANN401 - the type that click passes
    """Compare step times of long runs with their lower bound.

    The patterns are a parameter server (async, sync), reinforcement learning (samples, gradients), an ensemble that
    serves queries (serving) and readers with small stores (eviction). The server runs on the first host, and the
    workers run on the others. Every result is verified. Requires root, for a lab of network namespaces.

    \b
    Examples:
      hoplite bench steady --lab 8 --rate 500mbit --out rows.jsonl
      hoplite bench steady --pattern async,sync --steps 100 --fault cut
      hoplite bench report rows.jsonl --out report
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    from hoplite_bench.lab import Lab
    from hoplite_bench.row import to_line
    from hoplite_bench.steady import run

    runs = _runs(options)
    bench_options.refuse_debug_build()
    rows: list[Row] = []
    with (
        bench_options.running(None),
        _appending(options["out"]) as file,
        Progress("starting hosts and workers") as progress,
        Lab(hosts=options["hosts"], rate=options["rate"], flow_cap=options["flow_cap"]) as lab,
    ):
        for settings in runs:
            for row in run.measure(lab, settings, progress.notify, jobs=options["jobs"]):
                rows.append(row)
                if file is not None:
                    file.write(to_line(row) + "\n")
                    file.flush()
    if options["as_json"]:
        print_json([dataclasses.asdict(row) for row in rows])
    else:
        for row in rows:
            _print(row)


def _runs(options: dict[str, Any]) -> list[Settings]:
    """Checks the requested runs and returns their settings.

    Raises:
        InvalidArgument: a run is not possible; the message names a setting that is.
    """
    from hoplite_bench.steady.patterns import PATTERNS, check
    from hoplite_bench.steady.team import Settings

    if options["jobs"] > 1:
        _check_jobs(options)
    nbytes = None if options["size"] is None else check_size("size", options["size"])
    runs = []
    for name in options["patterns"]:
        pattern = PATTERNS.get(name)
        settings = Settings(
            pattern=name,
            nbytes=nbytes or (pattern.nbytes if pattern else 0),
            steps=options["steps"] or (pattern.steps if pattern else 0),
            fault=options["fault"],
            per_host=options["workers_per_host"],
            survey=not options["no_survey"],
        )
        check(settings, hosts=options["hosts"])
        runs.append(settings)
    return runs


def _check_jobs(options: dict[str, Any]) -> None:
    """Refuses options that two jobs do not support."""
    if options["patterns"] != ["async"]:
        raise InvalidArgument("--jobs 2 runs two asynchronous parameter servers: set --pattern async")
    if options["fault"] != "none":
        raise InvalidArgument("--jobs 2 compares undisturbed runs: omit --fault")
    if options["hosts"] < JOBS_HOSTS:
        raise InvalidArgument(f"--jobs 2 needs two servers with two workers each: set --lab to at least {JOBS_HOSTS}")


@contextlib.contextmanager
def _appending(path: Path | None) -> Iterator[TextIO | None]:
    """Opens the file to append rows to, before anything is measured; yields None without a path.

    Raises:
        InvalidArgument: the file is not writable.
    """
    if path is None:
        yield None
        return
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"can't write rows to {path}: {error.strerror}; set another --out") from None
    with file:
        yield file


def _print(row: Row) -> None:
    """Prints the tables of one run: its figures, its tenths, its links, and remarks."""
    from hoplite_bench.steady import summary

    facts, bound = summary.facts_of(row), summary.summarize(row).bound
    print_table(summary.COLUMNS, [summary.cells(row)])
    click.echo()
    tenths = facts["tenths"]
    print_table(
        ("tenth of the run", *(str(number) for number in range(1, len(tenths) + 1))),
        [
            ["step, s", *(f"{seconds:.3f}" for seconds in tenths)],
            ["× bound", *(f"{seconds / bound:.2f}" for seconds in tenths)],
            ["copies sent by the source", *(f"{copies:.2f}" for copies in facts["direct"])],
        ],
    )
    click.echo()
    shares = facts["links"].values()
    print_table(
        ("link", *facts["links"]),
        [
            [f"{word}, % of its rate", *(f"{100 * share[at]:.0f}" for share in shares)]
            for at, word in enumerate(("sent", "received"))
        ],
    )
    for remark in summary.remarks(row):
        click.echo(remark)
    click.echo()
