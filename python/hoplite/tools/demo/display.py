"""The progress display of the demo."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hoplite.tools.quantities import write_size

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

BAR_WIDTH = 30

# Width reserved for the columns of the worker table other than the bars.
TEXT_WIDTH = 77

# Width without a terminal.
PLAIN_WIDTH = 120


@dataclasses.dataclass
class Progress:
    """State of the training.

    Attributes:
        steps: total number of steps, each of which sums gradients once.
        count: number of gradients in a sum.
        nodes: number of nodes.
        workers: number of workers, including those that have not started or have left.
        step: number of completed steps.
        accuracy: test accuracy at the last measurement, 0 to 1.
        seconds: time since the start.
        traits: special behavior of a worker, in words.
        contributions: number of gradients used so far, by worker.
        last: workers whose gradients are in the last sum.
        running: workers whose processes run.
        counters: counters of each node, from its status.
    """

    steps: int
    count: int
    nodes: int
    workers: int
    step: int = 0
    accuracy: float = 0.0
    seconds: float = 0.0
    traits: dict[int, str] = dataclasses.field(default_factory=dict)
    contributions: list[int] = dataclasses.field(init=False)
    last: set[int] = dataclasses.field(default_factory=set)
    running: set[int] = dataclasses.field(default_factory=set)
    counters: list[dict[str, int]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.contributions = [0] * self.workers


class Display:
    """Draws the progress on stderr: on a terminal at each `update`, elsewhere once, at the end of the `with` block.

    It draws nothing at the end if an error ended the block.

    Args:
        progress: the state to draw; the caller changes it.
        show: whether to draw at all.
    """

    def __init__(self, progress: Progress, *, show: bool) -> None:
        self._progress = progress
        # stdout is for the result.
        self._console = Console(stderr=True, quiet=not show)
        # Without a terminal, the width that rich assumes does not depend on the reader of the output.
        if not self._console.is_terminal:
            self._console = Console(stderr=True, quiet=not show, width=PLAIN_WIDTH)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None

    def update(self) -> None:
        """Redraws the progress if stderr is a terminal."""
        if self._live is not None:
            self._live.update(draw(self._progress, self._console.width), refresh=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
        elif error is None:
            self._console.print(draw(self._progress, self._console.width))


def draw(progress: Progress, width: int = PLAIN_WIDTH) -> RenderableType:
    """Renders the progress for a width of at least 80 columns."""
    head = Text(
        f"step {progress.step}/{progress.steps}   test accuracy {progress.accuracy:.1%}   "
        f"{progress.seconds:.1f} s   each sums the first {progress.count} gradients",
        style="bold",
    )
    return Group(head, _workers(progress, min(BAR_WIDTH, max(0, width - TEXT_WIDTH))), Text(), _nodes(progress))


def _workers(progress: Progress, bar_width: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("worker", "node", "in last sum", "gradients used", "", ""):
        table.add_column(column, no_wrap=True)
    most = max(1, *progress.contributions)
    for worker, used in enumerate(progress.contributions):
        here = worker in progress.running or progress.step == progress.steps
        state = "" if here else "left" if used else "not started"
        table.add_row(
            str(worker),
            str(worker * progress.nodes // progress.workers),
            "yes" if worker in progress.last else "",
            str(used),
            "█" * round(bar_width * used / most),
            ", ".join(filter(None, [progress.traits.get(worker), state])),
        )
    return table


def _nodes(progress: Progress) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("node")
    for column in ("sent directly", "relayed", "folded for others", "folded for itself"):
        table.add_column(column, justify="right", no_wrap=True)
    for node, counters in enumerate(progress.counters):
        table.add_row(
            f"{node} (trainer)" if node == 0 else str(node),
            *(
                write_size(counters[counter])
                for counter in (
                    "bytes_direct",
                    "bytes_relayed",
                    "bytes_folded_remote",
                    "bytes_folded_local",
                )
            ),
        )
    return table
