"""Measures all cells on one network: skips finished cells, chooses systems, stores rows and reports progress."""

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
    from collections.abc import Callable, Mapping, Sequence

    from hoplite_bench.hosts import Network
    from hoplite_bench.results import Results
    from hoplite_bench.row import Row
    from hoplite_bench.systems.base import System


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        systems: names of systems. The wire is always included, because all others are compared with it.
        cells: cells to measure for each system.
        repeats: samples of each cell.
        install: whether systems may be downloaded from package indexes.
        plain: whether to measure Hoplite without encryption too.
    """

    systems: Sequence[str]
    cells: Sequence[plan.Cell]
    repeats: int
    install: bool = True
    plain: bool = False


def choose(names: Sequence[str]) -> list[System]:
    """Returns the systems with these names, the wire first.

    Raises:
        InvalidArgument: a name is unknown.
    """
    for name in names:
        if name not in SYSTEMS:
            raise InvalidArgument(f"unknown system {name!r}{closest(name, SYSTEMS)}: choose from {', '.join(SYSTEMS)}")
    return list(registry({WIRE, *names}).values())


def measure(network: Network, settings: Settings, results: Results) -> list[Row]:
    """Measures everything on one network that has no samples in the results yet.

    If rows of a system are missing in a cell, the whole cell is measured again, because only interleaved samples are
    comparable. Rows of systems that are not in `settings` do not change.

    Args:
        network: the hosts.
        settings: what to measure.
        results: the existing rows; receives the rows of each cell as soon as the cell is done.

    Returns:
        The rows of these cells on this network, in the order of the cells, including rows that existed before.

    Raises:
        AgentFailed: a host can't be reached.
        HopliteError: the file of the results is no longer writable.
    """
    systems = choose(settings.systems)
    for system in systems:
        system.adapt(network.hosts, network.topology, plain=settings.plain, transports=network.transports)
    hosts = len(network.hosts)
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(Watch())
        watch.notify(f"reaching {hosts} hosts")
        agents = stack.enter_context(Agents(network))
        runner = Runner(
            network,
            agents,
            systems,
            repeats=settings.repeats,
            environments=Environments(install=settings.install),
            notify=watch.notify,
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
            cell for cell in settings.cells if not is_done(cell, hosts, systems, there, unavailable=runner.unavailable)
        ]
        if len(cells) < len(settings.cells):
            watch.say(f"{len(settings.cells) - len(cells)} of {len(settings.cells)} cells are already done")
        for cell in cells:
            if lacking := [one.name for one in systems if cell.inputs > 1 and not one.several_inputs]:
                watch.say(f"{cell}: skipping {', '.join(lacking)}, which can sum only one array per host")
        again = {_key(cell, hosts) for cell in cells}
        measured = {system.name for system in systems}
        if others := sorted({key[0] for key in there if key[2:] in again} - measured):
            watch.say(f"rows of {', '.join(others)} are kept, but were not interleaved with this measurement")
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
    """The last part of the keys of all rows of a cell."""
    return cell.op, hosts, cell.nbytes, cell.arrival_s, cell.inputs


def is_done(
    cell: plan.Cell,
    hosts: int,
    systems: Sequence[System],
    there: Mapping[tuple[str, str, str, int, int, float, int], Row],
    *,
    unavailable: Mapping[str, str],
    wanted: Callable[[plan.Contender], bool] = lambda _contender: True,
) -> bool:
    """Whether every wanted contender has samples, or a note with the reason for which it would have none again."""

    def has_row(one: plan.Contender) -> bool:
        row = there.get((one.system, one.variant, *_key(cell, hosts)))
        return row is not None and bool(row.samples or row.note == unavailable.get(one.system))

    return all(has_row(one) for one in plan.contenders(systems, cell.op, cell.inputs) if wanted(one))


def _turns(
    cells: Sequence[plan.Cell],
    systems: Sequence[System],
    unavailable: Mapping[str, str],
    network: Network,
    repeats: int,
) -> dict[tuple[plan.Contender, plan.Cell], tuple[float, int]]:
    """The expected seconds per turn, and the number of turns including the warm-up, for each contender and cell."""
    return {
        (one, cell): (plan.expected_s(cell, len(network.hosts), network.rate, repeats) / (1 + repeats), 1 + repeats)
        for cell in cells
        for one in plan.contenders(systems, cell.op, cell.inputs)
        if one.system not in unavailable
    }
