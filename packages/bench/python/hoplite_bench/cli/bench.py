"""`hoplite bench`: compares Hoplite with other systems, and measures this machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hoplite.tools.cli.options import json_option, said
from hoplite.tools.cli.output import Notes, print_json, print_table
from hoplite.tools.cli.racks import check_racks_and_pods, racks_and_pods, size_of
from hoplite.tools.progress import Progress
from hoplite_bench.cli import (
    bench_apps,
    bench_dask,
    bench_local,
    bench_options,
    bench_report,
    bench_steady,
    bench_weights,
)

if TYPE_CHECKING:
    from hoplite_bench.row import Row

SYSTEMS = "wire,hoplite,mpich,openmpi,gloo,ray,dask"
OPS = "rtt,broadcast,gather,reduce,allreduce"
# Settings of --quick: the systems that install in seconds, and the operations that differ most between systems.
QUICK = {
    "systems": ["wire", "hoplite", "mpich", "gloo"],
    "ops": ["broadcast", "reduce", "allreduce"],
    "sizes": [2**10, 2**20, 2**25],
    "repeats": 3,
    "lab": 4,
}


@click.group(invoke_without_command=True)
@click.option("--lab", type=click.IntRange(2, 64), help="Create a lab of N hosts on this machine and measure there.")
@click.option(
    "--rate", default="1gbit", show_default=True, help="Rate of each host's link; with --hosts, set it if it is known."
)
@bench_options.flow_cap
@racks_and_pods
@click.option(
    "--hosts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Measure between the hosts in this file.",
)
@click.option("--rsh", default="ssh", show_default=True, help="Remote shell for the hosts of --hosts.")
@click.option(
    "--systems",
    default=SYSTEMS,
    callback=bench_options.words,
    show_default=True,
    help="Systems to measure, separated by commas; the plain TCP stream (wire) is always measured. "
    "On request also hoplite-cpp, which needs libhoplite, and torch-gloo, torch-mpi and torch-hoplite, which need 6 GB "
    "of disk.",
)
@click.option(
    "--ops",
    default=OPS,
    callback=bench_options.words,
    show_default=True,
    help="Operations, separated by commas; also allgather, and for PyTorch ddp, the communication of a training step.",
)
@click.option(
    "--sizes",
    default="1KiB,1MiB,32MiB",
    callback=bench_options.sizes,
    show_default=True,
    help="Sizes of each participant's array, separated by commas.",
)
@click.option(
    "--repeats", type=click.IntRange(1, 1000), default=5, show_default=True, help="Number of samples per case."
)
@click.option(
    "--arrival",
    default="0",
    callback=bench_options.seconds,
    show_default=True,
    help="Delays between participants' calls, in seconds, separated by commas.",
)
@click.option(
    "--inputs-per-host",
    default="1",
    callback=bench_options.counts,
    show_default=True,
    help="Numbers of arrays per host in a sum, separated by commas. Above 1, systems limited to one array are skipped.",
)
@click.option("--plain", is_flag=True, help="Also measure Hoplite without encryption.")
@bench_options.rows_file
@click.option("--no-install", is_flag=True, help="Measure only systems that are already installed.")
@click.option("--quick", is_flag=True, help="Print a first table in two minutes: 4 hosts, few systems, 3 repeats.")
@json_option("Print the rows as one JSON list instead of a table.")
@click.pass_context
def bench(context: click.Context, /, **options: Any) -> None:  # noqa: ANN401 - the type that click passes
    """Compare Hoplite with Open MPI, MPICH, Gloo, Ray and Dask.

    Every result is verified. Runs are interleaved: one system at a time uses the machine. Each latency is also printed
    as a multiple of the time that one plain TCP stream needs for the same bytes. --lab and --racks create a lab of
    network namespaces, which requires root. --hosts measures real hosts. Each line of its file has a host name that ssh
    reaches and, if it differs, the address on the network to measure.

    \b
    Examples:
      hoplite bench --quick
      hoplite bench --lab 8 --rate 1gbit --sizes 1KiB,1MiB,32MiB --out rows.jsonl
      hoplite bench --lab 8 --systems torch-gloo,torch-hoplite --ops allreduce,ddp
      hoplite bench --hosts hosts.txt --systems hoplite,mpich --out rows.jsonl
      hoplite bench report rows.jsonl --out report
      hoplite bench local
      hoplite bench dask
      hoplite bench weights
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
            links = {name: options[name] for name in ("rate", "flow_cap")}
            with Lab(hosts=options["lab"], **links, **size_of(options)) as lab:
                rows = session.measure(hosts.of_lab(lab), settings, results)
    if options["as_json"]:
        print_json([dataclasses.asdict(row) for row in rows])
    else:
        _print(rows)
        next_step = (
            f"hoplite bench report {options['out']} --out DIR" if options["out"] else "save the rows with --out FILE"
        )
        click.echo(f"only the fastest variant of each system is shown; for all variants: {next_step}", err=True)


def _check_where(context: click.Context, options: dict[str, Any]) -> None:
    """Refuses contradictory options, and options without effect."""
    if sum(bool(options[name]) for name in ("lab", "racks", "hosts")) != 1:
        raise click.UsageError("set exactly one of --lab 8, --racks 4,4, --hosts FILE and --quick")
    check_racks_and_pods(options)
    if said(context, "rsh") and not options["hosts"]:
        raise click.UsageError("--rsh applies to real hosts: add --hosts FILE")
    if options["flow_cap"] and options["hosts"]:
        raise click.UsageError("--flow-cap applies to hosts of a lab: add --lab 8 or --racks 4,4 instead of --hosts")
    bench_options.check_resume(options["out"], resume=options["resume"])


def _rate(context: click.Context, rate: str) -> int:
    """The rate of real hosts' links in bit/s; 0 unless --rate was given."""
    from hoplite_bench.lab.quantities import parse_rate

    return parse_rate(rate) if said(context, "rate") else 0


def _print(rows: list[Row]) -> None:
    """Prints a summary table, one column per system; `report` writes the full one."""
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
    """Formats a system's median, its ratio to the wire, and the numbers of notes on failures."""
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
    """Measure four basic operations on loopback.

    Measures a broadcast, a get from the local node, a small object between two nodes, and many clients of one node.
    Needs about 5 GiB of memory and one minute.

    \b
    Example:
      hoplite bench smoke --json
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    from hoplite_bench import smoke as job

    bench_options.refuse_debug_build()
    with Progress("measuring four operations"):
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
bench.add_command(bench_weights.weights)
