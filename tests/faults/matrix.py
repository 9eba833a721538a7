"""Breaks one host at one moment of one operation, for all places, faults and moments, and says what came of each.

The moment is one of bytes: the fault comes when so much has gone over the link of the receiver that is watched.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from concurrent.futures import TimeoutError as NotYet
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from faults import cells
from faults.cells import (
    CALLER,
    COUNT,
    FAULTS,
    FOLDED,
    HOSTS,
    INPUTS,
    NBYTES,
    NOTHING,
    OWNER,
    PLACES,
    RECEIVERS,
    Cell,
)
from faults.crew import Crew, Reply
from hoplite.errors import HopliteError
from hoplite_bench.lab import Lab

if TYPE_CHECKING:
    from concurrent.futures import Future

    from hoplite_bench.lab import Host

RATE = "1gbit"
# Of a rate of Ethernet frames, what TCP brings.
WIRE_S = NBYTES * 8 / 956e6
DETECTION_S = 3.0
# How long a host stands still: longer than detection, so that it is taken for dead meanwhile.
FREEZE_S = 2 * DETECTION_S

# Between the calls of two receivers: the one is a holder before the other asks.
APART_S = 0.004
# After the fault everything is to be over by then; what is not, hangs.
HANG_S = 40.0
# Of the calls themselves: later than that, so that a call which hangs is seen to hang.
CALL_TIMEOUT_S = 120.0
UNDISTURBED = 3

# A fault that came when nearly all had gone over the watched link broke little: it is tried anew, so often in all.
TOO_LATE = 0.99
TRIES = 3


@dataclass(frozen=True)
class Row:
    """What came of a cell.

    Attributes:
        op, role, fault, progress: the cell.
        offset: bytes that had gone over the watched link when the fault had come.
        verdict: "right" if all that survive have the right bytes, "lost" if they were told that the object is lost,
            which it was; else what was wrong.
        added_s: what it took longer than undisturbed, until the last that survives had its answer; of an object that is
            lost, what that took from the fault on.
        limit_s: what it may.
        detected_s: after how long another node took the host for dead; none if it was not to.
        healed_s: after how long all nodes knew each other again, once the fault was undone.
    """

    op: str
    role: str
    fault: str
    progress: float
    offset: int
    verdict: str
    added_s: float
    limit_s: float
    detected_s: float | None
    healed_s: float


class Matrix:
    """The hosts, and what each operation takes undisturbed."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self._count = 0
        self._undisturbed: dict[str, float] = {}

    def run(self, cell: Cell) -> Row:
        """Runs one cell, and mends what it broke."""
        if cell.place.op not in self._undisturbed:
            times = [self._undisturbed_s(cell.place.op) for _ in range(UNDISTURBED)]
            self._undisturbed[cell.place.op] = statistics.median(times)
        names = self._names()
        started, calls = self._start(cell.place.op, names)
        victim = self.crew.actors[cell.place.host]
        watched = self.crew.lab.hosts[CALLER if cell.place.op == "reduce" else RECEIVERS[0]]
        offset = self._wait_for(cell, watched, started.moved, calls)
        is_to_miss = cell.fault != "blink"
        missed = self.crew.actors[self._witness(cell)].send("miss", member=victim.id, timeout=HANG_S)
        broken = time.monotonic()
        self._break(cell)
        survivors = {number: call for number, call in calls.items() if number != cell.place.host}
        replies = self._answers(survivors, broken + HANG_S)
        verdict = self._verdict(cell, replies)
        ended = max((reply.at for reply in replies.values()), default=broken)
        miss = missed.result(HANG_S + 1)
        detected = miss.at - broken if is_to_miss else None
        if is_to_miss and miss.error:
            verdict = f"the host is not missed: {miss.message}"
        if cell.fault == "freeze":
            time.sleep(max(0.0, broken + FREEZE_S - time.monotonic()))
        mended = time.monotonic()
        self.crew.repair()
        healed = time.monotonic() - mended
        if cell.fault != "kill" and cell.place.host in calls:
            own = self._answers({cell.place.host: calls[cell.place.host]}, time.monotonic() + HANG_S)
            wrong = [reply.facts["wrong"] for reply in own.values() if reply.facts.get("wrong")]
            if not own or wrong:
                verdict = f"the host itself {wrong[0] if wrong else 'hangs'}"
        self._clear(names)
        is_lost = verdict == "lost"
        return Row(
            op=cell.place.op,
            role=cell.place.role,
            fault=cell.fault,
            progress=cell.progress,
            offset=offset,
            verdict=verdict,
            added_s=round(ended - (broken if is_lost else started.at + self._undisturbed[cell.place.op]), 3),
            limit_s=round(cells.limit_s(cell, DETECTION_S, WIRE_S, is_lost=is_lost), 3),
            detected_s=None if detected is None else round(detected, 3),
            healed_s=round(healed, 3),
        )

    def run_undisturbed(self, cell: Cell) -> Row:
        """Runs the operation of a cell and breaks nothing: then no node may have had to begin anything again."""
        op = cell.place.op
        if op not in self._undisturbed:
            self._undisturbed[op] = statistics.median([self._undisturbed_s(op) for _ in range(UNDISTURBED)])
        names, counted = self._names(), self.crew.counters()
        started, calls = self._start(op, names)
        replies = self._answers(calls, started.at + HANG_S)
        verdict = self._verdict(cell, replies)
        disturbed = self.crew.disturbances(counted)
        if verdict == "right" and disturbed:
            verdict = f"without a fault: {', '.join(disturbed)}"
        self._clear(names)
        ended = max((reply.at for reply in replies.values()), default=started.at)
        return Row(
            op=op,
            role=cell.place.role,
            fault=cell.fault,
            progress=cell.progress,
            offset=int(cell.progress * NBYTES),
            verdict=verdict,
            added_s=round(ended - started.at - self._undisturbed[op], 3),
            limit_s=round(cells.limit_s(cell, DETECTION_S, WIRE_S, is_lost=False), 3),
            detected_s=None,
            healed_s=0.0,
        )

    def _names(self) -> Names:
        """Names that the last host owns, whoever else is there."""
        owner = self.crew.actors[OWNER].id
        while True:
            self._count += 1
            names = Names(f"faults/{self._count}")
            reply = self.crew.actors[CALLER].send("owners", ref=names.result).result(HANG_S)
            if reply.facts["owners"][0] == owner:
                return names

    def _start(self, op: str, names: Names) -> tuple[Started, dict[int, Future[Reply]]]:
        """Puts what the operation needs, and lets all call; by host, the calls."""
        actors = self.crew.actors
        if op == "broadcast":
            actors[CALLER].send("put", ref=names.result, count=COUNT, seed=1).result(HANG_S)
            started = self._begun(RECEIVERS[0])
            calls = {}
            for number in RECEIVERS:
                calls[number] = actors[number].send("get", ref=names.result, timeout=CALL_TIMEOUT_S, seeds=[1])
                time.sleep(APART_S)
            return started, calls
        inputs = INPUTS if op == "reduce" else tuple(range(HOSTS))
        count = FOLDED if op == "reduce" else HOSTS - 1
        seeds = {names.of(number): number + 1 for number in inputs}
        puts = [actors[n].send("put", ref=names.of(n), count=COUNT, seed=n + 1) for n in inputs]
        for put in puts:
            put.result(HANG_S)
        started = self._begun(CALLER if op == "reduce" else RECEIVERS[0])
        fold = {"refs": list(seeds), "count": count, "name": names.result, "timeout": CALL_TIMEOUT_S, "seeds": seeds}
        calls = {CALLER: actors[CALLER].send("reduce", **fold)}
        if op == "allreduce":
            for number in range(1, HOSTS):
                calls[number] = actors[number].send("get", ref=names.result, timeout=CALL_TIMEOUT_S)
        return started, calls

    def _begun(self, watched: int) -> Started:
        return Started(time.monotonic(), self.crew.lab.hosts[watched].moved().in_bytes)

    def _undisturbed_s(self, op: str) -> float:
        names = self._names()
        started, calls = self._start(op, names)
        replies = [call.result(HANG_S) for call in calls.values()]
        wrong = [reply.message or reply.facts["wrong"] for reply in replies if reply.error or reply.facts.get("wrong")]
        if wrong:
            raise HopliteError(f"{op} fails undisturbed: {wrong[0]}")
        self._clear(names)
        return max(reply.at for reply in replies) - started.at

    def _wait_for(self, cell: Cell, watched: Host, begun: int, calls: dict[int, Future[Reply]]) -> int:
        """Waits until so much has gone over a link; how much that is."""
        while True:
            offset = watched.moved().in_bytes - begun
            if offset >= cell.progress * NBYTES or all(call.done() for call in calls.values()):
                return offset

    def _break(self, cell: Cell) -> None:
        host = self.crew.lab.hosts[cell.place.host]
        match cell.fault:
            case "kill":
                host.kill()
            case "freeze":
                host.freeze()
            case "cut":
                host.cut()
            case "mute":
                host.cut("out")
            case "blink":
                host.cut()
                time.sleep(cells.BLINK_S)
                host.heal()

    @staticmethod
    def _witness(cell: Cell) -> int:
        """A host that takes part in nothing, or at least is not broken."""
        return OWNER if cell.place.host != OWNER else CALLER

    @staticmethod
    def _answers(calls: dict[int, Future[Reply]], until: float) -> dict[int, Reply]:
        replies = {}
        for number, call in calls.items():
            try:
                replies[number] = call.result(max(0.0, until - time.monotonic()))
            except NotYet:
                continue
        return replies

    @staticmethod
    def _verdict(cell: Cell, replies: dict[int, Reply]) -> str:
        survivors = set(RECEIVERS if cell.place.op == "broadcast" else {CALLER})
        if cell.place.op == "allreduce":
            survivors = set(range(HOSTS))
        broken = set() if cell.fault == NOTHING else {cell.place.host}
        if missing := survivors - broken - set(replies):
            return f"node{min(missing)} hangs"
        wrong = [f"node{n}: {reply.facts['wrong']}" for n, reply in replies.items() if reply.facts.get("wrong")]
        if wrong:
            return wrong[0]
        failed = {n: reply for n, reply in replies.items() if reply.error}
        lost = [n for n, reply in failed.items() if reply.error == "ObjectLost" and cell.place.may_be_lost]
        for number, reply in failed.items():
            if number not in lost:
                return f"node{number}: {reply.error}: {reply.message}"
        firsts = {reply.facts["first"] for reply in replies.values() if "first" in reply.facts}
        if len(firsts) > 1:
            return f"different results: {sorted(firsts)}"
        return "lost" if lost else "right"

    def _clear(self, names: Names) -> None:
        refs = [names.result, *(names.of(number) for number in range(HOSTS))]
        reply = self.crew.actors[CALLER].send("delete", refs=refs, timeout=HANG_S).result(HANG_S + 1)
        if reply.error:
            raise HopliteError(f"what is left of a cell can't be deleted: {reply.message}")
        self.crew.wait_until_empty()


@dataclass(frozen=True)
class Names:
    """Of the objects of one cell: all under one prefix, so of one owner."""

    prefix: str

    @property
    def result(self) -> str:
        """Of the result, or of the one object."""
        return f"{self.prefix}/result"

    def of(self, number: int) -> str:
        """Of a host's input."""
        return f"{self.prefix}/input{number}"


@dataclass(frozen=True)
class Started:
    """When an operation began, and what had gone over the watched link before."""

    at: float
    moved: int


def chosen(text: str | None, known: list[str], what: str) -> list[str]:
    """The words of a list that is written with commas; all of them if there is none."""
    words = known if text is None else [word.strip() for word in text.split(",")]
    for word in words:
        if word not in known:
            raise HopliteError(f"{word!r} is none of the {what}: {', '.join(known)}")
    return words


def main() -> int:
    """Runs the cells that were asked for, and writes a row for each as it comes."""
    parser = argparse.ArgumentParser(prog="python -m faults.matrix", description=__doc__)
    parser.add_argument("--ops", help="of broadcast,reduce,allreduce; all by default")
    parser.add_argument("--faults", help=f"of {','.join(FAULTS)}; all by default")
    parser.add_argument("--roles", help="whom to break, such as source; all by default")
    parser.add_argument("--out", type=Path, help="where to append the rows, as JSON lines")
    options = parser.parse_args()
    try:
        ops = chosen(options.ops, sorted({place.op for place in PLACES}), "operations")
        faults = chosen(options.faults, list(FAULTS), "faults")
        roles = chosen(options.roles, sorted({place.role for place in PLACES}), "roles")
        wanted = [cell for cell in cells.cells(ops, faults) if cell.place.role in roles]
        with Lab(hosts=HOSTS, rate=RATE) as lab, Crew(lab, detection_s=DETECTION_S) as crew:
            return run(Matrix(crew), wanted, options.out)
    except HopliteError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def run(matrix: Matrix, wanted: list[Cell], out: Path | None) -> int:
    """Runs cells, prints a line for each, and a count of them."""
    bad = late = 0
    for cell in wanted:
        run_cell = matrix.run_undisturbed if cell.fault == NOTHING else matrix.run
        row = run_cell(cell)
        for _ in range(TRIES - 1):
            if row.verdict not in ("right", "lost") or row.offset < TOO_LATE * NBYTES:
                break
            row = run_cell(cell)
        is_late = row.added_s > row.limit_s
        late += is_late
        bad += row.verdict not in ("right", "lost")
        sys.stdout.write(
            f"{cell}: {row.verdict}, {row.added_s:+.2f} s{f' > {row.limit_s:.2f}' if is_late else ''}"
            f" at {row.offset / NBYTES:.1%}; detected "
            f"{'-' if row.detected_s is None else f'{row.detected_s:.3f} s'}, healed {row.healed_s:.2f} s\n"
        )
        sys.stdout.flush()
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    sys.stdout.write(f"{late} of {len(wanted)} took longer than is aimed at\n")
    sys.stdout.write(f"{len(wanted) - bad} passed, {bad} failed\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
