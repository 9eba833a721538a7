"""Turns the rows of a study into a page for people, `report.md`, and its figures.

The page states where it was measured, compares it with the findings of the published study, and names the set-ups that
change the fastest library, followed by the tables of `sections.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_bench import markdown, tables, words
from hoplite_bench.markdown import Notes
from hoplite_bench.report import save
from hoplite_bench.row import WIRE
from hoplite_bench.study import claims, evidence, findings, matrix, paper, sections, transports, winners
from hoplite_bench.study.collected import collect
from hoplite_bench.study.findings import Outcome
from hoplite_bench.study.times import CONFIDENCE, SAMPLES_MIN, VIEWS
from hoplite_bench.systems.base import TRAIN_ALLREDUCE, TRAIN_PS
from hoplite_bench.systems.hoplite import OWN
from hoplite_bench.tables import unique

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hoplite_bench.plots import Picture
    from hoplite_bench.row import Row
    from hoplite_bench.study.collected import Study
    from hoplite_bench.study.findings import Checked, Verdict

FINDINGS_HEADER = ["finding", "published in", "ratio", "here", "wire", "published", "outcome"]


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
    return save(folder, page(study, drawn), drawn)


def page(study: Study, pictures: Sequence[Picture] = ()) -> str:
    """Formats the whole report as Markdown.

    Args:
        study: the rows of the report.
        pictures: the figures next to it.
    """
    lines = ["# Study of collective communication in containers", "", *_where(study)]
    lines += [*winners.fastest(study), *_findings(study), *winners.changes(study), *transports.section(study)]
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
    lines += [*_missing(study), *sections.all_times(study), *_defects()]
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
            "warm-up, each verified; systems take turns within a set-up, and set-ups follow one another"
        ),
        "- In a broadcast and a gather, rank 0 is a server besides the workers; in training, it is one of the workers",
        "- Layers: shell is a library itself, as in the published study; torch (PyTorch) is torch.distributed on it",
    ]
    if any(row.variant == OWN for row in rows):
        lines.append(
            f"- Hoplite ({VIEWS}), its default, keeps inputs and results in the shared memory of a node, where "
            f"programs view them without copies. Hoplite ({OWN}) copies them from and to ranks' own memory, as the "
            "other libraries do; only this variant is compared with others"
        )
    if alone := study.not_compared():
        lines.append(f"- In {', '.join(alone)}, some cells have Hoplite ({VIEWS}) only, so it is not compared there")
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
            f"{sections.percent(claims.LEVEL)} of 1 counts as the same, one that differs by "
            f"{sections.percent(claims.CLEAR)} as faster or slower. If the "
            f"{sections.percent(CONFIDENCE)} confidence intervals of two medians overlap, they are not known to differ "
            f"({Outcome.SPREAD.value}). A ratio of fewer than {SAMPLES_MIN} samples is not judged. Times of "
            "training with a parameter server are those of broadcast and gather, as in the published table."
        ),
        "",
        (
            "Set-ups are measured one after another, so the machine may have changed between them. The column *wire* "
            "is the control: the same ratio for one plain TCP stream. Between bare, hpc and single, it shows how much "
            "the machine changed. To cross, the stream takes a bridge in place of loopback."
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
        Outcome.SPREAD: "are within the spread of the samples",
        Outcome.UNTESTED: "can't be tested here",
    }
    one = {
        Outcome.AGREES: "agrees with this machine",
        Outcome.DIFFERS: "does not",
        Outcome.PARTLY: "agrees in part",
        Outcome.SPREAD: "is within the spread of the samples",
    }
    return one.get(outcome, many[outcome]) if count == 1 else many[outcome]


def _verdict(verdict: Verdict, notes: Notes) -> list[str]:
    """The line of a claim, with a line in each cell for each of its ratios."""
    columns = [
        [f"{one.term} ({one.term.op})", _here(one, notes), _control(one), _there(verdict, one, notes)]
        for one in verdict.terms
    ]
    ratios = ["<br>".join(texts) for texts in zip(*columns, strict=True)]
    return [verdict.claim.text, verdict.claim.source, *ratios, f"**{verdict.outcome.value}**"]


def _here(one: Checked, notes: Notes) -> str:
    mark = notes.mark(one.reason) if one.reason else ""
    return f"no figure{mark}" if one.ratio is None else words.number(one.ratio) + mark


def _control(one: Checked) -> str:
    return sections.NONE if one.wire is None else words.number(one.wire)


def _there(verdict: Verdict, one: Checked, notes: Notes) -> str:
    published = one.term.published
    if published is None:
        return sections.NONE
    contradicts = not verdict.claim.expect.holds(published)
    mark = notes.mark("The published figures do not support the published finding here.") if contradicts else ""
    suspect = one.term.suspect
    mark += notes.mark(f"Published, perhaps an error of the source: {suspect}.") if suspect else ""
    return words.number(published) + mark


def _parts(study: Study) -> list[str]:
    lines = [
        "## Breakdown of a collective",
        "",
        (
            f"With {words.count(study.workers, 'worker')}. The published parts are the call of the library "
            "(collective), copies between the memory of GPU and host (staging copies), and messages between server and "
            "first worker (send), which only NCCL needs. Without a GPU, staging copies are those into and out of the "
            "library's own memory, and Hoplite's collective includes waiting for inputs of other ranks. A part is that "
            "of the slowest rank, from its own call, so parts can exceed the total, which begins with the last call. "
            "× fastest is the time divided by that of the fastest library in the same set-up, NCCL included in the "
            "published one. ± is half the distance between the quartiles."
        ),
        "",
    ]
    ops = [op for op in matrix.OPS if _has_parts(study, op)]
    return [*lines, *(line for op in ops for line in sections.breakdown(study, op))] if ops else []


def _has_parts(study: Study, op: str) -> bool:
    return study.has_gpu(matrix.TORCH, op) or any(study.cell(name, op, matrix.SHELL) for name in study.containers)


def _training_text(study: Study) -> str:
    size = next((row.bytes for row in study.rows if row.op in matrix.TRAINING), 0)
    return (
        f"Steps of a model of the size of ResNet-18 ({words.memory(size)} of parameters) on synthetic data of the "
        f"shape of CIFAR-10, with {words.count(study.workers, 'worker')}. × bare is the time divided by that of the "
        "same library in bare processes, and wire × bare that of one plain TCP stream, as a control: set-ups are "
        "measured one after another."
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
