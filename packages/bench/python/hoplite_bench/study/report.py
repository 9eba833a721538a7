"""Turns the rows of a study into a page for people, `report.md`, and its figures.

The page states where it was measured, compares it with the findings of the published study, and names the set-ups that
change the fastest library, followed by the tables of `sections.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_bench import markdown, tables, words
from hoplite_bench.markdown import Notes
from hoplite_bench.row import WIRE
from hoplite_bench.study import evidence, findings, matrix, paper, sections, transports
from hoplite_bench.study.collected import CLEAR, best, collect, contender_of, workers_of
from hoplite_bench.study.findings import Outcome
from hoplite_bench.systems.base import TRAIN_ALLREDUCE, TRAIN_PS
from hoplite_bench.systems.hoplite import OWN
from hoplite_bench.tables import median, unique

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hoplite_bench.plots import Picture
    from hoplite_bench.row import Row
    from hoplite_bench.study.collected import Change, Study
    from hoplite_bench.study.findings import Checked, Verdict

NAME = "report.md"
FINDINGS_HEADER = ["finding", "section", "ratio", "here", "published", "outcome"]


def write(rows: Sequence[Row], folder: Path, *, pictures: bool = True) -> list[Path]:
    """Writes a report into a folder, which is created if necessary; writes nothing if there is an error.

    Args:
        rows: rows of a study.
        folder: folder of the report.
        pictures: whether to draw figures, which requires Matplotlib.

    Returns:
        The written files, the page first.

    Raises:
        Unreportable: the rows are not suitable for a report.
        HopliteError: Matplotlib is not installed.
    """
    study = collect(rows)
    drawn: list[Picture] = []
    if pictures:
        from hoplite_bench.study import pictures as drawing

        drawn = drawing.draw(study)
    files = {NAME: page(study, drawn)} | {one.name: one.svg for one in drawn}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def page(study: Study, pictures: Sequence[Picture] = ()) -> str:
    """Formats the whole report as Markdown.

    Args:
        study: the rows of the report.
        pictures: the figures next to it.
    """
    lines = ["# Study of collective communication in containers", "", *_where(study)]
    lines += [*_findings(study), *_changes(study), *transports.section(study)]
    if matrix.SHELL in study.layers:
        lines += _parts(study)
    trained = [
        *sections.training(study, TRAIN_PS, 5, "Parameter server"),
        *sections.training(study, TRAIN_ALLREDUCE, 6, "Allreduce"),
    ]
    if trained:
        lines += ["## Training", "", _training_text(study), "", *trained]
    lines += sections.extremes(study)
    if pictures:
        lines += ["## Latency", ""]
        lines += [line for one in pictures for line in (f"![{one.caption}]({one.name})", "", f"*{one.caption}.*", "")]
    lines += [*_missing(study), *sections.times(study), *_defects()]
    return "\n".join(lines).rstrip() + "\n"


def _where(study: Study) -> list[str]:
    """Describes the machine, the set-ups, the versions and what a number of workers means."""
    rows = study.rows
    machine = ", ".join(words.fact(key, value) for key, value in rows[0].machine.items())
    repeats = unique(row.repeats for row in rows)
    lines = [
        f"The same operations as in the published study ({paper.SOURCE}), on this machine:",
        "",
        f"- Machine: {machine}",
        f"- Hoplite: commit {', '.join(unique(row.commit for row in rows))}, {rows[0].build} build",
        (
            f"- Arrays of {words.size(study.nbytes)} per rank, {' or '.join(map(str, repeats))} samples after a "
            "warm-up, each verified; systems take turns"
        ),
        "- In a broadcast and a gather, rank 0 is a server besides the workers; in training, it is one of the workers",
    ]
    if any(row.variant == OWN for row in rows):
        lines.append(
            "- Hoplite on one machine keeps inputs and results in shared memory, of which programs have views: nothing "
            "is copied. In ranks' own memory, it copies them, as the other libraries do; only this variant is compared "
            "with others"
        )
    for container in study.containers:
        labs = [row.lab for row in rows if row.container == container and row.samples]
        lines.append(f"- `{container}`: {matrix.CONTAINERS[container]}{_facts(labs)}")
    versions = [
        [words.name(system), ", ".join(unique(row.version for row in rows if row.system == system and row.version))]
        for system in tables.systems(rows)
        if system != WIRE
    ]
    told = [[name, version or "not measured"] for name, version in versions]
    return [*lines, "", *markdown.table(["library", "version"], told)]


def _facts(labs: Sequence[dict[str, object]]) -> str:
    hidden = {"kind", "container", "hosts", evidence.FIELD}
    facts = unique(words.fact(key, value) for lab in labs[:1] for key, value in lab.items() if key not in hidden)
    return f"; {', '.join(facts)}" if facts else ""


def _findings(study: Study) -> list[str]:
    """The published findings and whether they hold here."""
    verdicts = findings.check(study)
    counts = {outcome: sum(one.outcome is outcome for one in verdicts) for outcome in Outcome}
    told = ", ".join(f"{count} {_counted(outcome, count)}" for outcome, count in counts.items() if count)
    notes = Notes()
    rows = [_verdict(verdict, notes) for verdict in verdicts]
    return [
        "## Findings of the published study",
        "",
        (
            f"Of {words.count(len(verdicts), 'finding')}, {told}. Each is checked with "
            f"{words.count(study.workers, 'worker')} by ratios of medians. A ratio within "
            f"{sections.percent(findings.LEVEL)} of 1 counts as the same, one that differs by "
            f"{sections.percent(findings.CLEAR)} as faster or slower."
        ),
        "",
        *markdown.table(FINDINGS_HEADER, rows),
        *notes.lines(),
    ]


def _counted(outcome: Outcome, count: int) -> str:
    many = {
        Outcome.AGREES: "agree with this machine",
        Outcome.DIFFERS: "do not",
        Outcome.PARTLY: "agree in part",
        Outcome.UNTESTED: "can't be tested here",
    }
    one = {Outcome.AGREES: "agrees with this machine", Outcome.DIFFERS: "does not", Outcome.PARTLY: "agrees in part"}
    return one.get(outcome, many[outcome]) if count == 1 else many[outcome]


def _verdict(verdict: Verdict, notes: Notes) -> list[str]:
    """The line of a claim, with a line in each cell for each of its ratios."""
    columns = [[f"{one.term} ({one.term.op})", _here(one, notes), _there(verdict, one, notes)] for one in verdict.terms]
    ratios = ["<br>".join(texts) for texts in zip(*columns, strict=True)]
    return [verdict.claim.text, verdict.claim.source, *ratios, f"**{verdict.outcome.value}**"]


def _here(one: Checked, notes: Notes) -> str:
    return f"no figure{notes.mark(one.reason)}" if one.ratio is None else words.number(one.ratio)


def _there(verdict: Verdict, one: Checked, notes: Notes) -> str:
    published = one.term.published
    if published is None:
        return sections.NONE
    contradicts = not verdict.claim.expect.holds(published)
    mark = notes.mark("The published figures do not support the published finding here.") if contradicts else ""
    return words.number(published) + mark


def _changes(study: Study) -> list[str]:
    """Names the cells in which the set-up changes the fastest library, with the transports as evidence."""
    changes = study.changes()
    least = sections.percent(CLEAR - 1)
    lines = ["## Where the container set-up changes the fastest library", ""]
    if not changes:
        return [
            *lines,
            (
                "Nowhere: in every cell, one library is the fastest in all set-ups, or the difference is below "
                f"{least} or within the spread of the samples."
            ),
            "",
        ]
    text = (
        "The fastest library of each set-up, in cells where it is not the same: for two set-ups, the fastest library "
        f"of each takes at least {least} longer than that of the other in the other's set-up, and their samples do not "
        "overlap. × is that ratio, the smaller of the two directions, for the pair of set-ups in which it is largest."
    )
    rows = []
    for (layer, op, workers), own in _grouped(changes).items():
        cells = [best(study.competing(container, op, layer, workers)) for container in study.containers]
        what = f"{op}, {words.count(workers, 'worker')} ({layer})"
        top = own[0]
        pair = f"{words.number(top.ratio)}× {top.one.container} and {top.other.container}"
        rows.append([what, *(_winner(row) for row in cells), pair])
    return [*lines, text, "", *markdown.table(["operation", *study.containers, "×"], rows)]


def _grouped(changes: Sequence[Change]) -> dict[tuple[str, str, int], list[Change]]:
    found: dict[tuple[str, str, int], list[Change]] = {}
    for change in changes:
        found.setdefault((change.one.layer, change.one.op, workers_of(change.one)), []).append(change)
    return found


def _winner(row: Row | None) -> str:
    if row is None:
        return sections.NONE
    by = f"<br>{' + '.join(row.transport)}" if row.transport else ""
    return f"{markdown.plain(str(contender_of(row)))} {words.seconds(median(row))}{by}"


def _parts(study: Study) -> list[str]:
    lines = [
        "## Breakdown of a collective",
        "",
        (
            f"With {words.count(study.workers, 'worker')} in the shell. The published parts are the call of the "
            "library, copies between the memory of GPU and host, and messages between server and first worker. Without "
            "a GPU, staging copies are those into and out of the library's own memory. A part is that of the slowest "
            "rank, from its own call, so parts can exceed the total, which begins with the last call. × fastest is the "
            "time divided by that of the fastest library in the same set-up, NCCL included in the published one. ± is "
            "half the distance between the quartiles."
        ),
        "",
    ]
    for op in matrix.OPS:
        if any(study.cell(container, op, matrix.SHELL) for container in study.containers):
            lines += sections.breakdown(study, op)
    return lines


def _training_text(study: Study) -> str:
    size = next((row.bytes for row in study.rows if row.op in matrix.TRAINING), 0)
    return (
        f"Steps of a model of the size of ResNet-18 ({words.memory(size)} of parameters) on synthetic data of the "
        f"shape of CIFAR-10, with {words.count(study.workers, 'worker')}. × bare is the time divided by that of the "
        "same library in bare processes."
    )


def _missing(study: Study) -> list[str]:
    """The reasons for which contenders have no samples, each with the cells that it is for."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in study.rows:
        if not row.samples:
            name = "" if row.note == matrix.ALONE else words.name(row.system)
            found.setdefault((name, row.note), []).append(row)
    if not found:
        return []
    lines = []
    for (name, note), rows in found.items():
        ops = ", ".join(unique(row.op for row in rows))
        setups = ", ".join(unique(row.container for row in rows))
        who = f"{name}, " if name else ""
        lines.append(f"- {who}{ops} in {setups} ({words.count(len(rows), 'cell')}): {markdown.plain(note)}")
    return ["## Cells without a time", "", *lines, ""]


def _defects() -> list[str]:
    lines = [f"- {text}" for text in paper.DEFECTS]
    return ["## Known defects of the published study", "", *lines, ""]
