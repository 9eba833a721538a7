"""`hoplite topology`: assigns the ranks of a collective to machines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hoplite.errors import HopliteError, InvalidArgument
from hoplite.sizes import check_size
from hoplite.tools.cli.options import Command, duration_option, json_option
from hoplite.tools.cli.output import fail_with, print_json, stepping
from hoplite.tools.progress import Progress
from hoplite_topology.cli.probe import probe
from hoplite_topology.cli.watch import watch
from hoplite_topology.launchers import FORMATS
from hoplite_topology.problem import ALGORITHMS, LIBRARIES, MODELS, SOLVERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite_topology.hosts import Host
    from hoplite_topology.planning import Planned

file_option = click.Path(exists=True, dir_okay=False, path_type=Path)
# Like the lab's rates, but with faster links.
RATE = re.compile(r"(\d+(?:\.\d+)?) ?(mbit|gbit|tbit)")
RATE_UNITS = {"mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
STEPS: dict[type[HopliteError], str] = {InvalidArgument: "see hoplite topology plan --help, or docs/topology/README.md"}


def _bytes(_context: click.Context, _option: click.Parameter, value: str) -> float:
    try:
        return float(check_size("--bytes", value))
    except InvalidArgument as error:
        raise click.BadParameter(str(error)) from error


def _rate(_context: click.Context, _option: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    match = RATE.fullmatch(value.strip().lower())
    if match is None or float(match[1]) == 0:
        raise click.BadParameter(f"{value!r} is not a rate: set one such as 10gbit or 500mbit")
    return float(match[1]) * RATE_UNITS[match[2]]


def _collective_options(command: Command) -> Command:
    options: list[Callable[[Command], Command]] = [
        click.option("--algorithm", type=click.Choice(ALGORITHMS), required=True, help="Algorithm that the ranks run."),
        click.option("--base", type=click.IntRange(2), default=2, show_default=True, help="Base of a bcube."),
        click.option(
            "--library",
            type=click.Choice(LIBRARIES),
            help="Library whose halving-doubling is used.  [default: that of --format, else mpi]",
        ),
        click.option(
            "--bytes",
            "nbytes",
            default="100MB",
            callback=_bytes,
            show_default=True,
            help="Size of each rank's array.",
        ),
        click.option("--seed", type=click.IntRange(0, 2**63), default=0, show_default=True, help="Random seed."),
        click.option("--nic", callback=_rate, metavar="RATE", help="Rate of each machine's link, such as 10gbit."),
        click.option("--uplink", callback=_rate, metavar="RATE", help="Rate of each cluster's link to the others."),
        json_option("Print one JSON object."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.group()
def topology() -> None:
    """Measure the network and find a fast order of ranks.

    Ranks that exchange the most data are placed on hosts near each other.

    \b
    Example:
      hoplite topology example --machines 64 > m.csv
      hoplite topology plan --matrix m.csv --algorithm ring
      hoplite topology plan --matrix m.csv --algorithm ring --hosts hosts --format mpich > hostfile
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines


@topology.command()
@click.option("--matrix", type=file_option, help="Read n lines of n round-trip times in us, separated by commas.")
@click.option("--topology", "topology_file", type=file_option, help="Read times, hosts, groups and rates from a probe.")
@_collective_options
@click.option(
    "--cost",
    "model",
    type=click.Choice(MODELS),
    help="Cost model of a transfer.  [default: congestion with --nic or --uplink, else paper]",
)
@click.option(
    "--symmetric",
    type=click.Choice(["max", "mean", "min"]),
    help="Function that combines the two directions of a pair.",
)
@click.option("--choose", type=click.IntRange(1), metavar="K", help="Use only the K best machines.")
@click.option("--solver", type=click.Choice(SOLVERS), default="search", show_default=True, help="Search method.")
@duration_option("--time", "Time limit of the search.  [default: 2 s; exact 20 s, paper 4 s]")
@click.option(
    "--clusters", type=click.Choice(["gaps", "kmeans"]), default="gaps", show_default=True, help="Clustering method."
)
@click.option("--start", type=file_option, help="Repair this plan (output of --json) after a few machines changed.")
@click.option("--hosts", "hosts_file", type=file_option, help="Read the machines' names or addresses, one per line.")
@click.option("--format", "form", type=click.Choice(list(FORMATS)), help="Print the input file of this launcher.")
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw the times to a .svg or .png file."
)
def plan(**options: Any) -> None:  # noqa: ANN401 - the type that click passes
    """Find the cheapest order of machines for an algorithm.

    Rank 0 gets the first machine of the order, rank 1 the second. The result includes a lower bound for the cost of
    any order. The same --seed and --time lead to the same result, unless the clock ends the search, which is reported.

    \b
    Example:
      hoplite topology plan --matrix m.csv --algorithm halving-doubling --json
      hoplite topology plan --topology topology.json --algorithm ring --format mpich > hostfile
      hoplite topology plan --matrix m.csv --algorithm bcube --base 4 --nic 25gbit --uplink 100gbit
      hoplite topology plan --matrix m.csv --algorithm ring --hosts hosts --format openmpi5 > order
    """  # noqa: D301
    from hoplite_topology import heat, launchers, planning, surveyed
    from hoplite_topology.hosts import read_hosts
    from hoplite_topology.matrix import read_matrix
    from hoplite_topology.problem import Options, Wanted

    form = options["form"]
    if bool(options["matrix"]) == bool(options["topology_file"]):
        raise click.UsageError("set exactly one of --matrix FILE and --topology FILE")
    if options["topology_file"] and options["hosts_file"]:
        raise click.UsageError("the file of --topology contains the hosts: omit --hosts")
    if form and not options["hosts_file"] and not options["topology_file"]:
        raise click.UsageError("--format requires the names of the machines: add --hosts FILE")
    with stepping(STEPS):
        if options["topology_file"]:
            given = surveyed.read(options["topology_file"], symmetric=options["symmetric"])
            rows = given.rows
            hosts: list[Host] | None = given.hosts
        else:
            given = None
            rows = read_matrix(options["matrix"], symmetric=options["symmetric"])
            hosts = read_hosts(options["hosts_file"]) if options["hosts_file"] else None
        if hosts is not None and len(hosts) != len(rows):
            raise InvalidArgument(
                f"{options['hosts_file']} has {len(hosts)} hosts, but the matrix has {len(rows)} machines: "
                "list one host per machine"
            )
        wanted = Wanted(
            algorithm=options["algorithm"],
            library=options["library"] or launchers.library_of(form),
            base=options["base"],
            bytes=options["nbytes"],
        )
        # Launcher errors are raised before the search.
        if form and hosts is not None:
            launchers.write(form, hosts, wanted)
        search = Options(
            model=options["model"],
            solver=options["solver"],
            choose=options["choose"],
            seed=options["seed"],
            seconds=options["time"],
            start=_read_start(options["start"]),
            nic=options["nic"] or (given.nic if given else None),
            uplink=options["uplink"],
            clusters=options["clusters"],
            cluster=given.cluster if given else None,
            uplinks=given.uplinks if given else [],
            assumed=given.notes if given else [],
        )
        with Progress(f"planning {len(rows)} machines"):
            planned = planning.plan(rows, wanted, search)
        if options["picture"]:
            caption = f"{wanted.algorithm}: {planned.cost:.6g} us as planned, {planned.cost_given:.6g} us as given"
            heat.draw(options["picture"], rows, planned.order, caption)
    _print(planned, hosts, form, as_json=options["as_json"])


def _read_start(path: Path | None) -> list[int] | None:
    if path is None:
        return None
    try:
        order = json.loads(path.read_text())["order"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        # RecursionError: the JSON is nested more deeply than Python's stack.
        order = None
    if not isinstance(order, list) or not all(type(machine) is int and 0 <= machine < 2**32 for machine in order):
        raise InvalidArgument(f"{path} is not a plan: pass the output of hoplite topology plan --json")
    return order


def _print(planned: Planned, hosts: list[Host] | None, form: str | None, *, as_json: bool) -> None:
    from hoplite_topology import launchers

    ordered = [hosts[machine] for machine in planned.order] if hosts else None
    launch = launchers.write(form, ordered, planned.wanted) if form and ordered else None
    if as_json:
        document = planned.as_json()
        if ordered:
            document["hosts"] = [host.name for host in ordered]
        if launch:
            document["launch"] = {"text": launch.text, "run": launch.run, "notes": launch.notes}
        print_json(document)
        return
    # Results go to stdout: with a launcher, only its file.
    for line in _lines(planned, ordered, is_short=launch is not None):
        click.echo(line, err=launch is not None)
    if launch:
        if launch.run:
            click.echo(f"run: {launch.run}", err=True)
        for note in launch.notes:
            click.echo(f"note: {note}", err=True)
        click.echo(launch.text, nl=False)


def _lines(planned: Planned, hosts: list[Host] | None, *, is_short: bool) -> list[str]:
    """Formats a plan for people."""
    from hoplite_topology import planning

    def against(cost: float) -> str:
        return f"{cost:14,.1f} us" + (f"  {cost / planned.cost:.2f} times the plan" if planned.cost else "")

    wanted = planned.wanted
    of = {"bcube": f" of base {wanted.base}", "halving-doubling": f" of {wanted.library}"}.get(wanted.algorithm, "")
    lines = [
        f"{wanted.algorithm}{of}, {len(planned.order)} ranks, by the {planned.options.model_chosen} model",
        f"  plan    {planned.cost:14,.1f} us  {_certainty(planned)}",
        f"  given   {against(planned.cost_given)}",
        f"  worst   {against(planned.cost_worst)}, the highest cost found",
        f"why: {planned.reason}",
    ]
    if hint := planning.advice(planned):
        lines.append(f"hint: {hint}")
    lines += [f"note: {note}" for note in planned.notes]
    if not is_short:
        names = [host.name for host in hosts] if hosts else [str(machine) for machine in planned.order]
        lines.append("order: " + " ".join(names))
    return lines


def _certainty(planned: Planned) -> str:
    if planned.is_proven:
        return "the best possible order"
    if planned.gap is None:
        return "no bound above 0 is known"
    return f"at most {planned.gap:.2%} above the best order, which costs {planned.bound:,.1f} us or more"


@topology.command()
@click.option("--machines", type=click.IntRange(1, 8192), default=64, show_default=True, help="Number of machines.")
@click.option(
    "--seed", type=click.IntRange(0, 2**63), default=0, show_default=True, help="Random seed of the data center."
)
def example(machines: int, seed: int) -> None:
    """Print round-trip times of a generated data center.

    The data center has racks and pods. The output is a matrix for plan.

    \b
    Example:
      hoplite topology example --machines 512 --seed 1 > m.csv
    """  # noqa: D301
    from hoplite_topology import _native

    times, _racks = _native.make_data_centre(machines, seed)
    for row in range(machines):
        click.echo(",".join(f"{time:.2f}" for time in times[row * machines : (row + 1) * machines]))


@topology.command()
@click.option("--machines", type=click.IntRange(2, 4096), default=512, show_default=True, help="Number of machines.")
@click.option(
    "--orders", type=click.IntRange(1, 100_000), default=500, show_default=True, help="Number of random orders."
)
@click.option(
    "--uplinks", type=click.IntRange(1, 256), default=16, show_default=True, help="Number of uplinks per rack."
)
@click.option(
    "--background",
    type=click.FloatRange(0, 0.99),
    default=0.95,
    show_default=True,
    help="Maximum background load of an uplink.",
)
@_collective_options
def simulate(**options: Any) -> None:  # noqa: ANN401 - the type that click passes
    """Simulate random and planned orders in a generated data center.

    Flows share links max-min fairly, a hash selects the uplink of a flow, and other tenants use a part of each
    uplink. The times are those of the simulation, not of a real network.

    \b
    Example:
      hoplite topology simulate --algorithm ring --machines 512 --orders 500 --json
    """  # noqa: D301
    from hoplite_topology import study
    from hoplite_topology.problem import Wanted

    with stepping(STEPS):
        wanted = Wanted(options["algorithm"], options["library"] or "mpi", options["base"], options["nbytes"])
        setting = study.Setting(
            machines=options["machines"],
            orders=options["orders"],
            seed=options["seed"],
            nic=options["nic"] or study.NIC,
            uplinks=options["uplinks"],
            uplink=options["uplink"] or study.UPLINK,
            background=options["background"],
        )
        with Progress(f"simulating {setting.orders} orders of {setting.machines} machines"):
            studied = study.study(wanted, setting)
    if options["as_json"]:
        print_json(studied.as_json())
    else:
        click.echo("\n".join(studied.lines()))


@topology.command()
@click.option(
    "--hosts", "hosts_file", required=True, type=file_option, help="Read the hosts, in the order of their ranks."
)
@click.option("--format", "form", type=click.Choice(list(FORMATS)), required=True, help="Launcher.")
@click.option(
    "--launcher",
    help="Launcher command with its options; for torchrun, gloo and lightgbm, the ssh command.  [default: mpiexec, "
    "mpirun or ssh]",
)
@json_option("Print one JSON object.")
def verify(hosts_file: Path, form: str, launcher: str | None, as_json: bool) -> None:
    """Check that a launcher assigns the ranks as planned.

    Starts a tiny job, and compares the host of each rank with the given order.

    \b
    Example:
      hoplite topology verify --format mpich --hosts ordered
      hoplite topology verify --format torchrun --hosts ordered --launcher "ssh -p 2222"
    """  # noqa: D301
    from hoplite_topology import verify as job
    from hoplite_topology.hosts import read_hosts

    if form not in job.FORMS:
        raise click.UsageError(f"verify does not support {form}: set --format to one of {', '.join(job.FORMS)}")
    step = "install the launcher, or check that it reaches the hosts: hoplite topology verify --help"
    with stepping({InvalidArgument: step}):
        hosts = read_hosts(hosts_file)
        with Progress(f"running {form} on {len(hosts)} hosts"):
            seen = job.ranks(form, hosts, launcher)
    wanted = [host.name for host in hosts for _ in range(host.slots)]
    wrong = [rank for rank, name in enumerate(wanted) if seen[rank] != name]
    if as_json:
        print_json({"format": form, "ranks": len(wanted), "kept": not wrong, "hosts": seen})
    elif not wrong:
        click.echo(f"{form} assigned each of {len(wanted)} ranks to its host")
    if wrong:
        rank = wrong[0]
        fail_with(
            f"rank {rank} ran on {seen[rank] or 'another host'}, not on {wanted[rank]}; "
            f"{len(wrong)} of {len(wanted)} ranks are on the wrong host",
            "see the notes of hoplite topology plan for other settings that affect the order of ranks",
        )


topology.add_command(probe)
topology.add_command(watch)
