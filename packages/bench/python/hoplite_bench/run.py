"""Measures cells one by one: starts groups, interleaves their turns, and converts their times into rows.

The wire is the only system with special treatment, because all are compared with it. If a system fails, its row names
the reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hoplite_bench import plan
from hoplite_bench.group import Group, GroupFailed, Round
from hoplite_bench.hosts import AgentFailed
from hoplite_bench.row import WIRE, Row, spread
from hoplite_bench.systems.base import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeVar

    from hoplite_bench.environments import Environments
    from hoplite_bench.hosts import Agents, Network
    from hoplite_bench.plan import Cell, Contender
    from hoplite_bench.systems.base import System

    Found = TypeVar("Found")

# A group that fails in this many cells is not started again.
FAILURES_MAX = 4
# Size of the round that precedes a large one in each turn: enough to use every connection.
SMALL_BYTES = 1 << 16
# Memory reserved for the machine itself when the memory of a round is checked.
SPARE_BYTES = 1 << 30
# Maximum share of the initially available memory for a host's store.
STORE_SHARE = 0.6
# Note in a row whose nodes had to repeat something, although no fault was injected.
DISTURBED = "DISTURBED WITHOUT A FAULT"
# Below this size, measuring processor time and memory takes longer than the operation.
WEIGH_BYTES = 1 << 20


@dataclasses.dataclass
class Measured:
    """The results of one contender in one cell."""

    contender: Contender
    version: str = ""
    warm_s: float = 0.0
    warmed: Group | None = None
    samples: list[float] = dataclasses.field(default_factory=list)
    cpu_seconds: list[float] = dataclasses.field(default_factory=list)
    peak_rss_bytes: int = 0
    breakdowns: list[dict[str, float]] = dataclasses.field(default_factory=list)
    failure: str = ""
    disturbed: str = ""


class Runner:
    """Measures cells on one network.

    Args:
        network: the hosts.
        agents: agents of these hosts.
        systems: the systems, the wire first.
        repeats: samples of each cell.
        environments: where systems are installed.
        notify: called with a progress message when a step begins.
        turned: called after each turn of a contender in a cell, including the warm-up, whether it failed or not.
        wanted: which of the systems' variants to measure; all by default.

    Attributes:
        start_timeout_s: time after which a group whose ranks have not all connected counts as hanging; None is
            that of groups.
    """

    start_timeout_s: float | None = None

    def __init__(
        self,
        network: Network,
        agents: Agents,
        systems: Sequence[System],
        *,
        repeats: int,
        environments: Environments,
        notify: Callable[[str], None],
        turned: Callable[[Contender, Cell], None] = lambda _contender, _cell: None,
        wanted: Callable[[Contender], bool] = lambda _contender: True,
    ) -> None:
        self.network = network
        self.agents = agents
        self.systems = {system.name: system for system in systems}
        self.repeats = repeats
        self.notify = notify
        self.turned = turned
        self.wanted = wanted
        self.unavailable: dict[str, str] = {}
        self._environments = environments
        self._groups: dict[tuple[str, str], Group] = {}
        self._failures: dict[tuple[str, str], dict[Cell, str]] = {}
        self._seed = 0
        # A limit, not a share: hosts of a lab share one machine's memory, but the root of a gather needs most of it.
        self._memory_bytes = int(min(one["available_bytes"] for one in agents.hello) * STORE_SHARE)

    def prepare(self) -> None:
        """Installs missing systems, and records why a system is unavailable."""
        for name, system in self.systems.items():
            self.notify(f"preparing {name}")
            try:
                if len(self.network.hosts) < system.fewest:
                    raise Unavailable(f"needs at least {system.fewest} hosts")
                system.prepare(self._environments)
                if not self.network.shared_clock and (reason := self.agents.prepare(name, self._environments)):
                    raise Unavailable(reason)
            except (Unavailable, AgentFailed) as error:
                self.unavailable[name] = str(error)

    def measure(self, cell: Cell) -> Iterator[Row]:
        """Measures one cell of all systems; yields their rows, the wire's first, after all turns."""
        who = [one for one in plan.contenders(self.systems.values(), cell.op, cell.inputs) if self.wanted(one)]
        measured = {one: Measured(one) for one in who}
        for one, found in measured.items():
            found.failure = self.unavailable.get(one.system, "")
            if not found.failure:
                # The first round warms memory and connections, and verifies the result.
                self._turn(cell, found, warm=True)
        for one in plan.turns(who, self.repeats, seed=self._seed):
            if not measured[one].failure:
                self._turn(cell, measured[one], warm=False)
        yard = next((found for one, found in measured.items() if one.yardstick), None)
        wire = statistics.median(yard.samples) if yard is not None and yard.samples and not yard.failure else None
        for found in measured.values():
            yield self._row(cell, found, wire)

    def once(self, cell: Cell, one: Contender, around: Callable[[Group, Callable[[], Round]], Found]) -> Found:
        """Runs one round of a contender that does not count, for example to watch how it works.

        Args:
            cell: the cell.
            one: the contender, which is not frozen meanwhile.
            around: gets its group and a function that runs the round; returns the result.

        Raises:
            Unavailable: it can't run.
            GroupFailed: it failed.
            AgentFailed: a host can't be reached.
        """
        self._make_room(cell, one)
        group = self._group(one)
        try:
            group.thaw()
            found = around(group, lambda: self._round(cell, group, one))
            group.freeze()
        except BaseException:
            self._drop((one.system, one.group))
            raise
        return found

    def _turn(self, cell: Cell, found: Measured, *, warm: bool) -> None:
        """Runs one turn of a contender, alone on the machine: one sample, or the warm-up round."""
        one = found.contender
        try:
            self._make_room(cell, one)
            group = self._group(one)
            self.notify(f"{one.system} {one.variant}: {cell}")
            found.version = group.version
            group.thaw()
            rounds = 1 if warm else cell.rounds(found.warm_s)
            if not warm:
                # After a freeze, caches are cold and heartbeats are late; the first round absorbs that. A large first
                # round would take as long as what it protects, so it is small unless the group was started anew.
                small = rounds == 1 and found.warmed is group
                first = self._round(replace(cell, nbytes=min(cell.nbytes, SMALL_BYTES)) if small else cell, group, one)
                found.disturbed = found.disturbed or first.disturbed
            weigh = cell.nbytes >= WEIGH_BYTES and not warm
            results = [self._round(cell, group, one, weigh=weigh) for _ in range(rounds)]
            group.freeze()
        except Unavailable as error:
            found.failure = str(error)
        except (GroupFailed, AgentFailed) as error:
            found.failure = str(error)
            self._failures.setdefault((one.system, one.group), {})[cell] = str(error)
            self._drop((one.system, one.group))
        else:
            found.warmed = group
            found.disturbed = next(filter(None, [found.disturbed, *(result.disturbed for result in results)]), "")
            seconds = statistics.median(result.seconds for result in results)
            if warm:
                found.warm_s = seconds
            else:
                found.samples.append(seconds)
                found.breakdowns += [result.breakdown for result in results]
            if weigh:
                found.cpu_seconds += [result.cpu_seconds for result in results]
                found.peak_rss_bytes = max(found.peak_rss_bytes, *(result.peak_rss_bytes for result in results))
        self.turned(one, cell)

    def _round(self, cell: Cell, group: Group, one: Contender, *, weigh: bool = False) -> Round:
        self._seed += 1
        return group.round(
            cell.op,
            cell.nbytes,
            variant=one.variant,
            seed=self._seed,
            # The wire is a single stream, which waits for no other.
            arrival_s=0.0 if one.system == WIRE else cell.arrival_s,
            inputs=cell.inputs,
            timeout_s=self.step_timeout_s(cell),
            weigh=weigh,
        )

    def step_timeout_s(self, cell: Cell) -> float:
        """The time after which a step of a round counts as hanging, in seconds."""
        return plan.step_timeout_s(cell, len(self.network.hosts), self.network.rate)

    def _group(self, one: Contender) -> Group:
        """Returns the group of a contender; starts it if it does not run. It is frozen."""
        key = one.system, one.group
        if key not in self._groups:
            failures = list(self._failures.get(key, {}).values())
            if len(failures) >= FAILURES_MAX:
                raise Unavailable(f"failed in {len(failures)} earlier cells, most recently: {failures[-1]}")
            self.notify(f"starting {one.system} ({one.group})")
            group = Group(self.systems[one.system], one.group, self.network, self.agents, self._memory_bytes)
            group.start(self.start_timeout_s)
            self._groups[key] = group
            group.freeze()
        return self._groups[key]

    def _drop(self, key: tuple[str, str]) -> None:
        """Ends a group, if it runs. Its next turn starts a new one."""
        group = self._groups.pop(key, None)
        if group is not None:
            # A system that does not end was reported already, and takes part in nothing else.
            with contextlib.suppress(AgentFailed):
                group.stop()

    def _make_room(self, cell: Cell, one: Contender) -> None:
        """Frees memory for a cell: hosts of a lab share this machine's memory.

        Frozen groups keep memory from earlier cells. They are ended one by one, the contender's own last.

        Raises:
            Unavailable: there is not enough memory.
        """
        if not self.network.shared_clock:
            return
        needed = self.systems[one.system].memory(cell.op, len(self.network.hosts), cell.nbytes * cell.inputs)
        own = (one.system, one.group)
        for key in sorted(self._groups, key=lambda key: key == own):
            if needed <= self._available():
                return
            self._drop(key)
        available = self._available()
        if needed > available:
            raise Unavailable(
                f"does not fit: needs about {needed / 2**30:.1f} GiB, but {available / 2**30:.1f} GiB are free here"
            )

    def _available(self) -> int:
        answer = self.agents.one(self.network.hosts[0], {"do": "hello"})
        return int(answer["available_bytes"]) - SPARE_BYTES

    def _row(self, cell: Cell, found: Measured, wire: float | None) -> Row:
        one = found.contender
        samples = [] if found.failure else found.samples
        facts: dict[str, Any] = dict(self.agents.machine)
        return Row(
            system=one.system,
            variant=one.variant,
            version=found.version,
            op=cell.op,
            hosts=len(self.network.hosts),
            bytes=cell.nbytes,
            arrival_s=cell.arrival_s,
            repeats=self.repeats,
            seconds=spread(samples),
            samples=samples,
            wire_ratio=statistics.median(samples) / wire if samples and wire else None,
            verified=bool(samples),
            cpu_seconds=statistics.median(found.cpu_seconds) if found.cpu_seconds and samples else None,
            peak_rss_bytes=found.peak_rss_bytes or None if samples else None,
            lab=self.network.facts,
            machine=facts,
            commit=facts.pop("commit"),
            build=self.agents.build,
            inputs=cell.inputs,
            breakdown=_medians(found.breakdowns) if samples else {},
            note=found.failure or (f"{DISTURBED}: {found.disturbed}" if found.disturbed else ""),
        )

    def close(self) -> None:
        """Ends all groups."""
        for key in list(self._groups):
            self._drop(key)


def _medians(breakdowns: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each part over the rounds that report it."""
    parts: dict[str, list[float]] = {}
    for breakdown in breakdowns:
        for name, seconds in breakdown.items():
            parts.setdefault(name, []).append(seconds)
    return {name: statistics.median(seconds) for name, seconds in parts.items()}
