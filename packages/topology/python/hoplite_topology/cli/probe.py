"""`hoplite topology probe`: detects the network between hosts from echoes and streams."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hoplite.errors import HopliteError, InvalidArgument
from hoplite.extras import install_package
from hoplite.tools.cli.ending import ending_in_order
from hoplite.tools.cli.options import duration_option, json_option, said
from hoplite.tools.cli.output import fail_with, print_json, print_table, stepping
from hoplite.tools.cli.racks import check_racks_and_pods, racks_and_pods, size_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite_topology.probing import Probed, Settings

file_option = click.Path(exists=True, dir_okay=False, path_type=Path)
out_option = click.Path(dir_okay=False, path_type=Path)
# Maximum number of hosts whose matrix is printed; larger ones go to the file and the picture only.
PRINTED_MAX = 16
# Maximum share of the time for writing intermediate results.
WRITING_PART = 0.1
LAB_STEP = "run as root; without root, pass real hosts with --hosts FILE"


def _check_landmarks(_context: click.Context, _option: click.Parameter, value: int | None) -> int | None:
    if value == 1:
        raise click.BadParameter("1 landmark is too few: set 2 or more, or 0 to probe all pairs")
    return value


@click.command()
@click.option("--hosts", "hosts_file", type=file_option, help="Probe the hosts in this file, one per line.")
@click.option("--lab", type=click.IntRange(1, 64), help="Create a lab of N hosts on this machine and probe it.")
@racks_and_pods
@click.option("--rate", default="1gbit", show_default=True, help="Rate of each lab host's link.")
@click.option("--latency", metavar="TIME", help="Additional one-way delay between two lab hosts, such as 50us.")
@click.option("--shuffle", type=click.IntRange(0), metavar="SEED", help="Probe the lab's hosts in a random order.")
@click.option(
    "--launch",
    default="ssh -o BatchMode=yes -- {host}",
    show_default=True,
    help="Command that runs a shell command on a host; the shell command is appended as one argument.",
)
@click.option("--python", default="python3", show_default=True, help="Python interpreter on the hosts, 3.8 or later.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="UDP and TCP port on the hosts.  [default: any]")
@click.option(
    "--count", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Number of echoes per direction."
)
@click.option(
    "--estimator",
    type=click.Choice(["p10", "p50", "min"]),
    default="p10",
    show_default=True,
    help="Statistic of the echoes in one direction.",
)
@click.option(
    "--symmetric",
    type=click.Choice(["max", "mean", "min"]),
    default="max",
    show_default=True,
    help="Function that combines the two directions of a pair.",
)
@click.option(
    "--backend",
    type=click.Choice(["udp", "fping"]),
    default="udp",
    show_default=True,
    help="Program that sends echoes: udp (the probe replies) or fping (the kernel replies).",
)
@duration_option("--timeout", "Treat a host as unreachable after this long without any reply.  [default: 1 s]")
@click.option("--quick", is_flag=True, help="Send few echoes per pair, and the full count only to the nearest hosts.")
@click.option(
    "--landmarks",
    type=click.IntRange(0),
    callback=_check_landmarks,
    metavar="N",
    help="Probe all hosts from N landmarks (2 or more), then only relevant pairs; 0 probes all pairs.  "
    "[default: 24 with --quick and more than 128 hosts, else 0]",
)
@click.option(
    "--bandwidth/--no-bandwidth",
    default=None,
    help="Measure the rates of links, which saturates them.  [default: in a lab only]",
)
@duration_option("--budget", "Time limit for the measurement of rates.  [default: 30 s]")
@click.option("--streams", type=click.IntRange(1, 64), default=1, show_default=True, help="Connections per pair.")
@click.option("--seed", type=click.IntRange(0, 2**63), default=0, show_default=True, help="Random seed.")
@click.option("--out", type=out_option, help="Write the topology to this file, after each round.")
@click.option(
    "--resume", type=file_option, help="Continue the probe that wrote this --out file, with its hosts and settings."
)
@click.option("--picture", type=out_option, help="Draw the times to a .svg or .png file.")
@json_option("Print one JSON object.")
@click.pass_context
def probe(context: click.Context, /, **options: Any) -> None:  # noqa: ANN401 - the type that click passes
    """Measure round trips and link rates between hosts, and detect groups.

    Hosts exchange echoes in rounds of disjoint pairs. On real hosts, ssh starts a small Python program that uses only
    the standard library; nothing has to be installed. --bandwidth saturates the links for some seconds.

    \b
    Example:
      hoplite topology probe --hosts hosts --bandwidth --out topology.json
      hoplite topology plan --topology topology.json --algorithm ring --format mpich > hostfile
      hoplite topology probe --racks 4,4 --uplink 1gbit --json
    """  # noqa: D301
    _check(context, options)
    steps: dict[type[HopliteError], str] = {
        InvalidArgument: "see hoplite topology probe --help, or docs/topology/README.md",
        HopliteError: "see hoplite topology probe --help",
    }
    if options["picture"]:
        _check_picture(options["picture"])
    with ending_in_order(), stepping(steps):
        settings = _settings(options)
        with _where(options, settings) as (probed, reach):
            probed = _measure(probed, reach, options["out"] or options["resume"])
        _tell(probed, options)


def _check_picture(path: Path) -> None:
    """Refuses an unknown picture format before anything is measured."""
    if path.suffix not in (".svg", ".png"):
        raise click.BadParameter(f"the picture must be a .svg or .png file, not {path.name}", param_hint="--picture")


def _check(context: click.Context, options: dict[str, Any]) -> None:
    places = [name for name in ("hosts_file", "lab", "racks", "resume") if options[name]]
    if len(places) != 1:
        raise click.UsageError("set exactly one of --hosts FILE, --racks 4,4, --lab 8 and --resume FILE")
    is_lab = bool(options["lab"] or options["racks"])
    for name in ("launch", "python", "port"):
        if is_lab and said(context, name):
            raise click.UsageError(f"--{name} applies to real hosts: add --hosts FILE")
    for name in ("rate", "latency", "shuffle"):
        if not is_lab and said(context, name):
            raise click.UsageError(f"--{name} applies to hosts of a lab: add --racks 4,4 or --lab 8")
    check_racks_and_pods(options)
    if options["resume"]:
        for name in ("count", "estimator", "symmetric", "backend", "quick", "landmarks", "seed", "out"):
            if said(context, name):
                raise click.UsageError(f"--resume takes its settings from the file: omit --{name}")


def _settings(options: dict[str, Any]) -> Settings:
    from hoplite_topology.probing import Settings

    is_lab = bool(options["lab"] or options["racks"])
    defaults = Settings()
    return Settings(
        count=options["count"],
        estimator=options["estimator"],
        symmetric=options["symmetric"],
        backend=options["backend"],
        timeout_s=options["timeout"] or defaults.timeout_s,
        quick=options["quick"],
        landmarks=options["landmarks"],
        seed=options["seed"],
        bandwidth=is_lab if options["bandwidth"] is None else options["bandwidth"],
        budget_s=options["budget"] or defaults.budget_s,
        connections=options["streams"],
    )


@contextlib.contextmanager
def _where(options: dict[str, Any], settings: Settings) -> Iterator[tuple[Probed, dict[str, Any]]]:
    """Yields a probe that has not begun, and the options that reach its hosts."""
    from hoplite_topology import layout, probing
    from hoplite_topology.hosts import addresses_of, read_hosts
    from hoplite_topology.reach import Site

    reach = {"launch": options["launch"], "python": options["python"], "port": options["port"]}
    if options["resume"]:
        yield probing.going_on(probing.resumed(layout.read(options["resume"])), settings), reach
    elif options["hosts_file"]:
        hosts = read_hosts(options["hosts_file"])
        addresses = addresses_of(hosts, options["hosts_file"])
        if missing := [host.name for host in hosts if host.name not in addresses]:
            raise InvalidArgument(
                f"{options['hosts_file']}: {missing[0]} can't be resolved here; add its address after its name"
            )
        _check_count(options["landmarks"], len(hosts))
        sites = [Site(host.name, addresses[host.name], host.slots) for host in hosts]
        yield probing.begin(sites, settings), reach
    else:
        import sys

        try:
            from hoplite_bench.lab import Lab, LabError
        except ModuleNotFoundError as error:
            if error.name not in ("hoplite_bench", "hoplite_bench.lab"):
                raise
            fail_with("a lab requires hoplite-bench, which is not installed", install_package("hoplite-bench"))

        _check_count(options["landmarks"], options["lab"] or sum(options["racks"]))
        links = {"rate": options["rate"], "latency": options["latency"]}
        with stepping({LabError: LAB_STEP}), Lab(hosts=options["lab"], **links, **size_of(options)) as lab:
            hosts_of_lab = list(lab.hosts)
            if options["shuffle"] is not None:
                random.Random(options["shuffle"]).shuffle(hosts_of_lab)
            probed = probing.begin([Site(host.name, host.address) for host in hosts_of_lab], settings)
            # Facts of the lab for comparison by people and tests; the probe does not use them.
            probed.lab = {**lab.facts(), "rack_of": {host.name: host.rack for host in hosts_of_lab}}
            if lab.pods:
                probed.lab["pod_of"] = {host.name: lab.racks[host.rack].pod for host in hosts_of_lab}
            yield probed, {"launch": f"{lab.agent} {{host}}", "python": sys.executable}


def _check_count(landmarks: int | None, hosts: int) -> None:
    if landmarks and landmarks > hosts:
        raise InvalidArgument(f"--landmarks {landmarks} exceeds the {hosts} hosts: set fewer, or 0 to probe all pairs")


def _measure(probed: Probed, reach: dict[str, Any], out: Path | None) -> Probed:
    from hoplite.tools.progress import Progress
    from hoplite.tools.quantities import duration
    from hoplite_topology import layout, probing
    from hoplite_topology.reach import Reached

    spent_s, last = 0.0, time.monotonic()

    def write() -> None:
        nonlocal spent_s, last
        begun = time.monotonic()
        if out is not None:
            layout.write(out, probed.layout())
        last = time.monotonic()
        spent_s = last - begun

    with Progress(f"starting the probe on {len(probed.sites)} hosts", unit="rounds") as progress:

        def done(_probed: Probed, at: int, count: int) -> None:
            progress.update(at, count)
            # For thousands of hosts, writing takes seconds.
            if time.monotonic() - last >= spent_s / WRITING_PART:
                write()

        write()
        try:
            with Reached(probed.sites, **reach) as reached, contextlib.ExitStack() as stack:
                stack.callback(progress.notify, "ending the agents of the probe")
                for reason in reached.absent.values():
                    progress.say(f"left out: {reason}")
                known = set(reached.absent)
                probing.run(probed, reached, done=done, notify=progress.notify)
                for number in sorted(set(probed.absent) - known):
                    progress.say(f"left out: {probed.absent[number]}")
        except probing.ProbeFailed as error:
            fail_with(str(error), "check each host with: ssh HOST python3 --version; or set --launch or --python")
        except BaseException:
            if out is not None:
                write()
                progress.say(
                    f"stopped; finished rounds are in {out}; to continue: hoplite topology probe --resume {out}"
                )
            raise
        write()
        progress.say(f"probed {len(probed.sites) - len(probed.absent)} hosts in {duration(probed.seconds)}")
    return probed


def _tell(probed: Probed, options: dict[str, Any]) -> None:
    if options["picture"]:
        from hoplite_topology import chart

        chart.draw(options["picture"], [site.name for site in probed.sites], probed.times_us, chart.caption(probed))
    assert probed.quality is not None
    if options["as_json"]:
        layout = probed.layout()
        print_json(layout.as_json() | {"uplinks": layout.uplinks, "nic": layout.nic, "clusters": probed.clusters()})
        return
    names = [site.name for site in probed.sites]
    if len(names) <= PRINTED_MAX:
        rows = [
            [name, *("-" if time is None or at == column else f"{time:.1f}" for column, time in enumerate(row))]
            for at, (name, row) in enumerate(zip(names, probed.times_us, strict=True))
        ]
        print_table(["us", *names], rows, whole=1)
    for line in _lines(probed):
        click.echo(line)


def _lines(probed: Probed) -> list[str]:
    from hoplite.tools.quantities import write_rate

    names = [site.name for site in probed.sites]
    groups: dict[tuple[str, ...], list[str]] = {}
    for number, name in enumerate(names):
        if number not in probed.absent:
            groups.setdefault(probed.groups[number], []).append(name)
    rates = probed.rates
    lines = []
    for group, members in sorted(groups.items()):
        uplink = rates.uplinks.get(group[-1]) if rates and group else None
        carries = f" (uplink: {write_rate(uplink)})" if uplink else ""
        lines.append(f"{' '.join(group) or 'one group of all'}: {' '.join(members)}{carries}")
    for label in sorted({label for group in groups for label in group[:-1]}):
        uplink = rates.uplinks.get(label) if rates else None
        lines += [f"{label} (uplink: {write_rate(uplink)})"] if uplink else []
    if rates and rates.nic:
        lines.append(f"link of each host: {write_rate(rates.nic)}")
    lines += [f"left out: {reason}" for reason in probed.absent.values()]
    assert probed.quality is not None
    lines.append(f"quality: {probed.quality.words()}")
    lines += [f"warning: {warning}" for warning in probed.quality.warnings]
    lines += [f"note: {note}" for note in probed.notes]
    return lines
