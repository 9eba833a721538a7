"""A whole measurement on one network: which cells are still to do, who takes part, and where rows and words go."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument
from hoplite.settings import closest
from hoplite_bench import plan
from hoplite_bench.environments import Environments
from hoplite_bench.hosts import Agents
from hoplite_bench.progress import Watch
from hoplite_bench.row import WIRE
from hoplite_bench.run import Runner
from hoplite_bench.systems import SYSTEMS, registry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hoplite_bench.hosts import Network
    from hoplite_bench.results import Results
    from hoplite_bench.row import Row
    from hoplite_bench.systems.base import System


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        systems: by name; the wire is always among them, for all are compared to it.
        cells: what of each.
        repeats: samples of each cell.
        install: whether systems may be fetched from package indexes.
        plain: whether Hoplite is measured without encryption too.
    """

    systems: Sequence[str]
    cells: Sequence[plan.Cell]
    repeats: int
    install: bool = True
    plain: bool = False


def choose(names: Sequence[str]) -> list[System]:
    """The systems of these names, the wire first.

    Raises:
        InvalidArgument: a name is unknown.
    """
    for name in names:
        if name not in SYSTEMS:
            raise InvalidArgument(f"no system {name!r}{closest(name, SYSTEMS)}; there are {', '.join(SYSTEMS)}")
    return list(registry({WIRE, *names}).values())


def measure(network: Network, settings: Settings, results: Results) -> list[Row]:
    """Measures everything on one network that has no samples in the results yet.

    A cell in which rows of a system are missing is measured again as a whole, since only what took turns may be
    compared; rows of systems that are not among those of now stay as they are.

    Args:
        network: on which hosts.
        settings: what.
        results: what is there already; gets the rows of each cell as soon as it is done.

    Returns:
        The rows of these cells on this network, in their order, also those that were there.

    Raises:
        AgentFailed: a host can't be reached.
        HopliteError: the file of the results can't be written any more.
    """
    systems = choose(settings.systems)
    for system in systems:
        system.adapt(network.hosts, network.topology, plain=settings.plain)
    hosts = len(network.hosts)
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(Watch())
        watch.tell(f"reaching {hosts} hosts")
        agents = stack.enter_context(Agents(network))
        runner = Runner(
            network,
            agents,
            systems,
            repeats=settings.repeats,
            environments=Environments(install=settings.install),
            tell=watch.tell,
            turned=watch.turned,
        )
        stack.callback(runner.close)
        runner.prepare()
        for name, reason in runner.unavailable.items():
            watch.say(f"{name} can't run here: {reason}")
        if strange := results.strange(network.facts, agents.machine):
            watch.say(f"warning: {strange}")
        there = {row.key(): row for row in results.on(network.facts)}
        cells = [
            cell for cell in settings.cells if not _is_done(cell, hosts, systems, there, unavailable=runner.unavailable)
        ]
        if len(cells) < len(settings.cells):
            watch.say(f"{len(settings.cells) - len(cells)} of {len(settings.cells)} cells are there already")
        for cell in cells:
            if lacking := [one.name for one in systems if cell.inputs > 1 and not one.several_inputs]:
                watch.say(f"{cell}: no row of {', '.join(lacking)}: their sums take one array a host")
        again = {_key(cell, hosts) for cell in cells}
        measured = {system.name for system in systems}
        if others := sorted({key[0] for key in there if key[2:] in again} - measured):
            watch.say(f"rows of {', '.join(others)} stay, which took no turns with what is measured now")
        watch.begin(_turns(cells, systems, runner.unavailable, network, settings.repeats), len(cells))
        for cell in cells:
            fresh = list(runner.measure(cell))
            results.add(fresh)
            for row in fresh:
                if row.note and row.system not in runner.unavailable:
                    watch.say(f"{row.system} {row.variant}, {cell}: {row.note}")
            watch.close(cell)
    order = {_key(cell, hosts): number for number, cell in enumerate(settings.cells)}
    found = [row for row in results.on(network.facts) if row.key()[2:] in order]
    return sorted(found, key=lambda row: order[row.key()[2:]])


def _key(cell: plan.Cell, hosts: int) -> tuple[str, int, int, float, int]:
    """What the keys of all rows of a cell end with."""
    return cell.op, hosts, cell.nbytes, cell.arrival_s, cell.inputs


def _is_done(
    cell: plan.Cell,
    hosts: int,
    systems: Sequence[System],
    there: Mapping[tuple[str, str, str, int, int, float, int], Row],
    *,
    unavailable: Mapping[str, str],
) -> bool:
    """Whether all have samples, or none for the reason for which there would be none now either."""

    def has_row(one: plan.Contender) -> bool:
        row = there.get((one.system, one.variant, *_key(cell, hosts)))
        return row is not None and bool(row.samples or row.note == unavailable.get(one.system))

    return all(has_row(one) for one in plan.contenders(systems, cell.op, cell.inputs))


def _turns(
    cells: Sequence[plan.Cell],
    systems: Sequence[System],
    unavailable: Mapping[str, str],
    network: Network,
    repeats: int,
) -> dict[tuple[plan.Contender, plan.Cell], tuple[float, int]]:
    """What to expect of each contender in each cell: seconds of a turn, and how many turns with the warm-up."""
    return {
        (one, cell): (plan.expected_s(cell, len(network.hosts), network.rate, repeats) / (1 + repeats), 1 + repeats)
        for cell in cells
        for one in plan.contenders(systems, cell.op, cell.inputs)
        if one.system not in unavailable
    }
