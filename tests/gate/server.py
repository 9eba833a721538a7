"""An asynchronous parameter server of which a host is cut off, with the patterns of `hoplite bench steady`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from gate.figures import UNDISTURBED, WIRE, Figure, Group
from hoplite_bench.lab import Lab
from hoplite_bench.steady import run, summary
from hoplite_bench.steady.team import Settings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

HOSTS, RATE, NBYTES, STEPS = 8, "500mbit", 16 << 20, 60
# Steps after a cut that count.
AFTER = 10


def measure(cells: Collection[str]) -> Iterator[Figure]:  # noqa: ARG001 - it has one
    """Measures undisturbed steps, the slowest step of each cut, and the steps after it."""
    with Lab(hosts=HOSTS, rate=RATE) as lab:
        (row,) = run.measure(lab, Settings("async", NBYTES, STEPS, fault="cut"), lambda _: None)
    facts = summary.facts_of(row)
    undisturbed = facts["undisturbed_s"]
    ends = list(itertools.accumulate(row.samples, initial=0.0))
    during, after = [], []
    for fault in facts["faults"]:
        steps = list(zip(itertools.pairwise(ends), row.samples, strict=True))
        during.append(max(took for (begin, end), took in steps if end > fault["begin_s"] and begin < fault["end_s"]))
        after += [took for (begin, _), took in steps if begin >= fault["end_s"]][:AFTER]
    before = row.samples[: facts["faults"][0]["step"]]
    yield Figure("parameter-server/step", [step / facts["bound_s"] for step in before], WIRE)
    yield Figure("parameter-server/cut", [step / undisturbed for step in during], UNDISTURBED)
    yield Figure("parameter-server/after", [step / undisturbed for step in after], UNDISTURBED)


GROUP = Group(["parameter-server"], measure)
