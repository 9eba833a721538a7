"""`hoplite study`: which library is fastest in which container set-up, and the report of such a run."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hoplite.errors import HopliteError, InvalidArgument
from hoplite.sizes import check_size
from hoplite.tools.cli.options import json_option, said
from hoplite.tools.cli.output import Notes, fail_with, print_json, print_table
from hoplite.tools.progress import Progress
from hoplite_bench.cli import bench_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.row import Row

FULL_BYTES = 10**9
ROWS = "rows.jsonl"
# Settings of --quick, except the layers.
QUICK = {
    "containers": ["bare", "cross"],
    "systems": ["mpich", "openmpi", "gloo", "hoplite"],
    "ops": ["broadcast", "gather", "allgather", "allreduce"],
    "workers": [1, 2],
    "nbytes": 8 << 20,
    "repeats": 3,
}
QUICK_TORCH = ["torch-gloo", "torch-hoplite"]


def size(_context: click.Context, _option: click.Parameter, value: str) -> int:
    """Parses a size in bytes."""
    try:
        return check_size("size", value)
    except HopliteError as error:
        raise click.BadParameter(f"{value!r} is not a size: set one such as 64MiB or 4096") from error


def names(context: click.Context, option: click.Parameter, value: str | None) -> list[str] | None:
    """Parses a list of words, if there is one."""
    return None if value is None else bench_options.words(context, option, value)


@click.group(invoke_without_command=True)
@click.option(
    "--containers",
    default="bare,hpc,single,cross",
    callback=bench_options.words,
    show_default=True,
    help="Container set-ups, separated by commas: bare processes, an HPC container (Charliecloud), a single container "
    "for all ranks, and a container per rank (cross).",
)
@click.option(
    "--layers",
    default="shell,torch",
    callback=bench_options.words,
    show_default=True,
    help="Layers, separated by commas: the libraries themselves (shell), and torch.distributed on them (torch).",
)
@click.option("--systems", callback=names, help="Systems, separated by commas.  [default: all of the layers]")
@click.option(
    "--ops",
    default="broadcast,gather,allgather,allreduce,train-ps,train-allreduce",
    callback=bench_options.words,
    show_default=True,
    help="Operations, separated by commas; training is measured with the largest number of workers only.",
)
@click.option(
    "--workers",
    default="1,2,3,4",
    callback=bench_options.counts,
    show_default=True,
    help="Numbers of workers, separated by commas; a broadcast and a gather have one more rank, the server.",
)
@click.option("--bytes", "nbytes", default="64MiB", callback=size, show_default=True, help="Size of each rank's array.")
@click.option(
    "--repeats", type=click.IntRange(1, 1000), default=10, show_default=True, help="Number of samples per cell."
)
@click.option("--full", is_flag=True, help="Measure arrays of 1 GB, as in the published study.")
@click.option(
    "--quick", is_flag=True, help="Measure a part within five minutes: 2 set-ups, 1 and 2 workers, 8 MiB, 3 repeats."
)
@click.option("--no-install", is_flag=True, help="Measure only systems that are already installed.")
@click.option("--resume", is_flag=True, help="Keep the rows of --out and measure only what is missing.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the rows to rows.jsonl in this folder, one JSON object per line.",
)
@json_option("Print the rows as one JSON list instead of a table.")
@click.pass_context
def study(context: click.Context, /, **options: Any) -> None:  # noqa: ANN401 - the type that click passes
    """Compare collective libraries in container set-ups.

    Repeats a published study on this machine: broadcast, gather, allgather and allreduce of MPICH, Open MPI, Gloo and
    Hoplite, as libraries and through PyTorch, and training, in bare processes and in containers. Every result is
    verified, and systems take turns. Records which transport each library used. Containers require root, runc and
    Charliecloud; a set-up that can't run has rows with the reason.

    \b
    Examples:
      hoplite study --quick --out study
      hoplite study --out study
      hoplite study --containers single,cross --layers shell --ops gather --workers 4 --out study
      hoplite study report study --out report
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    if context.invoked_subcommand is not None:
        bench_options.refuse_before(context)
        return
    from hoplite_bench import session
    from hoplite_bench.study import matrix, run

    bench_options.refuse_debug_build()
    _check(context, options)
    systems = matrix.systems(options["layers"], options["systems"])
    settings = run.Settings(
        systems=systems,
        cells=_cells(
            matrix.cells(options["containers"], options["ops"], options["workers"], options["nbytes"]), systems
        ),
        repeats=options["repeats"],
        install=not options["no_install"],
    )
    session.choose(settings.systems)
    out = options["out"]
    with bench_options.running(out):
        rows = run.measure(settings, _results(out, resume=options["resume"]))
    if options["as_json"]:
        print_json([dataclasses.asdict(row) for row in rows])
        return
    _print(rows)
    step = f"hoplite study report {out} --out DIR" if out else "save the rows with --out DIR"
    click.echo(f"for tables, figures and a comparison with the published study: {step}", err=True)


@study.command()
@click.argument("rows", metavar="ROWS", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the report; created if it does not exist.",
)
@click.option("--no-plots", is_flag=True, help="Write no figures; figures require Matplotlib.")
def report(rows: Path, out: Path, no_plots: bool) -> None:
    """Write a report that compares measured rows with the published study.

    ROWS is the folder or file that hoplite study --out wrote. Refuses rows without a verified result, rows of a debug
    build, and rows of several machines or sizes.

    \b
    Example:
      hoplite study report study --out report
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    from hoplite_bench import row, tables
    from hoplite_bench.study import report as job

    try:
        with Progress("writing the report"):
            written = job.write(row.read([rows / ROWS if rows.is_dir() else rows]), out, pictures=not no_plots)
    except row.BadRow as error:
        fail_with(str(error), "pass a file that hoplite study --out wrote, or delete this line")
    except tables.Unreportable as error:
        fail_with(str(error), "measure the cells again with hoplite study --out DIR")
    except HopliteError as error:
        fail_with(str(error), "add --no-plots to write no figures")
    except FileNotFoundError as error:
        fail_with(f"{error.filename} does not exist", "pass the folder that hoplite study --out wrote")
    except OSError as error:
        fail_with(f"can't read the rows or write the report: {error}", "set another folder with --out")
    click.echo(str(written[0]))


def _check(context: click.Context, options: dict[str, Any]) -> None:
    """Applies --quick and --full; refuses contradictory options."""
    if options["quick"] and options["full"]:
        raise click.UsageError("--quick and --full contradict each other: set one of them")
    if options["full"]:
        if said(context, "nbytes"):
            raise click.UsageError("--full sets the size to 1 GB: omit --bytes")
        options["nbytes"] = FULL_BYTES
    if options["quick"]:
        quick = dict(QUICK)
        if said(context, "systems") or said(context, "layers"):
            del quick["systems"]
        elif importlib.util.find_spec("torch") is not None:
            quick["systems"] = [*QUICK["systems"], *QUICK_TORCH]  # type: ignore[misc]
        options |= {name: value for name, value in quick.items() if not said(context, name)}
    if options["resume"] and options["out"] is None:
        raise click.UsageError("--resume continues the rows of --out: add --out DIR")


def _cells(cells: Sequence[Any], systems: Sequence[str]) -> list[Any]:
    """The cells for which there are systems: training is of PyTorch only."""
    from hoplite_bench.study import matrix

    has_torch = any(matrix.layer_of(name) == matrix.TORCH for name in systems)
    found = [cell for cell in cells if has_torch or cell.op not in matrix.TRAINING]
    if not found:
        raise InvalidArgument("training is of PyTorch only: add torch to --layers, or other operations to --ops")
    return found


def _results(out: Path | None, *, resume: bool) -> Any:  # noqa: ANN401 - imported lazily
    """The rows of an output folder, which is created.

    Raises:
        InvalidArgument: the folder can't be created or is not writable, or has rows and `resume` is not set.
    """
    from hoplite_bench.results import Results

    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(f"can't create the folder {out}: {error.strerror}; set another --out") from None
    return Results(out / ROWS if out else None, resume=resume, warn=bench_options.warn)


def _print(rows: Sequence[Row]) -> None:
    """Prints the fastest and the slowest library of each cell, and the reasons for missing figures."""
    from hoplite_bench import words
    from hoplite_bench.row import WIRE
    from hoplite_bench.study.times import best, competing, contender_of, on_gpu, workers_of, worst
    from hoplite_bench.tables import median, unique

    notes = Notes()
    lines = []
    rows = [row for row in rows if row.system != WIRE]

    def place(row: Row) -> tuple[str, int, str, str]:
        return row.op, workers_of(row), f"{row.layer} (GPU)" if on_gpu(row) else row.layer, row.container

    for key in unique(map(place, rows)):
        own = [row for row in rows if place(row) == key]
        ends = best(competing(own)), worst(competing(own))
        shown = [f"{contender_of(row)} {words.seconds(median(row))}" if row else "-" for row in ends]
        reasons = unique(row.note if row.hosts == 1 else f"{contender_of(row)}: {row.note}" for row in own if row.note)
        lines.append([*map(str, key), *shown, " ".join(map(notes.mark, reasons))])
    print_table(("operation", "workers", "layer", "set-up", "fastest", "slowest", "notes"), lines, whole=4)
    notes.print()
