"""The cost of one host that is slow, frozen or disconnected to the others: the figures of docs/reliability.

Eight hosts of a lab run broadcasts and sums of the first k inputs. One of them gets a tenth of the link's rate, is
frozen or is disconnected. The times of the others are compared with those of undisturbed rounds of the same run. Every
byte is verified. This module does not depend on how Hoplite detects slow hosts.
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
# TCP carries 95.6% of the link's rate.
WIRE_BYTES_PER_S = 500e6 * 0.956 / 8
# Head start of the slow host's get, so that it is a holder when the others send theirs.
LEAD_S = 0.06
# Interval between the gets of two receivers.
APART_S = 0.004
# A call that takes longer counts as hanging.
LIMIT_S = 120.0
# A sum takes the first `FIRST` of `INPUTS` inputs.
FIRST, INPUTS = (4, 5), 7

FAULTS = ("frozen", "cut off")
PARTS = ("slow", "silent", "first")
# Whether the broken host may own names of a sum's inputs.
NAMES = ("elsewhere", "anywhere")

MIB = 1 << 20


@dataclass(frozen=True)
class Figure:
    """The cost of a fault to the other hosts, in one round.

    Attributes:
        what: description of the round.
        seconds: time until the last of the others had its reply.
        undisturbed_s: the same without a fault, in the same run.
    """

    what: str
    seconds: float
    undisturbed_s: float

    def __str__(self) -> str:
        lost = self.seconds - self.undisturbed_s
        times = self.seconds / self.undisturbed_s
        return f"{self.what}: {self.seconds:.2f} s, {times:.2f} times {self.undisturbed_s:.2f} s ({lost:+.2f} s)"


class Rounds:
    """Broadcasts from host 0 to the others, and sums at host 0 of their objects."""

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
        """Returns the seconds until the last receiver has the object.

        `first` requests it before the others. `first` and `left_out` do not count.
        """
        ref = f"slow-{next(self._numbers)}/1"
        _answer(self.crew.actors[0].send("put", ref=ref, count=self.count, seed=1).result(LIMIT_S))
        gets = {}
        for number in [] if first is None else [first]:
            gets[number] = self._get(number, ref)
            time.sleep(LEAD_S)
        begun = time.monotonic()
        for number in receivers:
            gets[number] = self._get(number, ref)
            time.sleep(APART_S)
        if fault is not None:
            time.sleep(max(0.0, at_s - (time.monotonic() - begun)))
            fault()
        others = [number for number in gets if number not in (first, left_out)]
        took = max(_answer(gets[number].result(LIMIT_S)).at for number in others) - begun
        if undo is not None:
            undo()
        for reply in gets.values():
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
        """Returns the seconds of a step: a broadcast, a put by each receiver, and the sum of the first `count` puts.

        Host `not_owned_by` is not the primary owner of any name in the step.
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
        """Returns a new name whose primary owner is not host `not_owned_by`."""
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
    """Checks that a reply is a success, and returns it."""
    if reply.error or reply.facts.get("wrong"):
        raise HopliteError(f"a call failed: {reply.error} {reply.message} {reply.facts.get('wrong', '')}")
    return reply


def slow(rounds: Rounds, hosts: list[Host]) -> Iterator[Figure]:
    """Measures broadcasts to one host with a tenth of the rate, which sends its get before the others or among them."""
    others = list(range(2, HOSTS))
    rounds.broadcast(others)
    undisturbed = statistics.median(rounds.broadcast(others) for _ in range(3))
    hosts[1].slow(SLOW_RATE)
    for number in range(1, 5):
        took = rounds.broadcast(others, first=1)
        yield Figure(f"broadcast {number}, the slow host starts {LEAD_S * 1000:.0f} ms before", took, undisturbed)
    for place in (0, 1, 3):
        order = [*others[:place], 1, *others[place:]]
        took = rounds.broadcast(order, left_out=1)
        yield Figure(f"broadcast, the slow host starts as number {place + 1} of all", took, undisturbed)
    hosts[1].slow(None)
    for number in range(1, 4):
        took = rounds.broadcast(others, first=1)
        yield Figure(f"broadcast {number} after its link was restored", took, undisturbed)


def silent(rounds: Rounds, hosts: list[Host], fault: str) -> Iterator[Figure]:
    """Measures broadcasts in which a relay is frozen or disconnected half way."""
    everybody = list(range(1, HOSTS))
    undisturbed = statistics.median(rounds.broadcast(everybody) for _ in range(3))
    half_s = rounds.count * content.DTYPE.itemsize / WIRE_BYTES_PER_S / 2
    for number in (1, 2, 4, 7):
        break_it, undo = _fault(hosts[number], fault)
        took = rounds.broadcast(everybody, left_out=number, fault=break_it, at_s=half_s, undo=undo)
        rounds.crew.wait_until_met()
        yield Figure(f"broadcast, receiver {number} of {HOSTS - 1}: {fault}", took, undisturbed)


def first_of_many(rounds: Rounds, hosts: list[Host], fault: str, count: int, *, names: str) -> Iterator[Figure]:
    """Measures sums in which a host with an input is frozen or disconnected, at several moments of a step.

    With names `elsewhere`, other hosts own all of them. With names `anywhere`, the broken host owns an eighth, and a
    put of one of these waits until the host is declared dead.
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
    """Measures, and prints a line or a row of JSON for each round."""
    parser = argparse.ArgumentParser(
        prog="python -m faults.slow", description="One host that is slow, frozen or cut off."
    )
    parser.add_argument("--mib", type=int, default=16, help="MiB of each object")
    parser.add_argument("--only", choices=PARTS, help="run this part only")
    parser.add_argument("--json", action="store_true", help="print rows of JSON instead of text")
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
            print(json.dumps(row) if options.json else figure, flush=True)  # noqa: T201 - the program's output


if __name__ == "__main__":
    main()
