"""`hoplite bench`: Hoplite beside what people would use instead, and figures of this machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hoplite.tools.cli.options import json_option, said
from hoplite.tools.cli.output import Notes, print_json, print_table
from hoplite.tools.cli.racks import check_racks_and_pods, racks_and_pods, size_of
from hoplite_bench.cli import bench_apps, bench_dask, bench_local, bench_options, bench_report, bench_steady

if TYPE_CHECKING:
    from hoplite_bench.row import Row

SYSTEMS = "wire,hoplite,mpich,openmpi,gloo,ray,dask"
OPS = "rtt,broadcast,gather,reduce,allreduce"
# What a first look takes: the systems that install in seconds, and the operations that tell most.
QUICK = {
    "systems": ["wire", "hoplite", "mpich", "gloo"],
    "ops": ["broadcast", "reduce", "allreduce"],
    "sizes": [2**10, 2**20, 2**25],
    "repeats": 3,
    "lab": 4,
}


@click.group(invoke_without_command=True)
@click.option("--lab", type=click.IntRange(2, 64), help="Measure between so many hosts that are made on this machine.")
@click.option("--rate", default="1gbit", show_default=True, help="Of each host's link; of --hosts, if it is known.")
@racks_and_pods
@click.option("--hosts", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file of real hosts.")
@click.option("--rsh", default="ssh", show_default=True, help="The command that reaches the hosts of --hosts.")
@click.option(
    "--systems",
    default=SYSTEMS,
    callback=bench_options.words,
    show_default=True,
    help="What to measure; the wire is always measured.",
)
@click.option("--ops", default=OPS, callback=bench_options.words, show_default=True, help="Which operations.")
@click.option(
    "--sizes",
    default="1KiB,1MiB,32MiB",
    callback=bench_options.sizes,
    show_default=True,
    help="Of each participant's array.",
)
@click.option("--repeats", type=click.IntRange(1, 1000), default=5, show_default=True, help="Samples of each cell.")
@click.option(
    "--arrival",
    default="0",
    callback=bench_options.seconds,
    show_default=True,
    help="Seconds between participants' calls; several with commas.",
)
@click.option(
    "--inputs-per-host",
    default="1",
    callback=bench_options.counts,
    show_default=True,
    help="Arrays of each host that go into a sum; several with commas. Systems that take one are left out of more.",
)
@click.option("--plain", is_flag=True, help="Measure Hoplite without encryption too.")
@bench_options.rows_file
@click.option("--no-install", is_flag=True, help="Take only systems that are installed already.")
@click.option("--quick", is_flag=True, help="A first table in two minutes: four hosts, few systems, three repeats.")
@json_option("Print the rows as one JSON list instead of a table.")
@click.pass_context
def bench(context: click.Context, /, **options: Any) -> None:  # noqa: ANN401 - as click gives them
    """Measure Hoplite, Open MPI, MPICH, Gloo, Ray and Dask side by side; every answer is verified.

    Systems take turns, each alone on the machine, and are compared to one plain TCP stream of the same bytes. Needs
    root for a lab of network namespaces, or a file of hosts that ssh reaches: on each line a name, and the address on
    the network to measure if that is another.

    \b
    Examples:
      hoplite bench --quick
      hoplite bench --lab 8 --rate 1gbit --sizes 1KiB,1MiB,32MiB --out rows.jsonl
      hoplite bench --hosts hosts.txt --systems hoplite,mpich --out rows.jsonl
      hoplite bench report rows.jsonl --out report
      hoplite bench local
      hoplite bench dask
      hoplite bench apps --app async
      hoplite bench steady --pattern async
      hoplite bench smoke
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    if context.invoked_subcommand is not None:
        bench_options.refuse_before(context)
        return
    from hoplite_bench import hosts, plan, session
    from hoplite_bench.results import Results

    bench_options.refuse_debug_build()
    if options["quick"]:
        options |= {name: value for name, value in QUICK.items() if not said(context, name)}
        if options["hosts"] or options["racks"]:
            options["lab"] = None
    _check_where(context, options)
    settings = session.Settings(
        systems=options["systems"],
        cells=plan.cells(options["ops"], options["sizes"], options["arrival"], options["inputs_per_host"]),
        repeats=options["repeats"],
        install=not options["no_install"],
        plain=options["plain"],
    )
    session.choose(settings.systems)
    with bench_options.running(options["out"]):
        if options["hosts"]:
            network = hosts.of_file(options["hosts"], rsh=options["rsh"], rate=_rate(context, options["rate"]))
            results = Results(options["out"], resume=options["resume"], warn=bench_options.warn)
            rows = session.measure(network, settings, results)
        else:
            from hoplite_bench.lab import Lab

            results = Results(options["out"], resume=options["resume"], warn=bench_options.warn)
            with Lab(hosts=options["lab"], rate=options["rate"], **size_of(options)) as lab:
                rows = session.measure(hosts.of_lab(lab), settings, results)
    if options["as_json"]:
        print_json([dataclasses.asdict(row) for row in rows])
    else:
        _print(rows)
        kept = f"hoplite bench report {options['out']} --out DIR" if options["out"] else "--out FILE keeps them"
        click.echo(f"of several variants of a system the fastest; for all, with their spread: {kept}", err=True)


def _check_where(context: click.Context, options: dict[str, Any]) -> None:
    """Refuses options that would say nothing beside the others."""
    if sum(bool(options[name]) for name in ("lab", "racks", "hosts")) != 1:
        raise click.UsageError("say where: --lab 8, --racks 4,4, --hosts FILE or --quick; one of them")
    check_racks_and_pods(options)
    if said(context, "rsh") and not options["hosts"]:
        raise click.UsageError("--rsh reaches real hosts: say --hosts FILE")
    bench_options.check_resume(options["out"], resume=options["resume"])


def _rate(context: click.Context, rate: str) -> int:
    """Of real hosts only what was said is known."""
    from hoplite_bench.lab.quantities import parse_rate

    return parse_rate(rate) if said(context, "rate") else 0


def _print(rows: list[Row]) -> None:
    """A table for a first look, systems side by side; `report` writes the one to keep."""
    from hoplite_bench import tables, words

    notes = Notes()
    systems = tables.systems(rows)
    is_late = any(row.arrival_s for row in rows)
    lines = []
    for cell in tables.unique((row.what, row.bytes, row.arrival_s) for row in rows):
        op, nbytes, late = cell
        own = [row for row in rows if (row.what, row.bytes, row.arrival_s) == cell]
        lines.append([op, words.size(nbytes), *([words.seconds(late)] if is_late else [])])
        lines[-1] += [_figure([row for row in own if row.system == system], notes) for system in systems]
    print_table(("op", "size", *(["late by"] if is_late else []), *map(words.name, systems)), lines, whole=2)
    notes.print()


def _figure(rows: list[Row], notes: Notes) -> str:
    """The median of a system and how many times the wire that is; numbers of notes for what went wrong."""
    from hoplite_bench import tables, words
    from hoplite_bench.row import WIRE

    if not rows:
        return "-"
    best = tables.best(rows, rows[0].system)
    assert best is not None
    text = "no figure"
    if best.seconds is not None:
        text = words.seconds(best.seconds["median"])
        if best.wire_ratio is not None and best.system != WIRE:
            text += f" {words.number(best.wire_ratio)}×"
    is_alone = len(rows) == 1 or not any(row.samples for row in rows)
    named = [
        (row.note, words.name(row.system) if is_alone else f"{words.name(row.system)} {row.variant}") for row in rows
    ]
    return " ".join([text, *tables.unique(notes.mark(f"{name}: {note}") for note, name in named if note)])


@bench.command()
@json_option("Print one JSON object.")
def smoke(as_json: bool) -> None:
    """Measure one broadcast, one local get, one small object and many clients, on loopback.

    Takes about 5 GiB of memory and a minute.

    \b
    Example:
      hoplite bench smoke --json
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    from hoplite_bench import smoke as job

    bench_options.refuse_debug_build()
    report = job.main()
    if as_json:
        print_json(report)
    else:
        click.echo(job.summary(report))


bench.add_command(bench_report.report)
bench.add_command(bench_local.local)
bench.add_command(bench_apps.apps)
bench.add_command(bench_dask.dask)
bench.add_command(bench_steady.steady)
