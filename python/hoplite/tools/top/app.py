"""The terminal display of `hoplite top`: one table of the cluster at a time, redrawn with each frame.

Computes no row itself. Uses the colors of the terminal; without colors (NO_COLOR) nothing is lost.
"""

from __future__ import annotations

import asyncio
import copy
import signal
import textwrap
import time
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static, Tab, Tabs

from hoplite.tools.quantities import visible
from hoplite.tools.top.picture import TABS, Cell, Picture, arrange, select

if TYPE_CHECKING:
    from textual import events

    from hoplite.tools.observe.observer import Observer

# Age at which a frame counts as late: several ticks.
LATE_S = 5.0
# Cells around the text of a cell, and the least width of the last column.
CELL_PADDING = 2
SENTENCE_MIN = 24

HELP = """\
1 … 6, Tab       another table
↑ ↓ ← →          scroll; also PgUp, PgDn, Ctrl+Home, Ctrl+End
s, r             sort by the next column, reverse the order
/                filter; Enter keeps the filter, Escape removes it
p                pause and continue the display
q                quit

in/s, out/s      bytes per second that a node receives and sends
*                the node that this display reads from
suspected        did not reply to a probe of another node
silent           did not reply to this display
Trees            each node is below the node that it receives from;
                 of a reduce, below the node that it sends to.
                 → and ← are the next node of a chain

Any key closes this help."""


class Help(ModalScreen[None]):
    """The keys and terms."""

    def compose(self) -> ComposeResult:
        """Builds the screen."""
        yield Static(HELP, id="help", markup=False)

    def on_key(self, event: events.Key) -> None:
        """Closes the help."""
        event.stop()
        self.dismiss()


class Top(App[None]):
    """Shows a cluster until the user quits.

    Args:
        observer: reads the cluster.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; min-height: 2; max-height: 20%; padding: 0 1; }
    Tab.-active { text-style: bold reverse; }
    #table { height: 1fr; background: transparent; scrollbar-color: ansi_bright_black; scrollbar-size: 1 1; }
    #table > .datatable--header { text-style: bold; background: transparent; }
    #filter { display: none; height: 1; border: none; padding: 0 1; }
    Help { align: center middle; }
    #help { width: 72; height: auto; border: solid; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("tab", "turn(1)", "Next", key_display="Tab", priority=True),
        Binding("shift+tab", "turn(-1)", show=False, priority=True),
        *(Binding(str(number), f"show({number - 1})", show=False) for number in range(1, len(TABS) + 1)),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "unfilter", show=False),
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("p", "pause", "Pause"),
    ]

    def __init__(self, observer: Observer) -> None:
        super().__init__(ansi_color=True)
        self.picture = Picture()
        self._observer = observer
        # What is shown while the display is paused.
        self._paused: Picture | None = None
        self._number = 0
        # Column and direction of each table; None for its own order.
        self._orders: dict[int, tuple[int, bool]] = {}
        # Columns of the table, and whether it has rows: columns grow with their content, but do not shrink.
        self._shape: tuple[list[str], bool] = [], False
        self._received = time.monotonic()
        self._head = Static(id="head", markup=False)
        self._tabs = Tabs(*(Tab(f"{number} {tab.title}", id=f"tab{number}") for number, tab in enumerate(TABS, 1)))
        self._table: DataTable[Text] = DataTable(id="table", cursor_type="none")
        self._filter = Input(id="filter", placeholder="text in any column")

    def compose(self) -> ComposeResult:
        """Builds the display."""
        yield from (self._head, self._tabs, self._table, self._filter, Footer())

    def on_mount(self) -> None:
        """Starts to read frames."""
        self.theme = "ansi-dark"
        # The arrow keys always scroll the table.
        self._tabs.can_focus = False
        self._table.focus()
        self.set_interval(1.0, self._draw_head)
        self.run_worker(self._watch())
        # Restores the terminal first.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit, None, 128 + signal.SIGTERM)

    async def _watch(self) -> None:
        try:
            async for frame in self._observer.frames():
                self._received = time.monotonic()
                if frame["totals"]:
                    self.picture.update(frame)
                self._draw()
        finally:
            await self._observer.close()

    def _draw(self) -> None:
        if not self._table.is_attached:
            # The display ends.
            return
        self._draw_head()
        tab = TABS[self._number]
        groups = select(tab.groups(self._paused or self.picture), self._filter.value)
        column, is_reverse = self._orders.get(self._number, (-1, False))
        if column >= 0:
            groups = arrange(groups, column, reverse=is_reverse)
        marks = {column: " ▼" if is_reverse else " ▲"}
        columns = [title + marks.get(number, "") for number, title in enumerate(tab.columns)]
        rows = [[_text(cell) for cell in line] for group in groups for line in group]
        shape = columns, bool(rows)
        if not rows:
            empty = "no row has this text" if self._filter.value else tab.empty
            rows = [[Text(empty), *(Text() for _ in columns[1:])]]
        self._fill(shape, rows)

    def _fill(self, shape: tuple[list[str], bool], rows: list[list[Text]]) -> None:
        """Replaces the rows; the visible part stays."""
        table = self._table
        x, y = table.scroll_target_x, table.scroll_target_y
        is_same = shape == self._shape
        with self.batch_update():
            table.clear(columns=not is_same)
            if not is_same:
                self._shape = shape
                table.add_columns(*shape[0])
            for row, height in _wrapped(shape[0], rows, self.size.width):
                table.add_row(*row, height=height)
            if is_same:
                table.scroll_to(x, y, animate=False)

    def _draw_head(self) -> None:
        first, second = (self._paused or self.picture).headlines()
        age = time.monotonic() - self._received
        if self._observer.failure is not None:
            second = f"the node does not reply: {self._observer.failure}"
        elif age > LATE_S:
            second = f"no reply for {age:.0f} s"
        if self._paused is not None:
            second = f"paused  {second}"
        # An error ends with its advice, so the lines wrap.
        self._head.update(Text(f"{first}\n{second}", overflow="fold"))

    def on_tabs_tab_activated(self, event: Tabs.TabActivated) -> None:
        """Shows the table of a tab."""
        self._number = int(str(event.tab.id).removeprefix("tab")) - 1
        self._draw()

    def on_input_changed(self) -> None:
        """Applies the filter while it is typed."""
        self._draw()

    def on_input_submitted(self) -> None:
        """Keeps the filter."""
        self._table.focus()

    def action_show(self, number: int) -> None:
        """Shows a table."""
        self._tabs.active = f"tab{number + 1}"

    def action_turn(self, by: int) -> None:
        """Shows the next table."""
        self.action_show((self._number + by) % len(TABS))

    def action_filter(self) -> None:
        """Opens the filter."""
        self._filter.display = True
        self._filter.focus()

    def action_unfilter(self) -> None:
        """Removes the filter."""
        self._filter.value = ""
        self._filter.display = False
        self._table.focus()

    def action_sort(self) -> None:
        """Sorts by the next column; after the last one, the table has its own order."""
        column = self._orders.get(self._number, (-1, False))[0] + 1
        tab = TABS[self._number]
        if column == len(tab.columns):
            self._orders.pop(self._number, None)
        else:
            groups = tab.groups(self._paused or self.picture)
            key: Any = groups[0][0][column].key if groups else ""
            self._orders[self._number] = column, isinstance(key, int | float)
        self._draw()

    def action_reverse(self) -> None:
        """Reverses the order of the column that is sorted by."""
        if self._number in self._orders:
            column, is_reverse = self._orders[self._number]
            self._orders[self._number] = column, not is_reverse
            self._draw()

    def action_pause(self) -> None:
        """Freezes the display, or continues with the current state."""
        self._paused = None if self._paused is not None else copy.deepcopy(self.picture)
        self._draw()

    def action_interrupt(self) -> None:
        """Ends with the exit code of Ctrl-C."""
        self.exit(return_code=128 + signal.SIGINT)

    def action_help(self) -> None:
        """Shows keys and terms."""
        self.push_screen(Help())


def _wrapped(columns: list[str], rows: list[list[Text]], width: int) -> list[tuple[list[Text], int]]:
    """Wraps the last column, which has sentences, to the width of the terminal. Returns rows with their heights."""
    cells = zip(*([Text(title) for title in columns[:-1]], *(row[:-1] for row in rows)), strict=True)
    others = sum(max(cell.cell_len for cell in column) + CELL_PADDING for column in cells)
    # A column of the scroll bar is kept free. What does not fit even then is scrolled to.
    left = max(width - others - CELL_PADDING - 1, SENTENCE_MIN)
    found = []
    for row in rows:
        *before, last = row
        text = last.plain if last.cell_len <= left else textwrap.fill(last.plain, left)
        found.append(([*before, Text(text, last.style, justify=last.justify)], text.count("\n") + 1))
    return found


def _text(cell: Cell) -> Text:
    return Text(visible(cell.text), cell.style, justify="right" if isinstance(cell.key, int | float) else "left")
