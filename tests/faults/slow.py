"""One host that is slow, frozen or cut off, and what the others lose by it: the figures of docs/reliability.

Eight hosts of a lab run broadcasts and sums of the first k inputs. One of them gets a tenth of the link's rate, stands
still or is cut off; the times of the others are compared with those of undisturbed rounds of the same run. Each byte is
verified. Knows nothing of how Hoplite finds out who is slow.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from faults import content
from faults.crew import Crew
from hoplite.errors import HopliteError
from hoplite_bench.lab import Lab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from faults.crew import Reply
    from hoplite_bench.lab import Host

HOSTS = 8
RATE, SLOW_RATE = "500mbit", "50mbit"
# Of a rate of Ethernet frames, what TCP brings.
WIRE_BYTES_PER_S = 500e6 * 0.956 / 8
# How much sooner than the others the slow host asks, so that it is a holder when they do.
LEAD_S = 0.06
# Between the calls of two receivers.
APART_S = 0.004
# What is not over by then hangs.
LIMIT_S = 120.0
# A sum takes the first so many of so many inputs.
FIRST, INPUTS = (4, 5), 7

FAULTS = ("frozen", "cut off")
PARTS = ("slow", "silent", "first")
# Which hosts own the names of a sum's inputs.
NAMES = ("elsewhere", "anywhere")

MIB = 1 << 20


@dataclass(frozen=True)
class Figure:
    """What the others lost in one round.

    Attributes:
        what: the round in words.
        seconds: until the last of the others had its answer.
        undisturbed_s: the same without the fault, in the same run.
    """

    what: str
    seconds: float
    undisturbed_s: float

    def __str__(self) -> str:
        lost = self.seconds - self.undisturbed_s
        times = self.seconds / self.undisturbed_s
        return f"{self.what}: {self.seconds:.2f} s, {times:.2f} times {self.undisturbed_s:.2f} s ({lost:+.2f} s)"


class Rounds:
    """Broadcasts from host 0 to the others, and sums at host 0 of what they put."""

    def __init__(self, crew: Crew, nbytes: int) -> None:
        self.crew = crew
        self.count = nbytes // content.DTYPE.itemsize
        self._numbers = itertools.count()

    def broadcast(
        self,
        receivers: list[int],
        *,
        first: int | None = None,
        left_out: int | None = None,
        fault: Callable[[], None] | None = None,
        at_s: float = 0.0,
        undo: Callable[[], None] | None = None,
    ) -> float:
        """Seconds until the last has the object; `first` asks before the others, and it and `left_out` do not count."""
        ref = f"slow-{next(self._numbers)}/1"
        _answer(self.crew.actors[0].send("put", ref=ref, count=self.count, seed=1).result(LIMIT_S))
        asked = {}
        for number in [] if first is None else [first]:
            asked[number] = self._get(number, ref)
            time.sleep(LEAD_S)
        begun = time.monotonic()
        for number in receivers:
            asked[number] = self._get(number, ref)
            time.sleep(APART_S)
        if fault is not None:
            time.sleep(max(0.0, at_s - (time.monotonic() - begun)))
            fault()
        others = [number for number in asked if number not in (first, left_out)]
        took = max(_answer(asked[number].result(LIMIT_S)).at for number in others) - begun
        if undo is not None:
            undo()
        for reply in asked.values():
            reply.result(LIMIT_S)
        self._delete([ref])
        return took

    def first_of_many(
        self,
        count: int,
        fault: Callable[[], None] | None = None,
        at_s: float = 0.0,
        undo: Callable[[], None] | None = None,
        *,
        not_owned_by: int | None = None,
    ) -> float:
        """Seconds of a step: a broadcast, what each receiver puts then, and the sum of the first `count` of that.

        No name of it is one that host `not_owned_by` is the first owner of.
        """
        weights, total = (self._name("slow", not_owned_by) for _ in range(2))
        inputs = {self._name("slow-in", not_owned_by): number for number in range(1, INPUTS + 1)}
        _answer(self.crew.actors[0].send("put", ref=weights, count=self.count, seed=1).result(LIMIT_S))
        begun = time.monotonic()
        sum_ = self.crew.actors[0].send(
            "reduce", refs=list(inputs), count=count, name=total, timeout=LIMIT_S, seeds=inputs
        )

        def work(ref: str, number: int) -> None:
            if not self._get(number, weights).result(LIMIT_S).error:
                self.crew.actors[number].send("put", ref=ref, count=self.count, seed=number).result(LIMIT_S)

        workers = [threading.Thread(target=work, args=item) for item in inputs.items()]
        for worker in workers:
            worker.start()
            time.sleep(APART_S / 2)
        if fault is not None:
            time.sleep(max(0.0, at_s - (time.monotonic() - begun)))
            fault()
        took = _answer(sum_.result(LIMIT_S)).at - begun
        if undo is not None:
            undo()
        for worker in workers:
            worker.join(LIMIT_S)
        if fault is not None:
            self.crew.wait_until_met()
        self._delete([weights, total, *inputs])
        return took

    def _name(self, prefix: str, not_owned_by: int | None) -> str:
        """A new name whose first owner is not that host."""
        while True:
            ref = f"{prefix}-{next(self._numbers)}/1"
            if not_owned_by is None:
                return ref
            owners = _answer(self.crew.actors[0].send("owners", ref=ref).result(LIMIT_S)).facts["owners"]
            if owners[0] != self.crew.actors[not_owned_by].id:
                return ref

    def _get(self, number: int, ref: str) -> Future[Reply]:
        return self.crew.actors[number].send("get", ref=ref, timeout=LIMIT_S, seeds=[1])

    def _delete(self, refs: list[str]) -> None:
        self.crew.actors[0].send("delete", refs=refs, timeout=LIMIT_S).result(LIMIT_S)


def _answer(reply: Reply) -> Reply:
    """An answer, which must be right."""
    if reply.error or reply.facts.get("wrong"):
        raise HopliteError(f"a call failed: {reply.error} {reply.message} {reply.facts.get('wrong', '')}")
    return reply


def slow(rounds: Rounds, hosts: list[Host]) -> Iterator[Figure]:
    """One host with a tenth of the rate, which asks before the others, or with them."""
    others = list(range(2, HOSTS))
    rounds.broadcast(others)
    undisturbed = statistics.median(rounds.broadcast(others) for _ in range(3))
    hosts[1].slow(SLOW_RATE)
    for number in range(1, 5):
        took = rounds.broadcast(others, first=1)
        yield Figure(f"broadcast {number}, the slow host asks {LEAD_S * 1000:.0f} ms before", took, undisturbed)
    for place in (0, 1, 3):
        order = [*others[:place], 1, *others[place:]]
        took = rounds.broadcast(order, left_out=1)
        yield Figure(f"broadcast, the slow host asks as number {place + 1} of all", took, undisturbed)
    hosts[1].slow(None)
    for number in range(1, 4):
        took = rounds.broadcast(others, first=1)
        yield Figure(f"broadcast {number} after its link was mended", took, undisturbed)


def silent(rounds: Rounds, hosts: list[Host], fault: str) -> Iterator[Figure]:
    """One relay of a broadcast that is frozen or cut off half way."""
    everybody = list(range(1, HOSTS))
    undisturbed = statistics.median(rounds.broadcast(everybody) for _ in range(3))
    half_s = rounds.count * content.DTYPE.itemsize / WIRE_BYTES_PER_S / 2
    for number in (1, 2, 4, 7):
        break_it, undo = _fault(hosts[number], fault)
        took = rounds.broadcast(everybody, left_out=number, fault=break_it, at_s=half_s, undo=undo)
        rounds.crew.wait_until_met()
        yield Figure(f"broadcast, receiver {number} of {HOSTS - 1}: {fault}", took, undisturbed)


def first_of_many(rounds: Rounds, hosts: list[Host], fault: str, count: int, *, names: str) -> Iterator[Figure]:
    """One of the hosts whose inputs a sum could take is frozen or cut off, at several moments of a step.

    With names `elsewhere` other hosts own all of them. With names `anywhere` the broken one owns an eighth, and what
    is put under one of these waits until the host counts as dead.
    """
    undisturbed = statistics.median(rounds.first_of_many(count) for _ in range(4))
    for number, share in itertools.product((1, 3, 6), (0.1, 0.35, 0.6, 0.85)):
        break_it, undo = _fault(hosts[number], fault)
        spared = number if names == "elsewhere" else None
        took = rounds.first_of_many(count, break_it, share * undisturbed, undo, not_owned_by=spared)
        what = f"first {count} of {INPUTS}, names {names}, host {number} at {share:.0%} of the step: {fault}"
        yield Figure(what, took, undisturbed)


def _fault(host: Host, fault: str) -> tuple[Callable[[], None], Callable[[], None]]:
    return (host.freeze, host.thaw) if fault == "frozen" else (host.cut, host.heal)


def main() -> None:
    """Measures, prints a line for each round, and writes rows of JSON if asked to."""
    parser = argparse.ArgumentParser(
        prog="python -m faults.slow", description="One host that is slow, frozen or cut off."
    )
    parser.add_argument("--mib", type=int, default=16, help="MiB of each object")
    parser.add_argument("--only", choices=PARTS, help="a part of it")
    parser.add_argument("--json", action="store_true", help="rows of JSON instead of text")
    options = parser.parse_args()
    if not 1 <= options.mib <= 1024:
        parser.error(f"--mib {options.mib}: objects of 1 to 1024 MiB fit eight hosts on one machine")
    capacity = f"{max(1024, 12 * options.mib)}MiB"
    with Lab(hosts=HOSTS, rate=RATE) as lab, Crew(lab, capacity=capacity) as crew:
        rounds = Rounds(crew, options.mib * MIB)
        parts = {
            "slow": [slow(rounds, lab.hosts)],
            "silent": [silent(rounds, lab.hosts, fault) for fault in FAULTS],
            "first": [
                first_of_many(rounds, lab.hosts, fault, count, names=names)
                for names, fault, count in itertools.product(NAMES, FAULTS, FIRST)
            ],
        }
        chosen = [options.only] if options.only else PARTS
        for figure in itertools.chain.from_iterable(part for name in chosen for part in parts[name]):
            row = asdict(figure) | {"mib": options.mib, "hosts": HOSTS, "rate": RATE}
            print(json.dumps(row) if options.json else figure, flush=True)  # noqa: T201 - it is what it is for


if __name__ == "__main__":
    main()
