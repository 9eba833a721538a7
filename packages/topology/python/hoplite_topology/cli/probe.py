"""`hoplite topology probe`: how hosts are wired, from echoes and streams between them."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hoplite.errors import HopliteError, InvalidArgument
from hoplite.tools.cli.ending import ending_in_order
from hoplite.tools.cli.options import duration_option, json_option, said
from hoplite.tools.cli.output import fail_with, print_json, print_table, stepping
from hoplite.tools.cli.racks import check_racks_and_pods, racks_and_pods, size_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite_topology.probing import Probed, Settings

file_option = click.Path(exists=True, dir_okay=False, path_type=Path)
out_option = click.Path(dir_okay=False, path_type=Path)
# A larger matrix is for the file and the picture.
PRINTED_MAX = 16
# Writing what is done may take this part of the time.
WRITING_PART = 0.1
LAB_STEP = "sudo; without root, real hosts by --hosts FILE"


def _check_landmarks(_context: click.Context, _option: click.Parameter, value: int | None) -> int | None:
    if value == 1:
        raise click.BadParameter(
            "all hosts are nearest to 1 landmark, so that all pairs are asked; say 2 or more, or 0"
        )
    return value


@click.command()
@click.option("--hosts", "hosts_file", type=file_option, help="Names or addresses, one a line; see docs/topology.")
@click.option("--lab", type=click.IntRange(1, 64), help="Or probe so many hosts that are made on this machine.")
@racks_and_pods
@click.option("--rate", default="1gbit", show_default=True, help="Of each lab host's link.")
@click.option("--latency", metavar="TIME", help="Extra delay between two lab hosts, one way, such as 50us.")
@click.option("--shuffle", type=click.IntRange(0), metavar="SEED", help="Take the lab's hosts in a random order.")
@click.option(
    "--launch",
    default="ssh -o BatchMode=yes -- {host}",
    show_default=True,
    help="What reaches a host; one word is added, a command for a shell there.",
)
@click.option("--python", default="python3", show_default=True, help="Python 3.8 or later on the hosts.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="UDP and TCP port of the hosts.  [default: any]")
@click.option("--count", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Echoes each way.")
@click.option(
    "--estimator",
    type=click.Choice(["p10", "p50", "min"]),
    default="p10",
    show_default=True,
    help="What is taken of the echoes of a direction.",
)
@click.option(
    "--symmetric",
    type=click.Choice(["max", "mean", "min"]),
    default="max",
    show_default=True,
    help="What is taken of the two directions of a pair.",
)
@click.option(
    "--backend",
    type=click.Choice(["udp", "fping"]),
    default="udp",
    show_default=True,
    help="What asks and answers: a program of Python, or fping and the kernels.",
)
@duration_option("--timeout", "A host that answers nothing for so long does not answer.  [default: 1 s]")
@click.option("--quick", is_flag=True, help="Few echoes of each pair, and all of them only to the nearest hosts.")
@click.option(
    "--landmarks",
    type=click.IntRange(0),
    callback=_check_landmarks,
    metavar="N",
    help="Have N hosts, two or more, ask all others, then only pairs that matter; 0 asks all pairs.  [default: 24 with "
    "--quick and more than 128 hosts, else 0]",
)
@click.option(
    "--bandwidth/--no-bandwidth",
    default=None,
    help="Measure what links carry, which fills them.  [default: in a lab only]",
)
@duration_option("--budget", "How long streams may be measured.  [default: 30 s]")
@click.option("--streams", type=click.IntRange(1, 64), default=1, show_default=True, help="Connections of each pair.")
@click.option("--seed", type=click.IntRange(0, 2**63), default=0, show_default=True, help="What chance does.")
@click.option("--out", type=out_option, help="Write the topology to this file, after each round.")
@click.option("--resume", type=file_option, help="Go on with a file of --out: its hosts, its settings, what it has.")
@click.option("--picture", type=out_option, help="Draw the times to a .svg or .png file.")
@json_option("Print one JSON object.")
@click.pass_context
def probe(context: click.Context, /, **options: Any) -> None:  # noqa: ANN401 - as click gives them
    """Find out how hosts are wired: times between them, groups of near ones, and what their links carry.

    Each host asks each other one for echoes, in rounds of disjoint pairs. On real hosts a small program of Python's own
    library answers, started by ssh; nothing has to be installed there. --bandwidth fills the links for some seconds.

    \b
    Example:
      hoplite topology probe --hosts hosts --bandwidth --out topology.json
      hoplite topology plan --topology topology.json --algorithm ring --format mpich > hostfile
      hoplite topology probe --racks 4,4 --uplink 1gbit --json
    """  # noqa: D301
    _check(context, options)
    steps: dict[type[HopliteError], str] = {
        InvalidArgument: "hoplite topology probe --help, or docs/topology/README.md",
        HopliteError: "hoplite topology probe --help",
    }
    if options["picture"]:
        _check_picture(options["picture"])
    with ending_in_order(), stepping(steps):
        settings = _settings(options)
        with _where(options, settings) as (probed, reach):
            probed = _measure(probed, reach, options["out"] or options["resume"])
        _tell(probed, options)


def _check_picture(path: Path) -> None:
    """Refuses a picture before anything is measured for it."""
    if path.suffix not in (".svg", ".png"):
        raise click.BadParameter(f"the picture is a .svg or a .png, not {path.name}", param_hint="--picture")


def _check(context: click.Context, options: dict[str, Any]) -> None:
    places = [name for name in ("hosts_file", "lab", "racks", "resume") if options[name]]
    if len(places) != 1:
        raise click.UsageError("say where: --hosts FILE, --racks 4,4, --lab 8 or --resume FILE; one of them")
    is_lab = bool(options["lab"] or options["racks"])
    for name in ("launch", "python", "port"):
        if is_lab and said(context, name):
            raise click.UsageError(f"--{name} is for real hosts: say --hosts FILE")
    for name in ("rate", "latency", "shuffle"):
        if not is_lab and said(context, name):
            raise click.UsageError(f"--{name} is of a lab's hosts: say --racks 4,4 or --lab 8")
    check_racks_and_pods(options)
    if options["resume"]:
        for name in ("count", "estimator", "symmetric", "backend", "quick", "landmarks", "seed", "out"):
            if said(context, name):
                raise click.UsageError(f"--resume goes on as the file says; leave --{name} out")


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
    """The probe before it begins, and how its hosts are reached."""
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
                f"{options['hosts_file']}: {missing[0]} has no address here; say its address after its name"
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
            fail_with("a lab is made by hoplite-bench, which is not installed", "pip install 'hoplite-topology[lab]'")

        _check_count(options["landmarks"], options["lab"] or sum(options["racks"]))
        links = {"rate": options["rate"], "latency": options["latency"]}
        with stepping({LabError: LAB_STEP}), Lab(hosts=options["lab"], **links, **size_of(options)) as lab:
            hosts_of_lab = list(lab.hosts)
            if options["shuffle"] is not None:
                random.Random(options["shuffle"]).shuffle(hosts_of_lab)
            probed = probing.begin([Site(host.name, host.address) for host in hosts_of_lab], settings)
            # What the lab is, to be compared by people and tests; the probe is not told.
            probed.lab = {**lab.facts(), "rack_of": {host.name: host.rack for host in hosts_of_lab}}
            if lab.pods:
                probed.lab["pod_of"] = {host.name: lab.racks[host.rack].pod for host in hosts_of_lab}
            yield probed, {"launch": f"{lab.agent} {{host}}", "python": sys.executable}


def _check_count(landmarks: int | None, hosts: int) -> None:
    if landmarks and landmarks > hosts:
        raise InvalidArgument(f"--landmarks {landmarks} is more than the {hosts} hosts; say fewer, or 0 for all pairs")


def _measure(probed: Probed, reach: dict[str, Any], out: Path | None) -> Probed:
    from hoplite.tools.quantities import duration
    from hoplite_topology import layout, probing
    from hoplite_topology.progress import Progress
    from hoplite_topology.reach import Reached

    spent_s, last = 0.0, time.monotonic()

    def write() -> None:
        nonlocal spent_s, last
        begun = time.monotonic()
        if out is not None:
            layout.write(out, probed.layout())
        last = time.monotonic()
        spent_s = last - begun

    with Progress() as progress:

        def done(_probed: Probed, at: int, count: int) -> None:
            progress.done(at, count)
            # Of thousands of hosts it takes seconds.
            if time.monotonic() - last >= spent_s / WRITING_PART:
                write()

        write()
        progress.tell(f"starting on {len(probed.sites)} hosts")
        try:
            with Reached(probed.sites, **reach) as reached:
                for reason in reached.absent.values():
                    progress.say(f"left out: {reason}")
                known = set(reached.absent)
                probing.run(probed, reached, done=done, tell=progress.tell)
                for number in sorted(set(probed.absent) - known):
                    progress.say(f"left out: {probed.absent[number]}")
        except probing.ProbeFailed as error:
            fail_with(
                str(error), "look whether each host answers: ssh HOST python3 --version; or say --launch or --python"
            )
        except BaseException:
            if out is not None:
                write()
                progress.say(f"ended; what is done is in {out}: hoplite topology probe --resume {out}")
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
        carries = f", whose link carries {write_rate(uplink)}" if uplink else ""
        lines.append(f"{' '.join(group) or 'all in one group'}: {' '.join(members)}{carries}")
    for label in sorted({label for group in groups for label in group[:-1]}):
        uplink = rates.uplinks.get(label) if rates else None
        lines += [f"{label}: its link carries {write_rate(uplink)}"] if uplink else []
    if rates and rates.nic:
        lines.append(f"each host's link carries {write_rate(rates.nic)}")
    lines += [f"left out: {reason}" for reason in probed.absent.values()]
    assert probed.quality is not None
    lines.append(f"quality: {probed.quality.words()}")
    lines += [f"warning: {warning}" for warning in probed.quality.warnings]
    lines += [f"note: {note}" for note in probed.notes]
    return lines
