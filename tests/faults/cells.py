"""The cells of the fault matrix: the operation, the host, the fault, its moment and the allowed results.

This module is pure and does not depend on a lab.
"""

from __future__ import annotations

from dataclasses import dataclass

# Elements of an object, and its bytes.
COUNT = 8 * 2**20
NBYTES = COUNT * 8

# Roles of the hosts in every cell: host 0 calls the operation or is the source of a broadcast, and host 7 only owns the
# names, while it is alive.
CALLER = 0
OWNER = 7
HOSTS = 8

# Shorter than failure detection: TCP recovers by itself at its next retransmission.
BLINK_S = 1.5


@dataclass(frozen=True)
class Place:
    """The host that a fault hits, in an operation.

    Attributes:
        op: "broadcast", "reduce" or "allreduce".
        role: what the host does in the operation.
        host: its number.
        may_be_lost: whether the host holds the only copy, so that the others may get `ObjectLost`.
    """

    op: str
    role: str
    host: int
    may_be_lost: bool = False


# Receivers request the object one after another, and so each receives from the previous one. A reduce takes its inputs
# in the order of their names: in a chain the first is the leaf and the last is the child of the root. One more input is
# a spare.
RECEIVERS = (1, 2, 3, 4, 5, 6)
INPUTS = (1, 2, 3, 4, 5, 6)
FOLDED = 5
PLACES: tuple[Place, ...] = (
    Place("broadcast", "source", CALLER, may_be_lost=True),
    Place("broadcast", "first relay", 1),
    Place("broadcast", "last receiver", 6),
    Place("broadcast", "owner", OWNER),
    Place("reduce", "leaf", 1),
    Place("reduce", "interior", 3),
    Place("reduce", "root child", 5),
    Place("reduce", "spare", 6),
    Place("reduce", "owner", OWNER),
    Place("allreduce", "member", 3),
)

# Host and fault of an operation without a fault.
NOBODY = "no host"
NOTHING = "none"
PLACES += tuple(Place(op, NOBODY, CALLER) for op in ("broadcast", "reduce", "allreduce"))

FAULTS = {
    NOTHING: "none: no node may restart anything",
    "kill": "SIGKILL",
    "freeze": "SIGSTOP, then SIGCONT",
    "cut": "cable cut",
    "blink": f"cable cut for {BLINK_S:g} s",
    "mute": "outgoing packets dropped",
}

PROGRESS = (0.0, 0.5, 0.95)


@dataclass(frozen=True)
class Cell:
    """One fault at one moment of one operation."""

    place: Place
    fault: str
    progress: float

    def __str__(self) -> str:
        return f"{self.place.op}, {self.place.role}, {self.fault} at {self.progress:.0%}"


def cells(ops: list[str], faults: list[str]) -> list[Cell]:
    """Lists all cells of the given operations and faults, in the order of the table."""
    return [
        Cell(place, fault, progress)
        for place in PLACES
        for fault in faults
        for progress in PROGRESS
        if place.op in ops and (place.role == NOBODY) == (fault == NOTHING)
    ]


def limit_s(cell: Cell, detection_s: float, wire_s: float, *, is_lost: bool) -> float:
    """Returns the time that a cell may add to its operation, in seconds.

    Args:
        cell: the cell.
        detection_s: the detection timeout.
        wire_s: transfer time of one object.
        is_lost: whether the object was lost. Then the result is the time from the fault to the last error.
    """
    # The end of a process is detected at once, because its sockets close.
    detection = 0.05 if cell.fault == "kill" else detection_s
    if is_lost:
        return detection + 1.0
    if cell.fault == NOTHING:
        return 0.3
    # A reduce may have to start over.
    return detection + {"broadcast": 0.3, "reduce": wire_s + 0.5, "allreduce": 2 * wire_s + 0.5}[cell.place.op]
