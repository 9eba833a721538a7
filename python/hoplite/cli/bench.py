"""`hoplite bench`: Hoplite beside what people would use instead, and figures of this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hoplite._arguments import check_capacity
from hoplite.cli import bench_local, bench_report
from hoplite.cli.output import fail_with, print_json, print_table
from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from hoplite.bench.row import Row

SYSTEMS = "wire,hoplite,mpich,openmpi,gloo,ray,dask"
OPS = "rtt,broadcast,gather,reduce,allreduce"
SIZES = "1KiB,1MiB,32MiB"
FIGURES = ("median", "min", "max")
# What a first look takes: the systems that install in seconds, and the operations that tell most.
QUICK = {
    "systems": "wire,hoplite,mpich,gloo",
    "ops": "broadcast,reduce,allreduce",
    "sizes": "1KiB,1MiB,32MiB",
    "repeats": 3,
    "lab": 4,
}


@click.group(invoke_without_command=True)
@click.option("--lab", type=click.IntRange(2, 64), help="Measure between so many hosts that are made on this machine.")
@click.option("--rate", default="1gbit", show_default=True, help="Of each lab host's link, both ways.")
@click.option("--racks", help="Lab hosts by rack, such as 4,4, instead of --lab.")
@click.option("--uplink", help="Of each rack's link to the core; the default is that of all its hosts together.")
@click.option("--hosts", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file of real hosts.")
@click.option("--rsh", default="ssh", show_default=True, help="The command that reaches the hosts of --hosts.")
@click.option("--systems", default=SYSTEMS, show_default=True, help="What to measure; the wire is always measured.")
@click.option("--ops", default=OPS, show_default=True, help="Which operations.")
@click.option("--sizes", default=SIZES, show_default=True, help="Of each participant's array.")
@click.option("--repeats", type=click.IntRange(1, 1000), default=5, show_default=True, help="Samples of each cell.")
@click.option(
    "--arrival", default="0", show_default=True, help="Seconds between participants' calls; several with commas."
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="A file for the rows, one JSON object a line."
)
@click.option("--resume", is_flag=True, help="Go on where an interrupted run left --out.")
@click.option("--no-install", is_flag=True, help="Take only systems that are installed already.")
@click.option("--quick", is_flag=True, help="A first table in two minutes: four hosts, few systems, three repeats.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as one JSON list instead of a table.")
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
      hoplite bench smoke
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    if context.invoked_subcommand is not None:
        return
    try:
        from hoplite.bench import hosts, machine, plan, session
    except ModuleNotFoundError as error:
        fail_with(f"the benchmarks need {error.name}", "pip install 'hoplite-collectives[bench]'")

    if options["quick"]:
        unsaid = [name for name in QUICK if context.get_parameter_source(name) is click.core.ParameterSource.DEFAULT]
        options |= {name: QUICK[name] for name in unsaid}
        if options["hosts"] or options["racks"]:
            options["lab"] = None
    machine.refuse_debug_build()
    if sum(bool(options[name]) for name in ("lab", "racks", "hosts")) != 1:
        raise click.UsageError("say where: --lab 8, --racks 4,4, --hosts FILE or --quick; one of them")
    settings = session.Settings(
        systems=_words(options["systems"]),
        cells=plan.cells(
            _words(options["ops"]),
            [_size(size) for size in _words(options["sizes"])],
            [_seconds(interval) for interval in _words(options["arrival"])],
        ),
        repeats=options["repeats"],
        out=options["out"],
        resume=options["resume"],
        install=not options["no_install"],
    )
    session.choose(settings.systems)
    session.check(settings)
    if options["hosts"]:
        rows = session.measure(hosts.of_file(options["hosts"], rsh=options["rsh"]), settings)
    else:
        from hoplite.lab import Lab

        size: dict[str, Any] = {"hosts": options["lab"]}
        if options["racks"]:
            size = {"racks": [_count(word) for word in _words(options["racks"])], "uplink": options["uplink"]}
        with Lab(**size, rate=options["rate"]) as lab:
            rows = session.measure(hosts.of_lab(lab), settings)
    if options["as_json"]:
        import dataclasses

        print_json([dataclasses.asdict(row) for row in rows])
    else:
        _print(rows)


def _print(rows: list[Row]) -> None:
    """A table for a first look; `report` writes the one to keep."""
    from hoplite.cli.output import size

    print_table(
        ("op", "hosts", "size", "late by", "system", "variant", *FIGURES, "to the wire"),
        [
            (
                row.op,
                str(row.hosts),
                size(row.bytes),
                f"{row.arrival_s:g} s" if row.arrival_s else "",
                row.system,
                row.variant,
                *(
                    [_time(row.seconds[name]) for name in ("median", "min", "max")]
                    if row.seconds
                    else [row.note, "", ""]
                ),
                f"{row.wire_ratio:.2f}" if row.wire_ratio else "",
            )
            for row in rows
        ],
    )


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.3f} s"


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _size(text: str) -> int:
    try:
        count = check_capacity(text)
    except HopliteError as error:
        raise click.BadParameter(f"{text!r} is no size such as 1KiB or 4096", param_hint="--sizes") from error
    assert count is not None
    return count


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number of seconds", param_hint="--arrival") from None


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number of hosts", param_hint="--racks") from None


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


bench.add_command(bench_report.report)
bench.add_command(bench_local.local)
