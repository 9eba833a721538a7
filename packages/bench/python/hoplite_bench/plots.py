"""Figures of a report, as in the papers: latency by hosts and by size, late callers, and multiples of the wire's time.

A system has the same color and marker in all figures; the colors are the colorblind-safe palette of Okabe and Ito. The
same rows produce the same bytes. The module does not depend on the page that includes the figures.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import math
import textwrap
from typing import TYPE_CHECKING, Any

from hoplite.errors import PackageMissing
from hoplite.extras import install
from hoplite_bench import tables, words
from hoplite_bench.row import WIRE
from hoplite_bench.tables import HOPLITE, unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hoplite_bench.row import Row
    from hoplite_bench.tables import Case, Measurement

# Color and marker; the palette of Okabe and Ito without its yellow, which is too light for lines.
STYLES = {
    HOPLITE: ("#D55E00", "o"),
    "hoplite-cpp": ("#D55E00", "*"),
    "mpich": ("#0072B2", "s"),
    "openmpi": ("#56B4E9", "^"),
    "gloo": ("#009E73", "D"),
    "ray": ("#CC79A7", "v"),
    "dask": ("#E69F00", "X"),
    "torch-gloo": ("#009E73", "d"),
    "torch-mpi": ("#0072B2", "p"),
    "torch-hoplite": ("#D55E00", "h"),
}
OTHER = ("#000000", "P")
PANEL_INCHES = (3.0, 2.5)
# Maximum line length above a panel, inside a panel in small type, and below a wide panel.
LETTERS = 40
LETTERS_SMALL = 44
LETTERS_WIDE = 64
SETTINGS: Any = {
    "svg.hashsalt": "hoplite",
    # Text stays text: it can be searched and read aloud, and the file has a quarter of the size.
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlepad": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 6,
    "legend.frameon": False,
}


@dataclasses.dataclass(frozen=True)
class Picture:
    """One figure.

    Attributes:
        about: the operation that it shows; "arrival" or "wire" if it shows several.
        name: name of its file.
        caption: description for readers who can't see it.
        svg: the SVG document.
    """

    about: str
    name: str
    caption: str
    svg: str


def draw(measurement: Measurement) -> list[Picture]:
    """Draws all figures for which a measurement has rows.

    Raises:
        PackageMissing: Matplotlib is not installed.
    """
    together = measurement.select(lambda case: case.hosts > 1 and case.arrival_s == 0)
    late = measurement.select(lambda case: case.hosts > 1 and case.arrival_s > 0)
    pictures = []
    with drawing():
        if together:
            pictures.append(_times_the_wire(together))
        for op in unique(case.op for case in together):
            cases = {case: rows for case, rows in together.items() if case.op == op}
            pictures += [_against_hosts(op, cases), _against_size(op, cases)]
        for place, hosts, size in unique((case.place, case.hosts, case.bytes) for case in late):
            same = (place, hosts, size)
            cases = measurement.select(lambda case, same=same: (case.place, case.hosts, case.bytes) == same)  # type: ignore[misc]
            ops = {case.op for case in late if (case.place, case.hosts, case.bytes) == same}
            pictures.append(_against_arrival({case: rows for case, rows in cases.items() if case.op in ops}))
    return pictures


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Applies the settings of all figures for the duration of a `with` block.

    Raises:
        PackageMissing: Matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise PackageMissing(f"figures require {error.name}: {install('report', 'hoplite-bench')}") from None
    with mpl.rc_context(SETTINGS):
        yield


def _against_hosts(op: str, cases: dict[Case, list[Row]]) -> Picture:
    """A panel per size: latency by number of hosts, with the points of each network joined."""
    sizes = sorted({case.bytes for case in cases})
    figure, panels = grid(len(sizes))
    for axes, size in zip(panels, sizes, strict=True):
        # Only networks and hosts that this size was measured with.
        stops = unique((case.place, case.hosts) for case in cases if case.bytes == size)
        places = unique(place for place, _ in stops)
        axes.set_title(f"{words.title(op)}, {words.size(size)}")
        for place in places:
            here = {case: rows for case, rows in cases.items() if (case.place, case.bytes) == (place, size)}
            # Systems are shifted sideways, because equally fast ones would cover each other.
            _lines(
                axes,
                here,
                lambda case, stops=stops: stops.index((case.place, case.hosts)),  # type: ignore[misc]
                shift=lambda at, place: at + 0.25 * place,
            )
        is_told = _absent(axes, {case: rows for case, rows in cases.items() if case.bytes == size})
        axes.set_xticks(range(len(stops)), [str(hosts) for _, hosts in stops])
        axes.set_xlim(-0.4, len(stops) - 0.6)
        axes.grid(visible=False, axis="x")
        for at, (one, other) in enumerate(itertools.pairwise(stops)):
            if one[0] != other[0]:
                axes.axvline(at + 0.5, color="#b0b0b0", linewidth=0.8, linestyle=(0, (2, 2)))
        for place in places:
            own = [at for at, stop in enumerate(stops) if stop[0] == place]
            middle = (own[0] + own[-1]) / 2
            named = textwrap.fill(place.short, LETTERS_SMALL * len(own) // len(stops))
            axes.text(middle, 1, named, transform=axes.get_xaxis_transform(), **SMALL)
        latency(axes, room=is_told)
    return _finish(
        figure,
        cases,
        op,
        f"{op}-hosts.svg",
        f"{words.title(op)}: latency by number of hosts",
        "number of hosts",
    )


def _against_size(op: str, cases: dict[Case, list[Row]]) -> Picture:
    """A panel per number of hosts: latency by size, both logarithmic."""
    stops = unique((case.place, case.hosts) for case in cases)
    figure, panels = grid(len(stops))
    for axes, (place, hosts) in zip(panels, stops, strict=True):
        here = {case: rows for case, rows in cases.items() if (case.place, case.hosts) == (place, hosts)}
        axes.set_title(textwrap.fill(f"{words.count(hosts, 'host')}, {place.short}", LETTERS))
        sizes = [case.bytes for case in here]
        _lines(
            axes,
            here,
            lambda case: case.bytes,
            shift=lambda at, place: at * 2 ** (0.7 * place),
        )
        is_told = _absent(axes, here)
        if all(sizes):
            axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [words.size(size).replace(" ", "\n") for size in sizes])
        axes.minorticks_off()
        latency(axes, room=is_told)
    caption = f"{words.title(op)}: latency by size"
    x, y = "size of each participant's array", f"{words.title(op).lower()}: latency"
    return _finish(figure, cases, op, f"{op}-sizes.svg", caption, x, y=y)


def _against_arrival(cases: dict[Case, list[Row]]) -> Picture:
    """A column per operation: latency since the last call above, since the first call below."""
    ops = unique(case.op for case in cases)
    some = next(iter(cases))
    figure, panels = grid(2 * len(ops), columns=len(ops))
    for at, op in enumerate(ops):
        here = {case: rows for case, rows in cases.items() if case.op == op}
        since_last, since_first = panels[at], panels[at + len(ops)]
        since_last.set_title(f"{words.title(op)}, since the last call")
        since_first.set_title(f"{words.title(op)}, since the first call")
        _lines(since_last, here, lambda case: case.arrival_s)
        latency(since_last, room=_absent(since_last, here))
        _lines(since_first, here, lambda case: case.arrival_s, before=lambda case: (case.hosts - 1) * case.arrival_s)
        intervals = sorted(case.arrival_s for case in here)
        calls = [(some.hosts - 1) * interval for interval in intervals]
        since_first.plot(
            intervals, calls, color="#404040", linestyle=(0, (1, 1.5)), label="call of the last participant"
        )
        since_first.set_ylim(bottom=0)
        since_first.yaxis.set_major_formatter(engineer())
        _absent(since_first, here)
        for axes in (since_last, since_first):
            axes.set_xticks(intervals, [f"{interval:g}" for interval in intervals])
    title = f"{words.size(some.bytes)}, {words.count(some.hosts, 'host')}, {some.place.short}"
    name = f"arrival-{some.hosts}-hosts-{words.size(some.bytes).replace(' ', '-')}.svg"
    caption = f"Staggered calls of participants: latency by interval, {title}"
    return _finish(figure, cases, "arrival", name, caption, "seconds between successive calls")


def _times_the_wire(cases: dict[Case, list[Row]]) -> Picture:
    """A panel per operation: bars for each number of hosts, at the largest of the most frequently measured sizes."""
    ops = unique(case.op for case in cases)
    figure, panels = grid(len(ops), columns=min(2, len(ops)), inches=(5.0, 2.2))
    for axes, op in zip(panels, ops, strict=True):
        sizes = [case.bytes for case in cases if case.op == op]
        size = max(sizes, key=lambda size: (sizes.count(size), size))
        here = {case: rows for case, rows in cases.items() if (case.op, case.bytes) == (op, size)}
        axes.set_title(f"{words.title(op)}, {words.size(size)}")
        axes.set_xlim(-0.55, len(here) - 0.45)
        axes.set_ylim(0, _top(here))
        for at, (case, rows) in enumerate(here.items()):
            shown = [system for system in tables.systems(rows) if system != WIRE]
            width = min(0.84 / max(1, len(shown)), 0.2)
            for place, system in enumerate(shown):
                _bar(axes, at + (place - (len(shown) - 1) / 2) * width, width, system, tables.best(rows, system))
            if (least := tables.least(case)) is not None:
                axes.hlines(least, at - 0.46, at + 0.46, color="black", linewidth=1, label="limit", zorder=3)
        labels = [_beneath(case, LETTERS_WIDE // len(here)) for case in here]
        axes.set_xticks(range(len(labels)), labels)
        axes.tick_params(axis="x", length=0)
        axes.grid(visible=False, axis="x")
    caption = "Median in multiples of the wire's time; a bar with a gap is truncated, and its label gives the value"
    return _finish(figure, cases, "wire", "wire.svg", caption, "", y="multiple of the wire's time")


def _beneath(case: Case, letters: int) -> str:
    """The label of a number of hosts and its network, in lines of this many letters."""
    return f"{words.count(case.hosts, 'host')}\n{textwrap.fill(case.place.short, max(letters, 8))}"


def _top(cases: dict[Case, list[Row]]) -> float:
    """The end of an axis of ratios: above Hoplite and the static systems, so that these remain distinguishable."""
    ratios = [
        (system in (HOPLITE, *tables.STATIC), row.wire_ratio)
        for rows in cases.values()
        for system in tables.systems(rows)
        if (row := tables.best(rows, system)) is not None and row.wire_ratio
    ]
    near = [ratio for close, ratio in ratios if close] or [ratio for _, ratio in ratios] or [1.0]
    return 1.35 * max(near)


def _bar(axes: Axes, x: float, width: float, system: str, row: Row | None) -> None:
    """Draws a system's bar with its value; without one a text, because a missing bar would look like the fastest."""
    colour, _ = style(system)
    words_at: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 6}
    if row is None or row.wire_ratio is None:
        axes.text(x, 0, " no figure", rotation=90, color=colour, **words_at)
        return
    axes.bar(x, row.wire_ratio, width * 0.94, color=colour, label=words.name(system))
    top = axes.get_ylim()[1]
    cut = row.wire_ratio > 0.93 * top
    if cut:
        # A gap shows that the bar is truncated.
        gap: dict[str, Any] = {"color": "white", "linewidth": 1.6, "zorder": 4, "solid_capstyle": "butt"}
        for low in (0.84, 0.89):
            axes.plot([x - width / 2, x + width / 2], [low, low + 0.03], transform=axes.get_xaxis_transform(), **gap)
    text = f"{row.wire_ratio:.1f}" if row.wire_ratio < 10 else f"{row.wire_ratio:.0f}"
    axes.text(x, top if cut else row.wire_ratio, text, color="#303030", **words_at)


def _lines(
    axes: Axes,
    cases: dict[Case, list[Row]],
    x: Callable[[Case], float],
    *,
    before: Callable[[Case], float] = lambda _: 0.0,
    shift: Callable[[float, float], float] = lambda at, _: at,
) -> None:
    """Draws a line with error bars for each system, and one for the limit.

    Args:
        axes: the panel.
        cases: the cases with their rows.
        x: position of a case.
        before: seconds to add to the latency of a case.
        shift: horizontal position of a system, from the position of the case and the system's own, from -1 to 1.
    """
    systems = tables.systems(row for rows in cases.values() for row in rows)
    beside = [system for system in systems if system != WIRE]
    for system in systems:
        chosen = [(case, row) for case, rows in cases.items() if (row := tables.best(rows, system)) and row.samples]
        if not chosen or (system == WIRE and any(case.arrival_s for case in cases)):
            continue
        if system == WIRE:
            at = [x(case) for case, _ in chosen]
            axes.plot(
                at, [tables.median(row) for _, row in chosen], **WIRE_LINE, **_alone(at), label=words.name(system)
            )
            continue
        colour, marker = style(system)
        place = 2 * beside.index(system) / max(len(beside) - 1, 1) - 1
        middles = [tables.median(row) for _, row in chosen]
        axes.errorbar(
            [shift(x(case), place) for case, _ in chosen],
            [before(case) + middle for (case, _), middle in zip(chosen, middles, strict=True)],
            yerr=[
                [middle - min(row.samples) for (_, row), middle in zip(chosen, middles, strict=True)],
                [max(row.samples) - middle for (_, row), middle in zip(chosen, middles, strict=True)],
            ],
            color=colour,
            marker=marker,
            markeredgecolor="white",
            markeredgewidth=0.5,
            elinewidth=0.8,
            label=words.name(system),
            # Drawn on top of the others.
            zorder=5 if system == HOPLITE else 3,
        )
    limited = {case: rows for case, rows in cases.items() if tables.least(case)}
    limits = [
        (x(case), least * wire)
        for case, rows in limited.items()
        if (least := tables.least(case)) and (wire := tables.wire_seconds(rows)) and not case.arrival_s
    ]
    if limits and len(limits) == len(limited):
        dashes: dict[str, Any] = {"color": "black", "linewidth": 1, "linestyle": (0, (4, 2)), "zorder": 2.5}
        axes.plot(*zip(*limits, strict=True), **dashes, **_alone(limits), label="limit")


def _absent(axes: Axes, cases: dict[Case, list[Row]]) -> bool:
    """Lists the systems without any samples at the lower edge of a panel; returns whether there are any."""
    rows = [row for own in cases.values() for row in own]
    absent = set(tables.systems(rows)) - {row.system for row in rows if row.samples}
    if absent:
        why = {row.system: words.no_figure(row) for row in rows if row.system in absent}
        said = {system: "" if word == "no figure" else f" ({word})" for system, word in why.items()}
        named = ", ".join(f"{words.name(system)}{said[system]}" for system in sorted(absent, key=tables.rank))
        place: dict[str, Any] = {"transform": axes.transAxes, **SMALL, "ha": "right", "va": "bottom"}
        axes.text(0.99, 0.01, f"no figure: {named}", **place)
    return bool(absent)


def _alone(points: Sequence[object]) -> dict[str, Any]:
    """The style that makes a line of a single point visible."""
    return {"marker": "_", "markersize": 18} if len(points) == 1 else {}


# Wide and pale, because the limit may coincide with it.
WIRE_LINE: dict[str, Any] = {"color": "#c8c8c8", "linewidth": 4, "markeredgewidth": 4, "zorder": 2}
SMALL: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 7, "color": "#606060"}


def style(system: str) -> tuple[str, str]:
    """The color and marker of a system."""
    return STYLES.get(system, OTHER)


def engineer() -> Any:  # noqa: ANN401 - a type of Matplotlib, which is imported lazily
    """The labels of an axis of seconds, with a suitable unit."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter(unit="s", sep=" ")


def latency(axes: Axes, *, room: bool) -> None:
    """Sets a logarithmic axis of seconds, with as many ticks as fit; no axis if all times are 0.

    Args:
        axes: the panel.
        room: whether to leave space for text below the lowest point.
    """
    if not math.isfinite(axes.dataLim.minposy):
        return
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    # Leaves space for text above the highest point.
    axes.set_ylim(low / (high / low) ** (0.1 if room else 0), high * (high / low) ** 0.08)
    ticks(axes)


def ticks(axes: Axes) -> None:
    """Sets as many ticks as fit on a logarithmic axis of seconds."""
    from matplotlib.ticker import LogLocator

    low, high = axes.get_ylim()
    decades = math.log10(high / low)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 1.7 else (1, 3) if decades < 3 else (1,)))
    axes.yaxis.set_major_formatter(engineer())
    axes.minorticks_off()


def grid(
    count: int, *, columns: int | None = None, inches: tuple[float, float] = PANEL_INCHES
) -> tuple[Figure, Sequence[Axes]]:
    """Creates a figure with this many panels, by default up to three per row."""
    from matplotlib.figure import Figure

    across = columns or (count if count <= 3 else 2 if count == 4 else 3)
    down = math.ceil(count / across)
    wide = max(across, 2)
    figure = Figure(figsize=(wide * inches[0] + 0.4, down * inches[1] + 0.9), layout="constrained")
    panels = [figure.add_subplot(down, across, at + 1) for at in range(count)]
    return figure, panels


def add_legend(figure: Figure, order: Sequence[str], *, inches: float) -> None:
    """Places one legend above all panels, in rows of similar length.

    Args:
        figure: the figure, whose panels have labels.
        order: labels that come first, in this order, if they are in the figure.
        inches: width of an entry.
    """
    from matplotlib.container import ErrorbarContainer

    named: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            # Of a line with error bars, use only the line.
            named.setdefault(label, handle[0] if isinstance(handle, ErrorbarContainer) else handle)
    labels = [label for label in unique([*order, *named]) if label in named]
    if labels:
        down = math.ceil(len(labels) / (figure.get_figwidth() // inches))
        across = math.ceil(len(labels) / down)
        # Matplotlib fills a legend by columns; read by rows, it must have the order of the tables.
        labels = [labels[at] for column in range(across) for at in range(column, len(labels), across)]
        figure.legend(
            handles=[named[label] for label in labels], labels=labels, loc="outside upper center", ncols=across
        )


def _finish(
    figure: Figure,
    cases: dict[Case, list[Row]],
    about: str,
    name: str,
    caption: str,
    x: str,
    *,
    y: str = "latency",
) -> Picture:
    """Labels the axes, places one legend above all panels, and renders the figure."""
    systems = [words.name(system) for system in tables.systems(row for rows in cases.values() for row in rows)]
    add_legend(figure, systems, inches=1.05)
    if x:
        figure.supxlabel(x, fontsize=9)
    figure.supylabel(y, fontsize=9)
    return written(figure, about, name, caption)


def written(figure: Figure, about: str, name: str, caption: str) -> Picture:
    """Renders a figure as SVG; the same figure produces the same bytes."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return Picture(about, name, caption, text.getvalue())
