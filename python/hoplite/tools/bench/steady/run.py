"""Runs a pattern on a lab for many steps: injects the fault, waits for the steps, writes the row."""

from __future__ import annotations

import itertools
import selectors
import statistics
import time
from typing import TYPE_CHECKING, Any

import hoplite
from hoplite.errors import HopliteError
from hoplite.tools.bench import machine, row
from hoplite.tools.bench.hosts import of_lab
from hoplite.tools.bench.steady import figures
from hoplite.tools.bench.steady.cluster import Cluster, read
from hoplite.tools.bench.steady.faults import Injector
from hoplite.tools.bench.steady.patterns import PATTERNS
from hoplite.tools.bench.steady.team import Team

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hoplite.tools.bench.row import Row
    from hoplite.tools.bench.steady.team import Sample, Settings
    from hoplite.tools.lab import Host, Lab

MIB = 2**20
# A run without a step for so long hangs: a server gives up a step earlier.
STALL_S = 150.0
# Between two looks at processes that should not end.
LOOK_S = 1.0


def measure(lab: Lab, settings: Settings, report: Callable[[str], None]) -> Row:
    """Runs one pattern.

    Args:
        lab: its hosts; the first has the server, each other one workers.
        settings: what runs.
        report: takes a line on the progress.

    Raises:
        HopliteError: a process failed or hangs, or received wrong data.
    """
    with Cluster(lab, _capacities(lab, settings), survey=settings.survey) as cluster:
        team = Team(cluster, settings)
        cluster.wait_ready(team.processes)
        before = cluster.counters()
        injector = Injector(settings.fault, settings.steps, _victims(lab), lab.facts()["rate"], team.kill)
        watch([team], injector, report)
        moved = {
            host: {name: value - before[host][name] for name, value in own.items()}
            for host, own in cluster.counters().items()
        }
        return _row(lab, team, injector, moved)


def watch(teams: Sequence[Team], injector: Injector, report: Callable[[str], None]) -> None:
    """Lets jobs run side by side until all of their steps are done.

    Args:
        teams: all are ready; the first one's steps decide when faults begin.
        injector: of the faults.
        report: takes a line on the progress.
    """
    with selectors.DefaultSelector() as selector:
        for team in teams:
            selector.register(team.server.channel.reader, selectors.EVENT_READ, team)
            team.server.channel.send("go")
        last = time.monotonic()
        try:
            while not all(team.done for team in teams):
                left = injector.tick()
                ready = selector.select(LOOK_S if left is None else min(left, LOOK_S))
                for key, _ in ready:
                    team = key.data
                    for line in read(team.server):
                        team.take(line, report)
                    if team.done:
                        selector.unregister(team.server.channel.reader)
                injector.on_step(len(teams[0].ends) - 1)
                last = time.monotonic() if ready else last
                if time.monotonic() - last > STALL_S:
                    raise HopliteError(f"{teams[0].job.pattern}: no step for {STALL_S:.0f} s")
                for team in teams:
                    team.check()
        finally:
            injector.heal()


def _capacities(lab: Lab, settings: Settings) -> list[int]:
    """Bytes of each node's store: all answers of a step, partial sums, a few versions of the weights."""
    workers = (len(lab.hosts) - 1) * settings.per_host
    return [(workers + 12) * settings.nbytes + 128 * MIB] * len(lab.hosts)


def _victims(lab: Lab) -> list[Host]:
    """The hosts of the faults: none with a server, and not the same twice in a row."""
    middle = max(2, len(lab.hosts) // 2)
    return [lab.hosts[middle], lab.hosts[(middle + 1) if middle + 1 < len(lab.hosts) else 1]]


def _row(lab: Lab, team: Team, injector: Injector, moved: dict[str, dict[str, int]]) -> Row:
    settings, samples = team.settings, figures.steps_of(team.ends)
    rate = lab.facts()["rate"]
    wire = figures.wire_seconds(settings.nbytes, rate)
    facts: dict[str, Any] = machine.facts()
    undisturbed = statistics.median(samples[: injector.spans[0].step]) if injector.spans else None
    faults = [
        {
            "host": span.host,
            "step": span.step,
            "begin_s": span.begun - team.ends[0],
            "end_s": span.healed - team.ends[0],
            "recovery_steps": figures.recovery(team.ends, span.healed, undisturbed),
        }
        for span in injector.spans
        if span.healed is not None and undisturbed is not None
    ]
    return row.Row(
        system="hoplite",
        variant=settings.variant,
        version=hoplite.__version__,
        op=settings.pattern,
        hosts=len(lab.hosts),
        bytes=settings.nbytes,
        arrival_s=0.0,
        repeats=settings.steps,
        seconds=row.spread(samples),
        samples=samples,
        wire_ratio=statistics.median(samples) / wire,
        verified=True,
        cpu_seconds=None,
        peak_rss_bytes=None,
        lab=of_lab(lab).facts,
        machine=facts,
        commit=facts.pop("commit"),
        build=machine.build(),
        note="",
        steady={
            "fault": settings.fault,
            "survey": settings.survey,
            "workers": team.job.workers,
            "count": team.job.count,
            "wire_s": wire,
            "bound_s": PATTERNS[settings.pattern].transfers(team.job.count) * wire,
            "tenths": figures.tenths(samples),
            "trend": figures.trend(samples),
            "undisturbed_s": undisturbed,
            "faults": faults,
            "retries": team.retries,
            "direct": _direct(team.samples, settings.nbytes),
            "links": _links(lab, team.samples, rate),
            "counters": moved,
        },
    )


def _direct(samples: Sequence[Sample], nbytes: int) -> list[float]:
    """Copies of an object that the server's own node sent in each step, in each tenth of the run."""
    return [
        (after.direct - before.direct) / nbytes / (after.step - before.step)
        for before, after in itertools.pairwise(samples)
    ]


def _links(lab: Lab, samples: Sequence[Sample], rate: int) -> dict[str, list[float]]:
    """The share of its rate that each host's link carried over the whole run: sent, received."""
    first, last = samples[0], samples[-1]
    full = (last.at - first.at) * rate / 8
    return {
        host.name: [(after - before) / full for before, after in zip(first.moved[at], last.moved[at], strict=True)]
        for at, host in enumerate(lab.hosts)
    }
