"""A whole measurement: which cells are still to do, the file that rows go to, and what people see meanwhile."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from hoplite.bench import plan
from hoplite.bench.environments import Environments
from hoplite.bench.hosts import Agents
from hoplite.bench.row import WIRE, Row, read, to_line
from hoplite.bench.run import Runner
from hoplite.bench.systems import SYSTEMS, registry
from hoplite.errors import InvalidArgument
from hoplite.settings import closest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hoplite.bench.hosts import Network
    from hoplite.bench.systems.base import System


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        systems: by name; the wire is always among them, for all are compared to it.
        cells: what of each.
        repeats: samples of each cell.
        out: where rows go, one a line; None is nowhere.
        resume: whether rows that are there already are kept and not measured again.
        install: whether systems may be fetched from package indexes.
    """

    systems: Sequence[str]
    cells: Sequence[plan.Cell]
    repeats: int
    out: Path | None = None
    resume: bool = False
    install: bool = True


def choose(names: Sequence[str]) -> list[System]:
    """The systems of these names, the wire first.

    Raises:
        InvalidArgument: a name is unknown.
    """
    for name in names:
        if name not in SYSTEMS:
            raise InvalidArgument(f"no system {name!r}{closest(name, SYSTEMS)}; there are {', '.join(SYSTEMS)}")
    return list(registry({WIRE, *names}).values())


def check(settings: Settings) -> list[Row]:
    """Looks whether the file can be written before anything is started.

    Returns:
        The rows that are there, of a run that is resumed.

    Raises:
        InvalidArgument: the file is there, and what to do with it was not said.
    """
    if settings.out is None or not settings.out.exists() or not settings.out.stat().st_size:
        return []
    if not settings.resume:
        raise InvalidArgument(f"{settings.out} has rows already; go on with them by --resume, or say another --out")
    return read([settings.out])


def write(path: Path, rows: Sequence[Row]) -> None:
    """Replaces a file by these rows, all or nothing."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text("".join(to_line(row) + "\n" for row in rows))
    fresh.replace(path)


def measure(network: Network, settings: Settings) -> list[Row]:
    """Measures everything on one network.

    Returns:
        All rows of it, also those of the run that was resumed.
    """
    kept = check(settings)
    systems = choose(settings.systems)
    measured = {row.key() for row in kept if plan.is_on(row, network.facts)}
    hosts = len(network.hosts)

    def is_done(cell: plan.Cell) -> bool:
        keys = ((one.system, one.variant) for one in plan.contenders(systems, cell.op))
        return all((*key, cell.op, hosts, cell.nbytes, cell.arrival_s) in measured for key in keys)

    cells = [cell for cell in settings.cells if not is_done(cell)]
    # A cell of which somebody is missing is measured again as a whole, since only what took turns may be compared.
    again = {(cell.op, hosts, cell.nbytes, cell.arrival_s) for cell in cells}
    rows = [row for row in kept if row.key()[2:] not in again or not plan.is_on(row, network.facts)]
    if settings.out is not None and len(rows) < len(kept):
        write(settings.out, rows)
    environments = Environments(install=settings.install)
    columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()]
    with Agents(network) as agents, Progress(*columns, console=Console(stderr=True)) as progress:
        weights = {cell: _weight(cell, systems, network, settings.repeats) for cell in cells}
        bar = progress.add_task("", total=sum(weights.values()))
        runner = Runner(
            network,
            agents,
            systems,
            repeats=settings.repeats,
            environments=environments,
            tell=lambda text: _tell(progress, bar, text),
        )
        runner.prepare()
        for name, reason in runner.unavailable.items():
            progress.console.print(f"{name} can't run here: {reason}", highlight=False)
        for cell in cells:
            fresh = list(runner.measure(cell))
            rows += fresh
            if settings.out is not None:
                with settings.out.open("a") as file:
                    file.writelines(to_line(row) + "\n" for row in fresh)
            for row in fresh:
                if row.note and row.system not in runner.unavailable:
                    progress.console.print(f"{row.system} {row.variant}, {cell}: {row.note}", highlight=False)
            progress.advance(bar, weights[cell])
        runner.close()
    return rows


def _weight(cell: plan.Cell, systems: Sequence[System], network: Network, repeats: int) -> float:
    return len(plan.contenders(systems, cell.op)) * plan.expected_s(cell, len(network.hosts), network.rate, repeats)


def _tell(progress: Progress, bar: TaskID, text: str) -> None:
    progress.update(bar, description=text)
