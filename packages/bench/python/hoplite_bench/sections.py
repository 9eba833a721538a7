"""The sections of a report with tables of figures: operations, arrival intervals, cost, and operations of one host.

Each function returns lines of Markdown; empty if there are no rows for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_bench import markdown, tables, words
from hoplite_bench.markdown import Notes
from hoplite_bench.row import WIRE
from hoplite_bench.tables import HOPLITE, MEMCPY, STATIC, unique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.row import Row
    from hoplite_bench.tables import Case, Measurement, Place

# Cell of a column that does not apply.
NOTHING = "-"


def operation(measurement: Measurement, op: str, place: Place, hosts: int) -> list[str]:
    """One operation with one number of hosts, one column per size; all variants in an expandable section below."""
    cases = measurement.select(lambda case: (case.op, case.place, case.hosts, case.arrival_s) == (op, place, hosts, 0))
    here = measurement.select(lambda case: case.place == place and case.arrival_s == 0)
    sizes = [words.size(case.bytes) for case in cases]
    notes = Notes()
    rows = []
    if any(tables.least(case) is not None for case in cases):
        factor = tables.limit(op, hosts) or 0.0
        rows.append([f"limit: {words.number(factor)} × wire", *(_limit(*one) for one in cases.items())])
    # A system without rows for this operation is listed as not measured.
    for system in tables.systems(row for own in here.values() for row in own):
        counting = [(tables.best(own, system), tables.winner(own)) for own in cases.values()]
        cells = [markdown.figure(row, notes, strong=row is not None and row is best) for row, best in counting]
        rows.append([words.name(system), *cells])
    rows.append(["Hoplite's position; ratio to the fastest static system", *map(_standing, cases.values())])
    return [
        f"### {words.title(op)}, {words.count(hosts, 'host')} ({place})",
        "",
        *markdown.table(["median · multiple of the wire's time", *sizes], rows),
        *notes.lines(),
        *_variants(cases, sizes),
    ]


def arrival(measurement: Measurement, pictures: Sequence[str]) -> list[str]:
    """The effect of calls that arrive one after another, one column per interval."""
    late = measurement.select(lambda case: case.hosts > 1 and case.arrival_s > 0)
    if not late:
        return []
    lines = [
        "## Staggered calls",
        "",
        (
            "Each participant calls at a fixed interval after the previous one. The first number is the time since the "
            "last participant's call. The number after the slash is the time since the first participant's call."
        ),
        "",
        *pictures,
    ]
    for same in unique((case.op, case.place, case.hosts, case.bytes) for case in late):
        op, place, hosts, size = same
        cases = {
            case: rows
            for case, rows in measurement.cases.items()
            if (case.op, case.place, case.hosts, case.bytes) == same
        }
        intervals = [words.seconds(case.arrival_s) for case in cases]
        notes = Notes()
        rows = []
        for system in tables.systems(row for own in cases.values() for row in own):
            cells = [words.name(system)]
            for case, own in cases.items():
                row, best = tables.best(own, system), tables.winner(own)
                before = None if system == WIRE else (hosts - 1) * case.arrival_s
                strong = row is not None and row is best
                cells.append(markdown.figure(row, notes, strong=strong, before=before))
            rows.append(cells)
        lines += [f"### {words.title(op)} of {words.size(size)}, {words.count(hosts, 'host')} ({place})", ""]
        lines += [*markdown.table(["interval", *intervals], rows), *notes.lines(), *_variants(cases, intervals)]
    return lines


def cost(measurement: Measurement) -> list[str]:
    """Processor time and memory, at the largest size that most systems were measured with."""
    cases = measurement.select(lambda case: case.hosts > 1 and case.arrival_s == 0)
    if not cases:
        return []
    lines = [
        "## Processor time and memory",
        "",
        (
            "Processor time of one repeat, summed over all processes of a system on all hosts, and the peak memory of "
            "its processes on one host. Each operation is shown at the largest size that most systems were measured "
            "with."
        ),
        "",
    ]
    for place in unique(case.place for case in cases):
        here = {case: rows for case, rows in cases.items() if case.place == place}
        shown = tables.systems(row for rows in here.values() for row in rows)
        notes = Notes()
        rows = []
        for same in unique((case.op, case.hosts) for case in here):
            case = tables.telling({case: own for case, own in here.items() if (case.op, case.hosts) == same})
            rows.append([str(case), *(_spent(tables.best(here[case], system), notes) for system in shown)])
        title = str(place)
        lines += [f"### {title[0].upper()}{title[1:]}", ""]
        lines += [*markdown.table(["", *map(words.name, shown)], rows), *notes.lines()]
    return lines


def one_host(measurement: Measurement) -> list[str]:
    """Operations without a network: seconds of each, and throughput where a plain copy of the same bytes was timed."""
    cases = measurement.select(lambda case: case.hosts == 1)
    if not cases:
        return []
    copies = {
        (case.place, case.bytes): tables.median(row)
        for case, rows in cases.items()
        for row in rows
        if row.system == MEMCPY and row.samples
    }
    notes = Notes()
    lines = []
    for case, rows in cases.items():
        machine = f" ({case.place.machine})" if case.place.machine else ""
        for row in rows:
            cells = [f"{case.op}, {words.size(case.bytes)}{machine}", markdown.variant(row)]
            cells += [markdown.spread(row, notes), NOTHING, NOTHING, NOTHING]
            if (taken := tables.median(row)) > 0 and row.samples:
                cells[3] = f"{1 / taken:,.0f}" if taken < 1 else words.number(1 / taken)
                if copy := copies.get((case.place, case.bytes)):
                    cells[4:] = [words.number(case.bytes / taken / 1e9), f"{words.number(taken / copy)}×"]
            lines.append(cells)
    return [
        "## One host",
        "",
        "Time of one operation, and its throughput and ratio to memcpy if a copy of the same bytes was timed.",
        "",
        *markdown.table(["operation", "system", "median, spread", "per second", "GB/s", "multiple of memcpy"], lines),
        *notes.lines(),
    ]


def _limit(case: Case, rows: Sequence[Row]) -> str:
    if (least := tables.least(case)) is None:
        return NOTHING
    wire = tables.wire_seconds(rows)
    return f"{words.seconds(wire * least)} · {words.number(least)}×" if wire else "wire not measured"


def _standing(rows: Sequence[Row]) -> str:
    """Hoplite's position among all systems, and its ratio to the best system with static membership."""
    hoplite = tables.best(rows, HOPLITE)
    if hoplite is None or not hoplite.samples:
        return "no figure"
    others = [row for system in tables.peers(rows) if (row := tables.best(rows, system)) is not None and row.samples]
    ahead = sum(tables.median(row) < tables.median(hoplite) for row in others)
    text = f"{ahead + 1} of {len(others) + 1}"
    static = tables.fastest(rows, STATIC)
    if static is None:
        return f"{text}; no static system"
    ratio = tables.median(hoplite) / tables.median(static)
    return f"{text}; {words.number(ratio)} × {words.name(static.system)}"


def _variants(cases: dict[Case, list[Row]], columns: Sequence[str]) -> list[str]:
    """Every row of these cases, in a table that readers can expand."""
    notes = Notes()
    named = unique((row.system, row.variant) for own in cases.values() for row in own)
    rows = []
    for system, variant in sorted(named, key=lambda name: (tables.rank(name[0]), name)):
        found = [[row for row in own if (row.system, row.variant) == (system, variant)] for own in cases.values()]
        cells = [markdown.spread(own[0] if own else None, notes) for own in found]
        rows.append([f"{words.name(system)}, {markdown.plain(variant)}", *cells])
    lines = [*markdown.table(["", *columns], rows), *notes.lines()]
    return markdown.folded("All variants, with minimum and maximum", lines)


def _spent(row: Row | None, notes: Notes) -> str:
    if row is None or not row.samples:
        return markdown.figure(row, notes)
    processor = "unknown" if row.cpu_seconds is None else words.seconds(row.cpu_seconds)
    memory = "unknown" if row.peak_rss_bytes is None else words.memory(row.peak_rss_bytes)
    return f"{processor} · {memory}"
