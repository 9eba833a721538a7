"""Which transport moved the data of each contender: one more round that is not timed, watched through the kernel.

A round is watched once per set-up, operation, size and contender, with the most workers. Cells with fewer workers have
the same processes in the same place, so their rows get the same transports.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from hoplite.errors import InvalidArgument
from hoplite_bench import transport, words
from hoplite_bench.group import GroupFailed
from hoplite_bench.hosts import AgentFailed
from hoplite_bench.plan import Contender
from hoplite_bench.row import WIRE
from hoplite_bench.systems.base import Unavailable
from hoplite_bench.transport.judgement import USED_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hoplite_bench.group import Group
    from hoplite_bench.row import Row
    from hoplite_bench.run import Runner
    from hoplite_bench.study.matrix import StudyCell
    from hoplite_bench.transport import Transport

# Where a row's lab stores what its transports follow from.
FIELD = "transport_evidence"
# Counters that a transport is known by, of which the least counts, and their name in a report.
COUNTERS = {
    "network interfaces": ("interface_bytes", "socket_interface_bytes"),
    "loopback": ("loopback_bytes", "socket_loopback_bytes"),
    "calls of CMA": ("cma_bytes",),
}


@dataclasses.dataclass(frozen=True)
class Known:
    """The transports of a contender in a set-up.

    Attributes:
        names: as in a row.
        evidence: the counters of the kernel, and the number of workers; as in a row's lab.
    """

    names: list[str]
    evidence: dict[str, Any]

    @property
    def workers(self) -> int:
        """The number of workers of the round; 0 if the evidence lacks it."""
        count = self.evidence.get("workers", 0)
        return count if isinstance(count, int) else 0


class Evidence:
    """The transports that are known so far.

    Args:
        rows: rows of earlier runs.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._known: dict[tuple[object, ...], Known] = {}
        for row in rows:
            if row.transport and isinstance(row.lab.get(FIELD), dict):
                known = Known(row.transport, row.lab[FIELD])
                if known.workers >= self._known.get(_key(row), known).workers:
                    self._known[_key(row)] = known

    def added(self, rows: Sequence[Row], cell: StudyCell, runner: Runner) -> list[Row]:
        """Returns the rows of a cell with their transports; watches a round of each contender if necessary."""
        return [self._added(row, cell, runner) if row.samples and row.system != WIRE else row for row in rows]

    def _added(self, row: Row, cell: StudyCell, runner: Runner) -> Row:
        known = self._known.get(_key(row))
        if known is None or known.workers < cell.workers:
            known = self._known[_key(row)] = _watched(row, cell, runner)
        return dataclasses.replace(row, transport=known.names, lab={**row.lab, FIELD: known.evidence})


def _key(row: Row) -> tuple[object, ...]:
    return row.container, row.op, row.bytes, row.system, row.variant


def _watched(row: Row, cell: StudyCell, runner: Runner) -> Known:
    """Watches one round; if the operation is too small or fails, only the reason is known."""
    runner.notify(f"transports of {row.system} {row.variant}: {cell}")

    def watched(group: Group, run: Callable[[], object]) -> Transport:
        payload = transport.payload(cell.op, cell.ranks, cell.nbytes)
        return transport.used(transport.processes_of(group.id), payload, run)

    (one,) = [
        Contender(row.system, variant.name, variant.group)
        for variant in runner.systems[row.system].variants(cell.op)
        if variant.name == row.variant
    ]
    try:
        found = runner.once(cell, one, watched)
    except (InvalidArgument, Unavailable, GroupFailed, AgentFailed, OSError) as error:
        return Known([], {"workers": cell.workers, "reason": str(error)})
    told = {"workers": cell.workers, **found.evidence, **({"reason": found.reason} if found.reason else {})}
    return Known(list(found.names), told)


def described(evidence: dict[str, Any]) -> str:
    """Describes evidence in words: the bytes that moved, of the bytes that had to move."""
    if "payload_bytes" not in evidence:
        return str(evidence.get("reason", "not observed"))
    carried = {
        place: min((evidence[name] for name in names if evidence.get(name, -1) >= 0), default=0)
        for place, names in COUNTERS.items()
    }
    parts = [
        f"{words.memory(count)} through {place}"
        for place, count in carried.items()
        if count * USED_SHARE >= evidence["payload_bytes"]
    ]
    if evidence.get("shared_segments", 0) > 0 and evidence.get("shared_touched_bytes", 0) > 0:
        touched = words.memory(evidence["shared_touched_bytes"])
        parts.append(f"{touched} used of {words.count(evidence['shared_segments'], 'shared mapping')}")
        rest = evidence["payload_bytes"] - sum(carried.values())
        is_little = evidence["shared_touched_bytes"] * USED_SHARE < evidence["payload_bytes"]
        # A ring may be smaller than what passes through it, but only the absence of another transport shows that.
        if is_little and rest * USED_SHARE >= evidence["payload_bytes"] and evidence.get("cma_bytes", 0) >= 0:
            parts[-1] += " (by elimination)"
    if evidence.get("cma_refused", 0) > 0:
        parts.append(f"{words.count(evidence['cma_refused'], 'call')} of CMA refused")
    if evidence.get("reason"):
        parts.append(str(evidence["reason"]))
    payload = f"{words.memory(evidence['payload_bytes'])} to move with {words.count(evidence['workers'], 'worker')}"
    return f"{payload}: {', '.join(parts) or 'nothing observed'}"
