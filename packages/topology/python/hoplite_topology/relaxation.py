"""A ring as a linear program, solved by HiGHS: each edge is used fractionally, and each machine has two edges.

Columns are edges, rows are machines and then cuts. Independent of which cuts are violated, and what a solution proves.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hoplite_topology._native import Rings

# Values this close to 0 or 1 count as integral.
WHOLE = 1e-6


class Edge(NamedTuple):
    """Two machines, the smaller number first."""

    a: int
    b: int


class Cut(NamedTuple):
    """A set of machines, and the edges that count as negative among those that leave it."""

    inside: list[int]
    teeth: list[tuple[int, int]]

    @property
    def least(self) -> int:
        """The lower bound for every ring."""
        return 1 - len(self.teeth) if self.teeth else 2


class Prices(NamedTuple):
    """The dual prices of machines and cuts."""

    nodes: list[float]
    cuts: list[float]


def is_there() -> bool:
    """Whether HiGHS is installed."""
    return importlib.util.find_spec("highspy") is not None


class Relaxation:
    """The linear program, with a growing set of edges.

    Args:
        rings: costs of hops.
        count: number of machines.
        edges: initial edges; they must contain at least one ring.
    """

    def __init__(self, rings: Rings, count: int, edges: list[Edge]) -> None:
        import highspy
        import numpy as np

        class Quiet(highspy.Highs):
            """Omits the line with its version, which would be printed to stdout."""

            def enableCallbacks(self) -> None:  # noqa: N802 - the name in highspy
                self.silent()
                enable: Any = super().enableCallbacks
                enable()

        self._np: Any = np
        self._status = highspy.HighsModelStatus
        self._infinity = highspy.kHighsInf
        make: Any = Quiet
        self._lp: Any = make()
        self._lp.silent()
        # Each solution is the start of the next one, which presolve would discard.
        for option, value in {"presolve": "off", "solver": "simplex", "threads": 1}.items():
            self._lp.setOptionValue(option, value)
        self._rings = rings
        self._ends: Any = np.zeros((0, 2), dtype=np.int64)
        self.count = count
        self.edges: list[Edge] = []
        self.cuts: list[Cut] = []
        self._holds: list[Any] = []
        self._columns: dict[Edge, int] = {}
        self.parts: list[float] = []
        self.value = 0.0
        self.prices = Prices([0.0] * count, [])
        twice = np.full(count, 2.0)
        none = np.zeros(0, dtype=np.int32)
        self._lp.addRows(count, twice, twice, 0, np.zeros(count, dtype=np.int32), none, np.zeros(0))
        self.add_edges(edges)

    def add_edges(self, edges: list[Edge]) -> int:
        """Adds edges that do not exist yet; returns their number."""
        np = self._np
        new = [edge for edge in dict.fromkeys(edges) if edge not in self._columns]
        if not new:
            return 0
        ends = np.array(new, dtype=np.int64)
        self._columns.update({edge: len(self.edges) + at for at, edge in enumerate(new)})
        self.edges += new
        self._ends = np.concatenate([self._ends, ends])
        # Builds the entries of all new columns row by row, then sorts them by column.
        columns = [np.arange(len(new))] * 2
        rows, values = [ends[:, 0], ends[:, 1]], [np.ones(len(new))] * 2
        for at in range(len(self.cuts)):
            signs = self._signs(at, ends)
            crossing = np.nonzero(signs)[0]
            columns.append(crossing)
            rows.append(np.full(len(crossing), self.count + at))
            values.append(signs[crossing])
        column = np.concatenate(columns)
        order = np.argsort(column, kind="stable")
        starts = np.searchsorted(column[order], np.arange(len(new)))
        self._lp.addCols(
            len(new),
            np.array(self._rings.costs(new)),
            np.zeros(len(new)),
            np.ones(len(new)),
            len(column),
            starts.astype(np.int32),
            np.concatenate(rows)[order].astype(np.int32),
            np.concatenate(values)[order],
        )
        return len(new)

    def add_cuts(self, cuts: list[Cut]) -> None:
        """Adds cuts as rows."""
        np = self._np
        starts, indices, values = [0], [], []
        for cut in cuts:
            holds = np.zeros(self.count, dtype=bool)
            holds[cut.inside] = True
            self.cuts.append(cut)
            self._holds.append(holds)
            signs = self._signs(len(self.cuts) - 1, self._ends)
            crossing = np.nonzero(signs)[0]
            indices.append(crossing)
            values.append(signs[crossing])
            starts.append(starts[-1] + len(crossing))
        self._lp.addRows(
            len(cuts),
            np.array([float(cut.least) for cut in cuts]),
            np.full(len(cuts), self._infinity),
            starts[-1],
            np.array(starts[:-1], dtype=np.int32),
            np.concatenate(indices).astype(np.int32),
            np.concatenate(values),
        )

    def _signs(self, at: int, ends: Any) -> Any:  # noqa: ANN401 - arrays of NumPy
        """The coefficients of edges in a cut: 1, 0, or -1 for a tooth."""
        holds = self._holds[at]
        signs = (holds[ends[:, 0]] != holds[ends[:, 1]]).astype(float)
        for a, b in self.cuts[at].teeth:
            signs[(ends[:, 0] == a) & (ends[:, 1] == b)] = -1.0
        return signs

    def fix(self, fixed: dict[Edge, bool]) -> None:
        """Fixes edges to be used or not; all others are free."""
        np = self._np
        lower, upper = np.zeros(len(self.edges)), np.ones(len(self.edges))
        for edge, is_in in fixed.items():
            lower[self._columns[edge]] = upper[self._columns[edge]] = float(is_in)
        columns = np.arange(len(self.edges), dtype=np.int32)
        self._lp.changeColsBounds(len(self.edges), columns, lower, upper)

    def solve(self, seconds: float) -> bool | None:
        """Solves the program, and sets `parts`, `value` and `prices`.

        Returns:
            Whether there is a solution. If not, `prices` prove that once scaled up. None if the time limit was reached,
            or HiGHS failed.
        """
        self._lp.setOptionValue("time_limit", self._lp.getRunTime() + max(seconds, 0.01))
        self._lp.run()
        status = self._lp.getModelStatus()
        if status == self._status.kInfeasible:
            known = self._lp.getDualRay()
            if not known[1]:
                return None
            self._read(list(known[2]))
            return False
        if status != self._status.kOptimal:
            return None
        solution = self._lp.getSolution()
        self.parts = solution.col_value
        self.value = self._lp.getInfo().objective_function_value
        self._read(solution.row_dual)
        return True

    def _read(self, duals: list[float]) -> None:
        self.prices = Prices(list(duals[: self.count]), list(duals[self.count :]))

    def support(self) -> tuple[list[Edge], list[float]]:
        """The edges with nonzero values, and the values."""
        there = [(edge, part) for edge, part in zip(self.edges, self.parts, strict=True) if part > WHOLE]
        return [edge for edge, _ in there], [part for _, part in there]

    def order(self) -> list[int] | None:
        """The ring, if all values are integral and form one."""
        beside: list[list[int]] = [[] for _ in range(self.count)]
        for (a, b), part in zip(self.edges, self.parts, strict=True):
            if part > 1 - WHOLE:
                beside[a].append(b)
                beside[b].append(a)
            elif part > WHOLE:
                return None
        if any(len(two) != 2 for two in beside):
            return None
        order, last = [0], 0
        while len(order) < self.count:
            here = order[-1]
            following = beside[here][0] if beside[here][0] != last else beside[here][1]
            last = here
            order.append(following)
        return order if len(set(order)) == self.count else None
