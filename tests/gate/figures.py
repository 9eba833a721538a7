"""What a run of the gate measures: figures of cells, and groups of cells. Does not know what was recorded."""

from __future__ import annotations

import dataclasses
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Collection, Iterator, Sequence

# Units. All but NODES are ratios of two times of the same run.
WIRE, MPICH, ECHO, IDLE, UNDISTURBED, NODES = "× wire", "× MPICH", "× echo", "× idle", "× undisturbed", "nodes"


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        name: the name of its cell, a slash, and what was measured.
        values: one value for each repeat in the run.
        unit: unit of the values.
        better: "lower" or "higher".
        shown: the same in absolute terms, for readers only; these depend on the machine.
    """

    name: str
    values: Sequence[float]
    unit: str
    better: str = "lower"
    shown: str = ""

    @property
    def value(self) -> float:
        """The median of all repeats."""
        return statistics.median(self.values)

    @property
    def cell(self) -> str:
        """The name of its cell."""
        return cell_of(self.name)


@dataclasses.dataclass(frozen=True)
class Failed:
    """A cell that could not be measured, and the error."""

    cell: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Group:
    """Cells that one program measures.

    Attributes:
        cells: their names in `CELLS=`.
        measure: measures the cells with the given names; yields figures as soon as they are known.
        needs_root: whether it creates a lab.
    """

    cells: Sequence[str]
    measure: Callable[[Collection[str]], Iterator[Figure | Failed]]
    needs_root: bool = True


def cell_of(name: str) -> str:
    """The name of the cell that a figure belongs to."""
    return name.partition("/")[0]


def start(stack: contextlib.ExitStack, module: str, argument: str) -> str:
    """Starts a module of the gate in its own process until the stack is closed; returns the first line it writes."""
    process = subprocess.Popen([sys.executable, "-m", module, argument], stdout=subprocess.PIPE, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    assert process.stdout is not None
    return process.stdout.readline()
