"""The section on transports: what moved the data in each set-up, how that is known, and what would make it faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hoplite_bench import markdown, transport, words
from hoplite_bench.row import WIRE
from hoplite_bench.study import evidence, matrix
from hoplite_bench.study.times import contender_of, workers_of
from hoplite_bench.tables import HOPLITE, TORCH_HOPLITE, unique

if TYPE_CHECKING:
    from hoplite_bench.row import Row
    from hoplite_bench.study.collected import Study
    from hoplite_bench.study.times import Contender

# Systems whose ranks share memory through a node.
HOPLITES = (HOPLITE, TORCH_HOPLITE)
INTRODUCTION = (
    "What moved the bytes between ranks, as the kernel counted it during one round that is not timed: bytes of network "
    "interfaces, calls that copy from another process (CMA), and use of memory that ranks share. Loopback TCP is "
    "TCP inside one machine or container. Several names mean that each moved a part. Libraries do not report it "
    "themselves."
)


def section(study: Study) -> list[str]:
    """A table of libraries and set-ups, advice for set-ups with slow transports, and the evidence."""
    rows = [row for row in study.rows if row.samples and row.system != WIRE]
    if not rows:
        return []
    lines = [
        [
            str(contender),
            *(
                _cell([row for row in rows if (contender_of(row), row.container) == (contender, name)])
                for name in study.containers
            ),
        ]
        for contender in unique(map(contender_of, rows))
    ]
    titles = [matrix.CONTAINERS[name] for name in study.containers]
    return [
        "## Transports",
        "",
        INTRODUCTION,
        "",
        *markdown.table(["library", *titles], lines),
        *_advice(study, rows),
        *_evidence(rows),
    ]


def _cell(rows: list[Row]) -> str:
    """The transports of a library in a set-up; operations are named only if they differ."""
    if not rows:
        return "not measured"
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(" + ".join(row.transport) or transport.UNKNOWN, []).append(row.op)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{names} ({', '.join(unique(ops))})" for names, ops in found.items())


def _advice(study: Study, rows: list[Row]) -> list[str]:
    """One line per set-up and advice, with the libraries that it is for."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        refused = max(0, row.lab.get(evidence.FIELD, {}).get("cma_refused", 0))
        if not row.transport:
            continue
        text = transport.advice(
            row.container,
            row.transport,
            elsewhere=[name for other in rows if other.system == row.system for name in other.transport],
            attaches=row.system in HOPLITES,
            refused=refused,
        )
        if text:
            found.setdefault((row.container, text), []).append(words.name(row.system))
    order = sorted(found.items(), key=lambda item: study.containers.index(item[0][0]))
    lines = [f"- {_title(container)}, for {', '.join(unique(names))}: {text}" for (container, text), names in order]
    nothing = "Nothing is known: no library used a faster transport in another set-up."
    return ["What may make slow cells faster:", "", *(lines or [nothing]), ""]


def _evidence(rows: list[Row]) -> list[str]:
    """What was counted for each library, set-up and operation."""
    told: dict[tuple[Contender, str, str], tuple[Row, dict[str, Any]]] = {}
    for row in sorted(rows, key=workers_of, reverse=True):
        if found := row.lab.get(evidence.FIELD):
            told.setdefault((contender_of(row), row.container, row.op), (row, found))
    lines = [
        [
            str(contender),
            container,
            op,
            " + ".join(row.transport) or transport.UNKNOWN,
            markdown.plain(evidence.described(found)),
        ]
        for (contender, container, op), (row, found) in told.items()
    ]
    if not lines:
        return []
    return markdown.folded(
        "What the kernel counted", markdown.table(["library", "set-up", "operation", "transports", "counted"], lines)
    )


def _title(container: str) -> str:
    title = matrix.CONTAINERS[container]
    return title[0].upper() + title[1:]
