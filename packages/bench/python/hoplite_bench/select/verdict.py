"""What the ranks did after one of them failed: a case, their answers, and the verdict. Does not run anything."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# From harmless to worst. The first two are safe.
STATES = ("finished", "error", "ended", "hangs", "wrong")
# The last word of a rank, or what replaces it.
WORDS = ("checked", "failed", "ended")
TEXT_MAX = 300


@dataclasses.dataclass(frozen=True)
class Case:
    """One failure.

    Attributes:
        op: the operation.
        victim: the rank that fails; 0 is the root.
        moment: "before" its call, or "during" the operation.
    """

    op: str
    victim: int
    moment: str

    def __str__(self) -> str:
        when = "before its call" if self.moment == "before" else "during the operation"
        return f"{self.op}, rank {self.victim} {when}"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the other ranks did.

    Attributes:
        state: "finished": they live, and each has a correct result, so none missed the failed rank. "error": they live,
            and some got an error in time, the others a correct result. "ended": the processes of some ended. "hangs":
            some got nothing within the limit. "wrong": some got a wrong result without an error. The worst counts.
        seconds: the longest wait of a rank: from the failure and the calls to the end of the operation, or then for the
            verification and release of its result; the limit if some got no answer.
        text: the case and the answers.
        results: how many of the other ranks have a correct result.
        case: the case.
    """

    state: str
    seconds: float
    text: str
    results: int
    case: Case

    @property
    def safe(self) -> bool:
        """Whether an application could go on without the failed rank."""
        return self.state in STATES[:2]


@dataclasses.dataclass(frozen=True)
class Answer:
    """A rank's answer: the word of the protocol, or "ended"; its fields; and when it came, by the monotonic clock."""

    word: str
    fields: Mapping[str, str]
    at: float


def judge(
    case: Case,
    how: str,
    ranks: Sequence[int],
    answers: Mapping[int, Answer],
    *,
    limit_s: float,
    waited_s: float,
    output: Sequence[str] = (),
) -> Verdict:
    """Judges the last answers of the ranks that did not fail.

    Args:
        case: the case.
        how: what happened to the victim: "killed" or "frozen".
        ranks: all other ranks.
        answers: the last answer of each; those that got none within the limit are missing.
        limit_s: the limit.
        waited_s: the longest wait of a rank that has an answer.
        output: the last output of processes that ended.
    """
    silent = [rank for rank in ranks if rank not in answers]
    ended = [rank for rank in answers if answers[rank].word == "ended"]
    wrong = {rank: one.fields["wrong"] for rank, one in answers.items() if one.fields.get("wrong")}
    wrong |= {rank: f"it sent {one.word!r}" for rank, one in answers.items() if one.word not in WORDS}
    failed = {rank: one.fields.get("why", "") for rank, one in answers.items() if one.word == "failed"}
    correct = [rank for rank in answers if answers[rank].word == "checked" and rank not in wrong]
    parts = [f"rank {rank} has a wrong result: {why}" for rank, why in sorted(wrong.items())]
    if silent:
        parts.append(f"{_named(silent)} got nothing within {limit_s:g} s")
    if ended:
        parts.append("; ".join([f"the processes of {_named(ended)} ended", *output[:1]]))
    parts += [f"rank {rank} failed: {_short(why)}" for rank, why in sorted(failed.items())[:1]]
    if len(failed) > 1:
        parts.append(f"{_named(sorted(failed)[1:])} failed too")
    if correct:
        parts.append(f"{_named(correct)} finished correctly")
    reasons = (("wrong", wrong), ("hangs", silent), ("ended", ended), ("error", failed))
    state = next((state for state, found in reasons if found), "finished")
    text = f"{case} {how}: {'; '.join(parts)}"
    return Verdict(state, limit_s if silent else waited_s, text, len(correct), case)


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The worst verdict; of equally bad ones, that which took longest."""
    return max(verdicts, key=lambda verdict: (STATES.index(verdict.state), verdict.seconds))


def _named(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(str(rank) for rank in sorted(ranks))


def _short(why: str) -> str:
    line = next(iter(why.strip().splitlines()), "no reason")
    return line if len(line) <= TEXT_MAX else f"{line[:TEXT_MAX]}..."
