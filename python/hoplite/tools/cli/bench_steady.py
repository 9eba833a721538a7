"""`hoplite bench steady`: whether long runs of a pattern stay at their bound."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hoplite.tools import peace
from hoplite.tools.cli import bench_options
from hoplite.tools.cli.options import json_option
from hoplite.tools.cli.output import fail_with, print_json, print_table

if TYPE_CHECKING:
    from hoplite.tools.bench.row import Row

PATTERNS = ("async", "sync", "gradients")
FAULTS = ("none", "cut", "kill", "freeze", "slow")


@click.command()
@click.option("--lab", "hosts", type=click.IntRange(3, 64), default=8, show_default=True, help="Number of hosts.")
@click.option("--rate", default="500mbit", show_default=True, help="Rate of each host's link.")
@click.option(
    "--pattern",
    "patterns",
    default="async",
    show_default=True,
    callback=bench_options.words,
    help=f"Patterns, with commas: {', '.join(PATTERNS)}.",
)
@click.option("--size", default="16MiB", show_default=True, callback=bench_options.sizes, help="Size of each object.")
@click.option("--steps", type=click.IntRange(2, 100_000), default=300, show_default=True, help="Steps of each run.")
@click.option(
    "--fault",
    type=click.Choice(FAULTS),
    default="none",
    show_default=True,
    help="Fault to inject at 15 % and 30 % of the run.",
)
@click.option(
    "--workers-per-host",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Workers on each host but the server's.",
)
@click.option("--no-survey", is_flag=True, help="Start nodes that do not survey which hosts share a rack.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append the rows to this file, one JSON object a line.",
)
@json_option("Print the rows as one JSON list instead of tables.")
def steady(**options: Any) -> None:  # noqa: ANN401 - as click gives them
    """Run whole patterns for many steps and compare each step with its bound; every result is verified.

    \b
    Example:
      hoplite bench steady --lab 8 --rate 500mbit --pattern async --size 16MiB --steps 300
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    try:
        from hoplite.tools.bench.row import to_line
        from hoplite.tools.bench.steady import run
        from hoplite.tools.bench.steady.team import Settings
        from hoplite.tools.lab import Lab
    except ModuleNotFoundError as error:
        fail_with(f"the benchmarks need {error.name}", "pip install 'hoplite-collectives[bench]'")

    bench_options.refuse_debug_build()
    rows = []
    with bench_options.running(None), Lab(hosts=options["hosts"], rate=options["rate"]) as lab:
        for pattern in options["patterns"]:
            settings = Settings(
                pattern,
                options["size"][0],
                options["steps"],
                options["fault"],
                options["workers_per_host"],
                not options["no_survey"],
            )
            rows.append(run.measure(lab, settings, lambda text: click.echo(text, err=True)))
            if options["out"]:
                with options["out"].open("a") as file:
                    file.write(to_line(rows[-1]) + "\n")
    if options["as_json"]:
        print_json([dataclasses.asdict(row) for row in rows])
    else:
        for row in rows:
            _print(row)


def _print(row: Row) -> None:
    """Tables of one run: the figures, its tenths, its links, its faults."""
    facts = row.steady
    assert facts is not None
    bound, tenths = facts["bound_s"], facts["tenths"]

    def over(samples: list[float]) -> str:
        return f"{statistics.median(samples) / bound:.2f}×"

    median = f"{statistics.median(row.samples):.3f} s"
    ratios = [over(part) for part in (row.samples, row.samples[:20], row.samples[-100:])]
    figures = [row.op, row.variant, f"{bound:.3f} s", median, *ratios, f"{facts['trend']:.3f}"]
    columns = ("pattern", "variant", "bound", "median", "of bound", "first 20", "last 100", "trend", "max")
    print_table(columns, [[*figures, f"{max(row.samples):.3f} s"]])
    click.echo()
    print_table(
        ("tenth", *(str(number) for number in range(1, len(tenths) + 1))),
        [
            ["median, s", *(f"{seconds:.3f}" for seconds in tenths)],
            ["of bound", *(f"{seconds / bound:.2f}" for seconds in tenths)],
            ["copies that the source sent in a step", *(f"{copies:.2f}" for copies in facts["direct"])],
        ],
    )
    click.echo()
    shares = facts["links"].values()
    print_table(
        ("link", *facts["links"]),
        [
            [f"{word}, % of its rate", *(f"{100 * one[at]:.0f}" for one in shares)]
            for at, word in enumerate(("sent", "received"))
        ],
    )
    for fault in facts["faults"]:
        after = fault["recovery_steps"]
        how = "did not recover" if after is None else f"recovered after {after} steps"
        span = f"{fault['begin_s']:.1f} to {fault['end_s']:.1f} s, after step {fault['step']}"
        click.echo(f"{facts['fault']} {fault['host']} from {span}: {how}")
    for host, counters in facts["counters"].items():
        if moved := peace.disturbances(counters):
            click.echo(f"{host}: {', '.join(moved)}")
    click.echo()
