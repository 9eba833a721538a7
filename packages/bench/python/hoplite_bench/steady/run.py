"""Runs a pattern on a lab for many steps: injects the fault, waits for the steps, and creates the row."""

from __future__ import annotations

import itertools
import selectors
import statistics
import time
from typing import TYPE_CHECKING, Any

import hoplite
from hoplite.errors import HopliteError
from hoplite_bench import machine, row
from hoplite_bench.hosts import of_lab
from hoplite_bench.steady import figures, patterns
from hoplite_bench.steady.cluster import Cluster, read
from hoplite_bench.steady.faults import Injector
from hoplite_bench.steady.team import Team

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hoplite_bench.lab import Host, Lab
    from hoplite_bench.row import Row
    from hoplite_bench.steady.team import Sample, Settings

    Counters = dict[str, dict[str, int]]

# A run without a step for this long hangs; the timeout of the server is shorter.
STALL_S = 150.0
# Interval of checks for processes that ended too early.
LOOK_S = 1.0


def measure(lab: Lab, settings: Settings, report: Callable[[str], None], *, jobs: int = 1) -> list[Row]:
    """Runs one pattern.

    Args:
        lab: the hosts; the server runs on the first, the workers on the others.
        settings: settings of the run.
        report: called with a progress message.
        jobs: with 2, the job runs alone and then next to another one, whose server is on the second host.

    Returns:
        A row for each run of a job: alone, then each of the two.

    Raises:
        HopliteError: a process failed, hangs, or received wrong data.
    """
    rows = _run(lab, settings, 1, report)
    if jobs > 1:
        alone = statistics.median(rows[0].samples)
        for together in _run(lab, settings, jobs, report):
            assert together.steady is not None
            together.steady["speed"] = alone / statistics.median(together.samples)
            rows.append(together)
    return rows


def watch(teams: Sequence[Team], injector: Injector, report: Callable[[str], None]) -> None:
    """Runs jobs side by side until one of them has finished all of its steps.

    Args:
        teams: the jobs, all ready; the steps of the first determine when faults begin.
        injector: injects the faults.
        report: called with a progress message.
    """
    with selectors.DefaultSelector() as selector:
        for team in teams:
            for process in team.reporters:
                selector.register(process.channel.reader, selectors.EVENT_READ, (team, process))
                process.channel.send("go")
        last = time.monotonic()
        try:
            while not any(team.done for team in teams):
                left = injector.tick()
                ready = selector.select(LOOK_S if left is None else min(left, LOOK_S))
                for key, _ in ready:
                    team, process = key.data
                    before = len(team.samples)
                    for line in read(process):
                        team.take(process, line)
                    if len(team.samples) > max(before, 1):
                        report(_progress(team))
                    if team.has_ended(process):
                        selector.unregister(process.channel.reader)
                    last = time.monotonic()
                injector.on_step(teams[0].steps)
                if time.monotonic() - last > STALL_S:
                    raise HopliteError(f"{teams[0].job.pattern}: no step ended for {STALL_S:.0f} s")
                for team in teams:
                    team.check()
        finally:
            injector.heal()


def _run(lab: Lab, settings: Settings, jobs: int, report: Callable[[str], None]) -> list[Row]:
    """Runs jobs side by side on new nodes, and creates a row for each."""
    with Cluster(lab, _capacities(lab, settings, jobs), survey=settings.survey) as cluster:
        teams = [Team(cluster, settings, server) for server in range(jobs)]
        before = cluster.counters()
        injector = Injector(settings.fault, settings.steps, _victims(lab), lab.facts()["rate"], teams[0].kill)
        watch(teams, injector, report)
        for team in teams:
            team.finish()
        after = cluster.counters()
        counters = {
            host: {name: value - before[host][name] for name, value in own.items()} for host, own in after.items()
        }
        names = [f"job {number} of {jobs}" if jobs > 1 else "" for number in range(1, jobs + 1)]
        return [_row(lab, team, name, injector, counters) for team, name in zip(teams, names, strict=True)]


def _progress(team: Team) -> str:
    begin, end = team.samples[-2].step, team.samples[-1].step
    middle = team.pattern.middle(figures.steps_of(team.ends[begin : end + 1]))
    return f"{team.job.prefix}{team.job.pattern}: step {end} of {team.settings.steps}, {middle:.3f} s per step"


def _capacities(lab: Lab, settings: Settings, jobs: int) -> list[int]:
    """The capacity of each node's store in bytes."""
    if patterns.PATTERNS[settings.pattern].alone:
        readers = patterns.store_bytes(settings.nbytes, settings.steps)
        return [2 * settings.nbytes * settings.steps] + [readers] * (len(lab.hosts) - 1)
    # The results of a step, partial sums, a few versions of the weights.
    workers = (len(lab.hosts) - 1) * settings.per_host
    return [jobs * (workers + 12) * settings.nbytes + 128 * patterns.MIB] * len(lab.hosts)


def _victims(lab: Lab) -> list[Host]:
    """The hosts of the faults: none with a server, and not the same twice in a row."""
    middle = max(2, len(lab.hosts) // 2)
    return [lab.hosts[middle], lab.hosts[middle + 1 if middle + 1 < len(lab.hosts) else 1]]


def _row(lab: Lab, team: Team, job: str, injector: Injector, counters: Counters) -> Row:
    settings, pattern, samples = team.settings, team.pattern, figures.steps_of(team.ends)
    rate = lab.facts()["rate"]
    wire = figures.wire_seconds(settings.nbytes, rate)
    facts: dict[str, Any] = machine.facts()
    undisturbed = pattern.middle(samples[: injector.spans[0].step]) if injector.spans else None
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
        variant=", ".join(part for part in (settings.variant, job) if part not in ("", "default")) or "default",
        version=hoplite.__version__,
        op=settings.pattern,
        hosts=len(lab.hosts),
        bytes=settings.nbytes,
        arrival_s=0.0,
        repeats=settings.steps,
        seconds=row.spread(samples),
        samples=samples,
        wire_ratio=pattern.middle(samples) / wire,
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
            "bound_s": pattern.transfers(team.job.count) * wire,
            "tenths": figures.tenths(samples, settings.steps, pattern.middle),
            "trend": row.trend(samples, pattern.middle),
            "undisturbed_s": undisturbed,
            "faults": faults,
            "retries": team.retries,
            "direct": _direct(team.samples, settings.nbytes),
            "links": _links(lab, team.samples, rate),
            "counters": counters,
        },
    )


def _direct(samples: Sequence[Sample], nbytes: int) -> list[float]:
    """The number of copies of an object that the server's node sent per step, for each tenth of the run."""
    return [
        (after.direct - before.direct) / nbytes / (after.step - before.step)
        for before, after in itertools.pairwise(samples)
    ]


def _links(lab: Lab, samples: Sequence[Sample], rate: int) -> dict[str, list[float]]:
    """The sent and received share of each link's rate over the whole run."""
    first, last = samples[0], samples[-1]
    full = (last.at - first.at) * rate / 8
    return {
        host.name: [(after - before) / full for before, after in zip(first.moved[at], last.moved[at], strict=True)]
        for at, host in enumerate(lab.hosts)
    }
