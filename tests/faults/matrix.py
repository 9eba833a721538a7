"""Breaks one host at one moment of one operation, for all places, faults and moments, and reports each result.

The moment is a byte count: the fault is injected when the observed receiver's link has carried that many bytes.
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
# Transfer time of an object: TCP carries 956 Mbit/s of a link of 1 Gbit/s.
WIRE_S = NBYTES * 8 / 956e6
DETECTION_S = 3.0
# How long a host is paused: longer than the detection timeout, so that it is declared dead.
FREEZE_S = 2 * DETECTION_S

# Interval between the gets of two receivers: the first is a holder before the second one's request.
APART_S = 0.004
# A call that has not ended by then, measured from the fault, counts as hanging.
HANG_S = 40.0
# Timeout of the calls: longer than `HANG_S`, so that a hanging call is detected.
CALL_TIMEOUT_S = 120.0
UNDISTURBED = 3

# A fault that comes when nearly all bytes have arrived breaks little. It is tried again, up to `TRIES` times in all.
TOO_LATE = 0.99
TRIES = 3


@dataclass(frozen=True)
class Row:
    """The result of a cell.

    Attributes:
        op, role, fault, progress: the cell.
        offset: bytes that the observed link had carried when the fault was injected.
        verdict: "right" if all survivors have the right bytes; "lost" if they got `ObjectLost` and the object was lost;
            otherwise a description of the failure.
        added_s: time until the last survivor had its reply, minus that of the undisturbed operation. For a lost object,
            the time from the fault.
        limit_s: the limit of `added_s`.
        detected_s: time until another node declared the host dead; None if it must not.
        healed_s: time from the end of the fault until all nodes were members again.
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
    """The hosts, and the duration of each undisturbed operation."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self._count = 0
        self._undisturbed: dict[str, float] = {}

    def run(self, cell: Cell) -> Row:
        """Runs one cell, and undoes its fault."""
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
        undone = time.monotonic()
        self.crew.repair()
        healed = time.monotonic() - undone
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
        """Runs the operation of a cell without a fault: then no node may restart anything."""
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
        """Returns names whose primary owner is the last host, regardless of the other members."""
        owner = self.crew.actors[OWNER].id
        while True:
            self._count += 1
            names = Names(f"faults/{self._count}")
            reply = self.crew.actors[CALLER].send("owners", ref=names.result).result(HANG_S)
            if reply.facts["owners"][0] == owner:
                return names

    def _start(self, op: str, names: Names) -> tuple[Started, dict[int, Future[Reply]]]:
        """Puts the inputs of the operation and starts its calls; returns the calls by host."""
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
        """Waits until the link has carried enough bytes; returns how many."""
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
        """Returns a host that has no part in the operation, or at least is not broken."""
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
    """Names of the objects of one cell: all have one prefix, and so one owner."""

    prefix: str

    @property
    def result(self) -> str:
        """Returns the name of the result, or of the only object."""
        return f"{self.prefix}/result"

    def of(self, number: int) -> str:
        """Returns the name of a host's input."""
        return f"{self.prefix}/input{number}"


@dataclass(frozen=True)
class Started:
    """The start of an operation, and the bytes that the observed link had carried before."""

    at: float
    moved: int


def chosen(text: str | None, known: list[str], what: str) -> list[str]:
    """Parses a comma-separated list; without a list, returns all known words."""
    words = known if text is None else [word.strip() for word in text.split(",")]
    for word in words:
        if word not in known:
            raise HopliteError(f"{word!r} is not one of the {what}: {', '.join(known)}")
    return words


def main() -> int:
    """Runs the selected cells, and writes a row for each as it finishes."""
    parser = argparse.ArgumentParser(prog="python -m faults.matrix", description=__doc__)
    parser.add_argument(
        "--ops", help="operations to run, a comma-separated part of broadcast,reduce,allreduce; all by default"
    )
    parser.add_argument(
        "--faults", help=f"faults to inject, a comma-separated part of {','.join(FAULTS)}; all by default"
    )
    parser.add_argument("--roles", help="hosts to break, by role, such as source; all by default")
    parser.add_argument("--moments", help="moments of the faults, as shares of an object, such as 0.5; all by default")
    parser.add_argument("--out", type=Path, help="file to append the rows to, as JSON lines")
    options = parser.parse_args()
    try:
        ops = chosen(options.ops, sorted({place.op for place in PLACES}), "operations")
        faults = chosen(options.faults, list(FAULTS), "faults")
        roles = chosen(options.roles, sorted({place.role for place in PLACES}), "roles")
        moments = chosen(options.moments, [f"{progress:g}" for progress in cells.PROGRESS], "moments")
        wanted = [
            cell for cell in cells.cells(ops, faults) if cell.place.role in roles and f"{cell.progress:g}" in moments
        ]
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
    sys.stdout.write(f"{late} of {len(wanted)} took longer than the target\n")
    sys.stdout.write(f"fault cells: {len(wanted) - bad} right, {bad} wrong\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
