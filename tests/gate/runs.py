"""Runs of the gate: measures cells, a second time where a figure is worse, and logs the values in this checkout."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from gate import conditions
from gate.figures import Failed, Figure

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from gate.figures import Group

# A second run starts only if it can end in this time after the start of the first.
LIMIT_S = 720.0


class Run:
    """The figures of a run and the cells that failed.

    Args:
        groups: all cells.
        cells: the names of those to measure.
    """

    def __init__(self, groups: Sequence[Group], cells: Collection[str]) -> None:
        self.figures: dict[str, Figure] = {}
        self.failures: list[Failed] = []
        self.begun = time.monotonic()
        # How long each cell took; cells of one group equally long.
        self.took_s: dict[str, float] = {}
        for group in groups:
            if own := [cell for cell in group.cells if cell in cells]:
                self._measure(group, own)

    def _measure(self, group: Group, cells: Sequence[str]) -> None:
        """Measures some cells of a group. An error ends the group, not the run."""
        begun = time.monotonic()
        sys.stderr.write(f"gate: {(begun - self.begun) / 60:.1f} minutes, measuring {', '.join(cells)}\n")
        try:
            conditions.wait_idle()
            for found in group.measure(cells):
                if isinstance(found, Failed):
                    self.failures.append(found)
                else:
                    self.figures[found.name] = found
        except Exception as error:  # noqa: BLE001 - any error is a result, next to those of other cells
            known = {one.cell for one in self.figures.values()} | {one.cell for one in self.failures}
            lacking = [cell for cell in cells if cell not in known] or cells[-1:]
            self.failures += [Failed(cell, f"{type(error).__name__}: {error}") for cell in lacking]
        self.took_s |= dict.fromkeys(cells, (time.monotonic() - begun) / len(cells))

    def repeat(self, groups: Sequence[Group], worse: Collection[str]) -> Run | None:
        """Measures the cells of figures that are worse again, and keeps the better value of both.

        A slow minute of the machine makes a figure worse once; a regression makes it worse twice.

        Returns:
            The second run; None if there was no time for it.
        """
        cells = {self.figures[name].cell for name in worse}
        if time.monotonic() + sum(self.took_s[cell] for cell in cells) - self.begun > LIMIT_S:
            return None
        second = Run(groups, cells)
        for name in worse & second.figures.keys():
            both = (self.figures[name], second.figures[name])
            self.figures[name] = (min if both[0].better == "lower" else max)(both, key=lambda one: one.value)
        return second

    def log(self, path: Path, commit: str) -> None:
        """Appends the values to a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        values = {name: figure.values for name, figure in self.figures.items()}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"commit": commit, "figures": values}) + "\n")


def logged(path: Path, commit: str) -> dict[str, list[list[float]]]:
    """The values of each figure in all runs of a commit, one list for each run."""
    found: dict[str, list[list[float]]] = {}
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        if line["commit"] == commit:
            for name, values in line["figures"].items():
                found.setdefault(name, []).append(values)
    return found
