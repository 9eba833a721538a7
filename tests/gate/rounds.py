"""Broadcasts: many in a row, of a large object, with a slow or pausing receiver, with a limit for each connection."""

from __future__ import annotations

import signal
import statistics
import threading
import time
from typing import TYPE_CHECKING

from faults.crew import Crew
from faults.slow import SLOW_RATE, Rounds
from gate.figures import WIRE, Figure, Group
from hoplite_bench.lab import Lab

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Collection, Iterator

HOSTS, RATE, MIB = 8, "500mbit", 1 << 20
NBYTES = 16 * MIB
# Broadcasts in a row; the last ones count, and each block of them is a repeat.
BROADCASTS, LAST, BLOCK = 200, 100, 20
# Clusters in which the slow host's request is the first transfer, and later broadcasts in each.
CLUSTERS, LATER, SLOW = 4, 2, 4
# Broadcasts of an object that several connections could carry. The first two get new memory in each store.
LARGE_HOSTS, LARGE_NBYTES, LARGE, COLD, LARGE_CLUSTERS = 9, 256 * MIB, 5, 2, 2
# The receiver gets no time slice for PAUSE_S, then runs for RUN_S. At 1 Gbit/s, 3.6 MiB arrive in a pause.
PAUSE_S, RUN_S, PAUSED_NBYTES, PAUSED = 0.030, 0.015, 96 * MIB, 12
# Transfers in which the windows still grow.
GROWING = 2
# One object at a time over a link that carries four connections at their limit. The first shows what they bring.
CAPPED_RATE, FLOW_CAP, CAPPED_NBYTES, CAPPED, LEARNING = "1gbit", "250mbit", 256 * MIB, 6, 1


def repeated(cells: Collection[str]) -> Iterator[Figure]:  # noqa: ARG001 - it has one
    """Broadcasts 200 times in a row: the median and the slowest of each twenty of the last hundred."""
    with Lab(hosts=HOSTS, rate=RATE) as lab:
        wire_s = _wire_s(lab, NBYTES)
        with Crew(lab) as crew:
            rounds = Rounds(crew, NBYTES)
            took = [rounds.broadcast(list(range(1, HOSTS))) / wire_s for _ in range(BROADCASTS)]
    blocks = [took[begin : begin + BLOCK] for begin in range(BROADCASTS - LAST, BROADCASTS, BLOCK)]
    yield Figure("repeated-broadcasts/median", [statistics.median(block) for block in blocks], WIRE)
    yield Figure("repeated-broadcasts/slowest", [max(block) for block in blocks], WIRE)


def large(cells: Collection[str]) -> Iterator[Figure]:  # noqa: ARG001 - it has one
    """Broadcasts a large object to eight hosts, which relay it in a chain: what delays one of them delays the rest."""
    with Lab(hosts=LARGE_HOSTS, rate=RATE) as lab:
        wire_s, first, later = _wire_s(lab, LARGE_NBYTES), [], []
        for _ in range(LARGE_CLUSTERS):
            with Crew(lab) as crew:
                rounds = Rounds(crew, LARGE_NBYTES)
                took = [rounds.broadcast(list(range(1, LARGE_HOSTS))) / wire_s for _ in range(LARGE)]
            first += took[:COLD]
            later += took[COLD:]
    yield Figure("large-broadcast/first", first, WIRE)
    yield Figure("large-broadcast/later", later, WIRE)


def slow_first(cells: Collection[str]) -> Iterator[Figure]:  # noqa: ARG001 - it has one
    """Broadcasts that a slow host requests first, in clusters that have transferred nothing before.

    Afterwards its link is restored for a broadcast to the others, and slowed again for one that it requests first.
    """
    first, later, warm = [], [], []
    others = [number for number in range(1, HOSTS) if number != SLOW]
    with Lab(hosts=HOSTS, rate=RATE) as lab:
        wire_s = _wire_s(lab, NBYTES)
        for _ in range(CLUSTERS):
            lab.hosts[SLOW].slow(SLOW_RATE)
            with Crew(lab) as crew:
                rounds = Rounds(crew, NBYTES)
                first.append(rounds.broadcast(others, first=SLOW) / wire_s)
                later += [rounds.broadcast(others, first=SLOW) / wire_s for _ in range(LATER)]
                lab.hosts[SLOW].slow(None)
                rounds.broadcast(others)
                lab.hosts[SLOW].slow(SLOW_RATE)
                warm.append(rounds.broadcast(others, first=SLOW) / wire_s)
    yield Figure("slow-first/first", first, WIRE)
    yield Figure("slow-first/later", later, WIRE)
    yield Figure("slow-first/warm", warm, WIRE)


def paused(cells: Collection[str]) -> Iterator[Figure]:  # noqa: ARG001 - it has one
    """Transfers to a receiver that often gets no time slice: bytes in flight bridge its pauses."""
    with Lab(hosts=2, rate="1gbit") as lab:
        wire_s = _wire_s(lab, PAUSED_NBYTES)
        with Crew(lab) as crew:
            rounds = Rounds(crew, PAUSED_NBYTES)
            receiver = crew.actors[1].process
            rounds.broadcast([1])
            took = []
            for _ in range(PAUSED):
                over = threading.Event()
                pauses = threading.Thread(target=_pause, args=(receiver, over))
                pauses.start()
                try:
                    took.append(rounds.broadcast([1]) / wire_s)
                finally:
                    over.set()
                    pauses.join()
    yield Figure("paused-receiver/first", took[:GROWING], WIRE)
    yield Figure("paused-receiver/later", took[GROWING:], WIRE)


def flow_cap(cells: Collection[str]) -> Iterator[Figure]:  # noqa: ARG001 - it has one
    """Transfers of one object over a network that limits each TCP connection to a quarter of the link."""
    with Lab(hosts=2, rate=CAPPED_RATE, flow_cap=FLOW_CAP) as lab:
        wire_s = _wire_s(lab, CAPPED_NBYTES)
        with Crew(lab) as crew:
            rounds = Rounds(crew, CAPPED_NBYTES)
            took = [rounds.broadcast([1]) / wire_s for _ in range(CAPPED)]
    yield Figure("flow-cap/first", took[:LEARNING], WIRE)
    yield Figure("flow-cap/later", took[LEARNING:], WIRE)


def _pause(process: subprocess.Popen[str], over: threading.Event) -> None:
    """Pauses a process again and again until the event is set."""
    while not over.wait(RUN_S):
        process.send_signal(signal.SIGSTOP)
        time.sleep(PAUSE_S)
        process.send_signal(signal.SIGCONT)


def _wire_s(lab: Lab, nbytes: int) -> float:
    """The time of one TCP stream of so many bytes between two hosts of a lab."""
    return nbytes * 8 / lab.measure_rate(lab.hosts[0], lab.hosts[1])


GROUPS = [
    Group(["repeated-broadcasts"], repeated),
    Group(["large-broadcast"], large),
    Group(["slow-first"], slow_first),
    Group(["paused-receiver"], paused),
    Group(["flow-cap"], flow_cap),
]
