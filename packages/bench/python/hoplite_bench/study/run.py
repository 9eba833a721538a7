"""Measures the cells of the study: opens each container set-up, and runs the bench's turns in it.

A set-up that can't be opened, and a cell that has nothing to exchange, get rows with the reason. Cells are stored as
soon as they are done, so that an interrupted run can continue.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import psutil

from hoplite.tools.quantities import duration
from hoplite_bench import machine, plan, session, words
from hoplite_bench.containers import opened
from hoplite_bench.environments import Environments
from hoplite_bench.hosts import AgentFailed, Agents
from hoplite_bench.progress import Watch
from hoplite_bench.row import Row
from hoplite_bench.run import SPARE_BYTES, Runner
from hoplite_bench.study import matrix
from hoplite_bench.study.evidence import Evidence
from hoplite_bench.systems.base import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.results import Results
    from hoplite_bench.study.matrix import StudyCell, Unit
    from hoplite_bench.systems.base import System

    Turns = dict[tuple[plan.Contender, plan.Cell], tuple[float, int]]

# For estimates only, as measured on two cores: bytes of all arrays of a round that are filled, moved and compared per
# second, seconds of an empty turn, seconds of computation in a step of training, and seconds to start a system's ranks,
# by layer: PyTorch takes seconds to import.
SPEED = 3.4e9
TURN_S = 0.04
STEP_S = 0.04
START_S = {matrix.SHELL: 1.0, matrix.TORCH: 5.0}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        systems: names of systems.
        cells: cells to measure for each system.
        repeats: samples of each cell.
        install: whether systems may be downloaded from package indexes.
    """

    systems: Sequence[str]
    cells: Sequence[StudyCell]
    repeats: int
    install: bool = True


def measure(settings: Settings, results: Results) -> list[Row]:
    """Measures all cells that have no samples in the results yet.

    Args:
        settings: what to measure.
        results: the existing rows; receives the rows of each cell as soon as the cell is done.

    Returns:
        The rows of these cells, in the order of the cells, including rows that existed before.

    Raises:
        HopliteError: the file of the results is no longer writable.
    """
    with Watch() as watch:
        _Measurement(settings, results, watch).run()
    order = {cell: number for number, cell in enumerate(settings.cells)}
    found = [row for row in results.rows if row.container and matrix.cell_of(row) in order]
    return sorted(found, key=lambda row: order[matrix.cell_of(row)])


def expected_s(cell: StudyCell, system: System) -> float:
    """Estimates the seconds of one turn."""
    step_s = STEP_S * cell.ranks if cell.op in matrix.TRAINING else 0.0
    return TURN_S + step_s + system.memory(cell.op, cell.ranks, cell.nbytes) / SPEED


class _Measurement:
    """One run.

    Args:
        settings: what to measure.
        results: receives the rows.
        watch: shows the progress.
    """

    def __init__(self, settings: Settings, results: Results, watch: Watch) -> None:
        self.settings = settings
        self.results = results
        self.watch = watch
        self.systems: list[System] = session.choose(settings.systems)
        self._evidence = Evidence(results.rows)
        self._environments = Environments(install=settings.install)
        # Systems that can't run in any set-up; the estimate does not contain them.
        self._missing: set[str] = set()
        self._said: set[str] = set()

    def run(self) -> None:
        """Measures all units, after an estimate."""
        units = matrix.units(self.settings.cells)
        for system in self.systems:
            self.watch.notify(f"preparing {system.name}")
            try:
                system.prepare(self._environments)
            except Unavailable:
                self._missing.add(system.name)
        turns: Turns = {}
        for unit in units:
            turns |= self._turns(unit)
        started = {
            (cell.container, cell.ranks, one.system) for one, cell in turns if isinstance(cell, matrix.StudyCell)
        }
        total = sum(each * count for each, count in turns.values())
        total += sum(START_S[matrix.layer_of(system)] for _, _, system in started)
        cells = words.count(len(self.settings.cells), "cell")
        self.watch.say(
            f"{cells} of up to {words.count(len(self.systems) - len(self._missing), 'system')}, about {duration(total)}"
        )
        self._warn_of_memory()
        self.watch.begin(turns, len(self.settings.cells))
        for unit in units:
            if unit.ranks == 1:
                self._explain(unit, matrix.ALONE, {"kind": "study", "container": unit.container})
            else:
                self._measure(unit)

    def _turns(self, unit: Unit) -> Turns:
        """The expected seconds per turn, and the number of turns including the warm-up."""
        count = 1 + self.settings.repeats
        systems = {system.name: system for system in self.systems if system.name not in self._missing}
        return {
            (one, cell): (expected_s(cell, systems[one.system]), count)
            for cell in unit.cells
            if unit.ranks > 1
            for one in self._contenders(cell)
            if one.system in systems
        }

    def _contenders(self, cell: StudyCell) -> list[plan.Contender]:
        return [one for one in plan.contenders(self.systems, cell.op) if matrix.competes(one)]

    def _warn_of_memory(self) -> None:
        """Names the largest measurement that does not fit; its row will have no samples."""
        available = psutil.virtual_memory().available - SPARE_BYTES
        needs = [
            (system.memory(cell.op, cell.ranks, cell.nbytes), f"{words.name(system.name)}, {cell}")
            for cell in self.settings.cells
            if cell.ranks > 1
            for system in self.systems
            if system.name not in self._missing and system.variants(cell.op)
        ]
        tight = [one for one in needs if one[0] > available]
        if tight:
            needed, which = max(tight)
            self.watch.say(
                f"warning: {len(tight)} of {len(needs)} measurements do not fit into {words.memory(max(available, 0))} "
                f"of free memory; the largest needs {words.memory(needed)} ({which})"
            )

    def _measure(self, unit: Unit) -> None:
        """Measures the cells of one set-up with one number of ranks."""
        self.watch.notify(f"opening {matrix.CONTAINERS[unit.container]} with {unit.ranks} ranks")
        with contextlib.ExitStack() as stack:
            try:
                network = stack.enter_context(opened(unit.container, unit.ranks))
                agents = stack.enter_context(Agents(network))
            except (Unavailable, AgentFailed) as error:
                self._say(f"{matrix.CONTAINERS[unit.container]}: {error}")
                self._explain(unit, str(error), {"kind": "study", "container": unit.container})
                return
            for system in self.systems:
                system.adapt(network.hosts, network.topology, plain=False, transports=network.transports)
            runner = Runner(
                network,
                agents,
                self.systems,
                repeats=self.settings.repeats,
                environments=self._environments,
                notify=self.watch.notify,
                turned=self.watch.turned,
                wanted=matrix.competes,
            )
            stack.callback(runner.close)
            runner.prepare()
            for name, reason in runner.unavailable.items():
                self._say(f"{name} can't run here: {reason}")
            if strange := self.results.strange(network.facts, agents.machine):
                self._say(f"warning: {strange}")
            there = {row.key(): row for row in self.results.on(network.facts)}
            for cell in unit.cells:
                if not session.is_done(
                    cell, unit.ranks, self.systems, there, unavailable=runner.unavailable, wanted=matrix.competes
                ):
                    self._measure_cell(cell, runner)
                self.watch.close(cell)

    def _measure_cell(self, cell: StudyCell, runner: Runner) -> None:
        rows = [
            dataclasses.replace(row, container=cell.container, layer=matrix.layer_of(row.system))
            for row in runner.measure(cell)
        ]
        self.results.add(self._evidence.added(rows, cell, runner))
        for row in rows:
            if row.note and row.system not in runner.unavailable:
                self._say(f"{row.system} {row.variant}, {cell}: {row.note}")

    def _explain(self, unit: Unit, reason: str, lab: dict[str, Any]) -> None:
        """Adds rows with the reason for which a unit can't be measured; rows with samples from earlier runs stay."""
        facts: dict[str, Any] = machine.facts()
        commit = facts.pop("commit")
        kept = {row.key() for row in self.results.on(lab) if row.samples}
        for cell in unit.cells:
            rows = [
                Row(
                    system=one.system,
                    variant=one.variant,
                    version="",
                    op=cell.op,
                    hosts=unit.ranks,
                    bytes=cell.nbytes,
                    arrival_s=0.0,
                    repeats=self.settings.repeats,
                    seconds=None,
                    samples=[],
                    wire_ratio=None,
                    verified=False,
                    cpu_seconds=None,
                    peak_rss_bytes=None,
                    lab=lab,
                    machine=facts,
                    commit=commit,
                    build=machine.build(),
                    note=reason,
                    container=cell.container,
                    layer=matrix.layer_of(one.system),
                )
                for one in self._contenders(cell)
            ]
            self.results.add([row for row in rows if row.key() not in kept])
            self.watch.close(cell)

    def _say(self, text: str) -> None:
        """Prints a message unless it was printed before: units of one set-up have the same problems."""
        if text not in self._said:
            self._said.add(text)
            self.watch.say(text)
