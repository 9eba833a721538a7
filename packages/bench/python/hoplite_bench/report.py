"""Turns rows into a report for people: `report.md` and its figures.

The report states where it was measured, and where Hoplite is slower or faster, followed by the parts of `sections.py`.
A system that could not run is listed with the reason. This module does not depend on how a row was measured.
`tables.py` decides which rows count, `markdown.py` formats cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hoplite_bench import markdown, sections, tables, words
from hoplite_bench.markdown import Notes
from hoplite_bench.steady import section as steady
from hoplite_bench.tables import HOPLITE, YARDSTICKS, Case, unique

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hoplite_bench.plots import Picture
    from hoplite_bench.row import Row
    from hoplite_bench.tables import Comparison, Measurement

NAME = "report.md"


def write(rows: Sequence[Row], folder: Path, *, pictures: bool = True) -> list[Path]:
    """Writes a report into a folder, which is created if necessary; writes nothing if there is an error.

    Args:
        rows: rows of any number of runs.
        folder: folder of the report.
        pictures: whether to draw figures, which requires Matplotlib.

    Returns:
        The written files, the page first.

    Raises:
        Unreportable: the rows are not suitable for a report.
        HopliteError: Matplotlib is not installed.
    """
    measurement = tables.collect(rows)
    drawn: list[Picture] = []
    if pictures:
        from hoplite_bench import plots
        from hoplite_bench.steady import picture

        drawn = plots.draw(measurement) + picture.draw(measurement)
    return save(folder, page(measurement, drawn), drawn)


def save(folder: Path, text: str, pictures: Sequence[Picture]) -> list[Path]:
    """Writes a page and its figures into a folder, which is created if necessary.

    Returns:
        The written files, the page first.
    """
    files = {NAME: text} | {one.name: one.svg for one in pictures}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [folder / name for name in files]


def page(measurement: Measurement, pictures: Sequence[Picture] = ()) -> str:
    """Formats the whole report as Markdown.

    Args:
        measurement: the rows of the report.
        pictures: the figures next to it.
    """

    def shown(about: str) -> list[str]:
        return [
            line
            for one in pictures
            if one.about == about
            for line in (f"![{one.caption}]({one.name})", "", f"*{one.caption}.*", "")
        ]

    lines = ["# Report", "", *_where(measurement)]
    if measurement.cases:
        lines += [*_summary(measurement), *shown("wire")]
    together = measurement.select(lambda case: case.hosts > 1 and case.arrival_s == 0)
    for op in unique(case.op for case in together):
        lines += [f"## {words.title(op)}", "", *shown(op)]
        for place, hosts in unique((case.place, case.hosts) for case in together if case.op == op):
            lines += sections.operation(measurement, op, place, hosts)
    lines += sections.arrival(measurement, shown("arrival")) + sections.cost(measurement)
    lines += steady.section(measurement, shown("steady")) + sections.one_host(measurement)
    return "\n".join(lines).rstrip() + "\n"


def _where(measurement: Measurement) -> list[str]:
    """Describes machines, commits, networks and versions, without which figures mean nothing."""
    rows = measurement.rows
    lines = ["## Environment", ""]
    machines = list(measurement.machines.items())
    if len(machines) == 1:
        lines.append(f"- Machine: {machines[0][1]}")
    else:
        lines.append(f"- M{machines[0][0][1:]}, unless another is named: {machines[0][1]}")
        lines += [f"- M{name[1:]}: {told}" for name, told in machines[1:]]
    commits = unique(row.commit for row in rows)
    lines.append(f"- Hoplite: commit {', '.join(commits)}, {', '.join(unique(row.build for row in rows))} build")
    if len(commits) > 1:
        lines.append("- **Several commits: the figures of Hoplite are from different versions.**")
    for place in measurement.places:
        cases = measurement.select(lambda case, place=place: case.place == place)  # type: ignore[misc]
        for hosts in sorted({case.hosts for case in cases}):
            labs = [row.lab for case, rows in cases.items() if case.hosts == hosts for row in rows]
            known = f": {told}" if (told := _lab(labs)) else ""
            lines.append(f"- {words.count(hosts, 'host')} ({place}){known}")
    lines += ["", *markdown.table(["system", "version"], _versions(rows))]
    return lines


def _lab(labs: Sequence[dict[str, Any]]) -> str:
    """Formats the known facts of a lab; a fact that differs between rows lists all its values."""
    keys = sorted({key for lab in labs for key in lab} - {"kind", "rate", "hosts"})
    facts = []
    for key in keys:
        told = unique(words.fact(key, lab[key]) for lab in labs if key in lab)
        name = key.replace("_", " ").rpartition(" ")[0] or key
        also = [one.removeprefix(f"{name} ") for one in told[1:]]
        facts.append(" or ".join([told[0], *also]))
    return ", ".join(facts)


def _versions(rows: Sequence[Row]) -> list[list[str]]:
    return [
        [
            words.name(system),
            ", ".join(sorted({row.version for row in rows if row.system == system and row.version})) or "unknown",
        ]
        for system in tables.systems(rows)
        if system not in YARDSTICKS
    ]


def _summary(measurement: Measurement) -> list[str]:
    """Compares Hoplite with the fastest other system in every case."""
    compared, not_compared = tables.compare(measurement.cases)
    level = [one for one in compared if one.is_level]
    slower = sorted((one for one in compared if one.ratio > 1 and not one.is_level), key=lambda one: -one.ratio)
    faster = sorted((one for one in compared if one.ratio < 1 and not one.is_level), key=lambda one: one.ratio)
    lines = ["## Summary", ""]
    if compared:
        lines += [
            (
                f"Of {words.count(len(compared), 'case')}, Hoplite is faster than every other system in {len(faster)}, "
                f"as fast as the fastest of them (within 1 %) in {len(level)}, and slower in {len(slower)}:"
            ),
            "",
            *_counts({"faster": faster, "as fast": level, "slower": slower}),
            (
                "Hoplite's median divided by that of the fastest other system, which is named. Bold: Hoplite is faster "
                "or as fast. ~: the samples of the two overlap. -: not measured. Operations of one host are at the end "
                "of the page."
            ),
            "",
            *_ratios(measurement, compared, not_compared),
        ]
    lines += _where_it_is("Cases in which Hoplite is slower", slower)
    lines += _where_it_is("Cases in which Hoplite is as fast", level)
    lines += _where_it_is("Cases in which Hoplite is faster", faster)
    if not_compared:
        named = [f"{case} ({case.place}): {markdown.plain(why)}" for case, why in not_compared.items()]
        lines += _list("Cases without a comparison", named)
    return lines


def _counts(groups: dict[str, list[Comparison]]) -> list[str]:
    """Counts the cases of each size in each group."""
    sizes = sorted({one.case.bytes for group in groups.values() for one in group})
    rows = [
        [word, *(str(sum(one.case.bytes == size for one in group)) for size in sizes), str(len(group))]
        for word, group in groups.items()
    ]
    return markdown.table(["Hoplite is", *map(words.size, sizes), "all"], rows)


def _ratios(measurement: Measurement, compared: Sequence[Comparison], not_compared: dict[Case, str]) -> list[str]:
    together = {one.case: one for one in compared}
    cases = measurement.select(lambda case: case.hosts > 1 and case.arrival_s == 0)
    sizes = sorted({case.bytes for case in cases})
    notes = Notes()
    rows = []
    for op, hosts, place in unique((case.op, case.hosts, case.place) for case in cases):
        row = [f"{op}, {words.count(hosts, 'host')} ({place})"]
        for size in sizes:
            case = Case(place, op, hosts, size, 0)
            if one := together.get(case):
                text = f"{'~' if one.overlap else ''}{words.number(one.ratio)}"
                is_bold = one.ratio < 1 or one.is_level
                row.append(f"{f'**{text}**' if is_bold else text} {words.name(one.peer.system)}")
            elif case in not_compared:
                hoplite = tables.best(cases[case], HOPLITE)
                word = words.no_figure(hoplite) if hoplite is not None and not hoplite.samples else "no figure"
                row.append(f"{word}{notes.mark(not_compared[case])}")
            else:
                row.append("-")
        rows.append(row)
    return [*markdown.table(["", *map(words.size, sizes)], rows), *notes.lines()]


def _against(one: Comparison) -> str:
    overlap = "; the samples overlap" if one.overlap else ""
    place = f"; {one.case.place}" if one.case.hosts > 1 else ""
    against = f"{words.seconds(tables.median(one.hoplite))} against {words.seconds(tables.median(one.peer))}"
    return f"{words.number(one.ratio)} × {markdown.variant(one.peer)}: {one.case} ({against}{place}{overlap})"


def _where_it_is(title: str, compared: Sequence[Comparison]) -> list[str]:
    """Summarizes cases with one line per operation and size, so that all fit on a screen; lists each case below."""
    if not compared:
        return _list(title, [])
    groups: dict[tuple[str, int, bool], list[Comparison]] = {}
    for one in compared:
        groups.setdefault((one.case.op, one.case.bytes, one.case.arrival_s > 0), []).append(one)
    rows = []
    for (op, size, is_late), own in groups.items():
        ratios = sorted(one.ratio for one in own)
        least, most = words.number(ratios[0]), words.number(ratios[-1])
        hosts = unique(str(one.case.hosts) for one in sorted(own, key=lambda one: one.case.hosts))
        others = unique(words.name(one.peer.system) for one in own)
        rows.append(
            [
                f"{op}, {words.size(size)}" + (", staggered calls" if is_late else ""),
                least if least == most else f"{least} to {most}",
                ", ".join(hosts),
                ", ".join(others),
            ]
        )
    table = markdown.table(["operation", "ratio to the fastest other system", "hosts", "fastest other system"], rows)
    told = markdown.folded(
        f"{words.count(len(compared), 'case')}, in detail", [f"- {_against(one)}" for one in compared]
    )
    # A list needs a blank line before the closing tag.
    return [f"### {title}", "", *table, *told[:-2], "", *told[-2:]]


def _list(title: str, items: Sequence[str]) -> list[str]:
    return [f"### {title}", "", *([f"- {item}" for item in items] or ["None."]), ""]
