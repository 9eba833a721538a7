"""The cells and remarks of a steady run, for the command and the report. Pure."""

from __future__ import annotations

import collections
import dataclasses
import statistics
from typing import TYPE_CHECKING, Any

from hoplite.tools import peace
from hoplite_bench import words
from hoplite_bench.steady import figures
from hoplite_bench.steady.faults import TITLES
from hoplite_bench.steady.patterns import PATTERNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hoplite_bench.row import Row


@dataclasses.dataclass(frozen=True)
class Summary:
    """The summary of a run.

    Attributes:
        title: title of the pattern.
        bound: bound of a step, in seconds.
        middle: the typical step, in seconds: the median, or the mean where steps overlap.
        ratio: the typical step divided by the bound.
        first: the typical step of the first 20, divided by the bound.
        last: the typical step of the last 100, divided by the bound.
        trend: the typical step of the second half divided by that of the first; None for a run of one step.
        longest: the longest step, in seconds.
        total: sum of all steps, in seconds.
    """

    title: str
    bound: float
    middle: float
    ratio: float
    first: float
    last: float
    trend: float | None
    longest: float
    total: float


COLUMNS = ("pattern", "variant", "bound", "step", "× bound", "first 20", "last 100", "trend", "longest", "total")


def summarize(row: Row) -> Summary:
    """Computes the summary of a row with samples."""
    facts, pattern = facts_of(row), PATTERNS.get(row.op)
    middle = pattern.middle if pattern else statistics.median
    bound = facts["bound_s"]
    return Summary(
        title=pattern.title if pattern else row.op,
        bound=bound,
        middle=middle(row.samples),
        ratio=middle(row.samples) / bound,
        first=middle(row.samples[: figures.FIRST]) / bound,
        last=middle(row.samples[-figures.LAST :]) / bound,
        trend=facts["trend"],
        longest=max(row.samples),
        total=sum(row.samples),
    )


def cells(row: Row) -> list[str]:
    """The cells of a row under `COLUMNS`."""
    one = summarize(row)
    ratios = [f"{words.number(ratio)}×" for ratio in (one.ratio, one.first, one.last)]
    times = [words.seconds(time) for time in (one.bound, one.middle)]
    trend = "-" if one.trend is None else f"{words.number(one.trend)}×"
    return [row.op, row.variant, *times, *ratios, trend, words.seconds(one.longest), words.seconds(one.total)]


def remarks(row: Row) -> list[str]:
    """Describes faults, recovery and events of a run, one sentence each."""
    facts = facts_of(row)
    found = []
    if "speed" in facts:
        found.append(f"runs at {facts['speed']:.0%} of the speed of a job alone")
    for fault in facts["faults"]:
        after = fault["recovery_steps"]
        how = "did not recover" if after is None else f"recovered after {words.count(after, 'step')}"
        span = f"from {fault['begin_s']:.1f} s to {fault['end_s']:.1f} s, after step {fault['step']}"
        found.append(f"{fault['host']}: {TITLES[facts['fault']]} {span}; {how}")
    if facts["retries"]:
        found.append(f"the server repeated {words.count(facts['retries'], 'step')} whose results were lost")
    shared = _shared(facts["counters"].values())
    if shared is not None:
        found.append(f"{shared:.0%} of all bytes were sent while another transfer shared the link")
    for host, counters in facts["counters"].items():
        if moved := peace.disturbances(counters):
            found.append(f"{host} counted {', '.join(moved)}")
    return found


def _shared(hosts: Iterable[Mapping[str, int]]) -> float | None:
    """The share of all payload that was sent while another transfer shared the link; None if nothing was sent."""
    total = collections.Counter[str]()
    for counters in hosts:
        total.update(counters)
    sent = sum(total[name] for name in ("bytes_direct", "bytes_relayed", "bytes_partial"))
    return total["bytes_shared"] / sent if sent else None


def facts_of(row: Row) -> dict[str, Any]:
    """The facts of a run in its row."""
    assert row.steady is not None, f"{row.op} is not a steady run"
    return row.steady
