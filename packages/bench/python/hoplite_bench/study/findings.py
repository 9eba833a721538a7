"""Whether the rows of a study agree with the claims of the published one. Pure.

A difference within the confidence intervals confirms nothing, and contradicts no claim that there is none.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from hoplite_bench import words
from hoplite_bench.markdown import DEFAULT
from hoplite_bench.row import STREAM, WIRE
from hoplite_bench.study.claims import CLAIMS, Expect
from hoplite_bench.study.times import GPU_SYSTEMS, SAMPLES_MIN, Contender, is_enough, published_time
from hoplite_bench.systems.pytorch import CUDA
from hoplite_bench.tables import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.row import Row
    from hoplite_bench.study.claims import Claim, Ref, Term
    from hoplite_bench.study.collected import Study
    from hoplite_bench.study.times import Time

# Why no run has rows of a system that a claim is about.
NOT_MEASURED = {"nccl": "NCCL: needs GPUs, and is measured through PyTorch only"}


class Outcome(enum.Enum):
    """The result of a claim, or of one of its ratios."""

    AGREES = "agrees"
    DIFFERS = "does not agree"
    PARTLY = "agrees in part"
    SPREAD = "within the spread"
    UNTESTED = "can't be tested here"


@dataclasses.dataclass(frozen=True)
class Checked:
    """A term with its ratio here.

    Attributes:
        term: the term.
        ratio: the ratio of the medians; None if one of them is missing.
        outcome: whether the ratio is as claimed; never PARTLY.
        reason: why it is missing, or why it can't be judged.
        wire: the ratio of the wire in the same two set-ups; None if it is unknown, or if there is one set-up only.
    """

    term: Term
    ratio: float | None
    outcome: Outcome
    reason: str = ""
    wire: float | None = None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of one claim."""

    claim: Claim
    terms: tuple[Checked, ...]

    @property
    def outcome(self) -> Outcome:
        """Whether this machine agrees, judged by the terms that could be measured."""
        found = {one.outcome for one in self.terms} - {Outcome.UNTESTED}
        if not found:
            return Outcome.UNTESTED
        if len(found) == 1:
            return found.pop()
        return Outcome.PARTLY if Outcome.AGREES in found else Outcome.DIFFERS


def check(study: Study, claims: Sequence[Claim] = CLAIMS) -> list[Verdict]:
    """Checks every claim against the rows with the most workers."""
    return [Verdict(claim, tuple(_check(study, term, claim.expect) for term in claim.terms)) for claim in claims]


def judged(expect: Expect, over: Time, under: Time) -> Outcome:
    """Whether two times are as claimed; if their intervals overlap, they are not known to differ."""
    holds = expect.holds(over.middle / under.middle)
    is_a_difference = expect in (Expect.LESS, Expect.MORE)
    # An overlap speaks for a claim that there is no difference.
    if over.overlaps(under) and (is_a_difference or not holds):
        return Outcome.SPREAD
    return Outcome.AGREES if holds else Outcome.DIFFERS


def _check(study: Study, term: Term, expect: Expect) -> Checked:
    wire = _wire(study, term)
    rows = []
    for ref, row in zip((term.top, term.bottom), _rows(study, term), strict=True):
        if row is None or not row.samples:
            return Checked(term, None, Outcome.UNTESTED, _reason(row, ref), wire)
        rows.append(row)
    over, under = map(published_time, rows)
    ratio = over.middle / under.middle
    if not all(map(is_enough, rows)):
        return Checked(term, ratio, Outcome.UNTESTED, f"Fewer than {SAMPLES_MIN} samples are no evidence.", wire)
    return Checked(term, ratio, judged(expect, over, under), wire=wire)


def _rows(study: Study, term: Term) -> list[Row | None]:
    """The rows of a ratio: both on arrays in memory of GPUs, as in the published study, or both in that of the host."""
    found: list[Row | None] = []
    for variant in (CUDA, DEFAULT):
        found = [
            study.row(ref.container, term.op, Contender(ref.system, DEFAULT if ref.system in GPU_SYSTEMS else variant))
            for ref in (term.top, term.bottom)
        ]
        if all(row is not None and row.samples for row in found):
            break
    return found


def _wire(study: Study, term: Term) -> float | None:
    """The ratio of the wire between the two set-ups of a term."""
    if term.top.container == term.bottom.container:
        return None
    rows = [study.row(ref.container, term.op, Contender(WIRE, STREAM)) for ref in (term.top, term.bottom)]
    found = [median(row) for row in rows if row is not None and row.samples]
    return found[0] / found[1] if len(found) == len(rows) else None


def _reason(row: Row | None, ref: Ref) -> str:
    if row is None:
        return NOT_MEASURED.get(ref.system, "not measured")
    return f"{words.name(ref.system)}: {row.note}"
