"""The cells of the matrix: which host is broken how and when, in which operation; what may come of it.

Pure: it knows no lab.
"""

from __future__ import annotations

from dataclasses import dataclass

# Elements of an object, and its bytes.
COUNT = 8 * 2**20
NBYTES = COUNT * 8

# Who does what in every cell: a caller, or the source of a broadcast; those between; and one that only owns the names,
# as long as it lives.
CALLER = 0
OWNER = 7
HOSTS = 8

# Shorter than detection: TCP alone gets over it, once its next retransmission is due.
BLINK_S = 1.5


@dataclass(frozen=True)
class Place:
    """Whom a fault hits, in which operation.

    Attributes:
        op: "broadcast", "reduce" or "allreduce".
        role: what the host does there.
        host: its number.
        may_be_lost: whether what it holds is nowhere else, so that the others may be told of its loss.
    """

    op: str
    role: str
    host: int
    may_be_lost: bool = False


# Receivers ask one after the other, and so feed each other in this order. Of a reduce the inputs are taken in the order
# of their names: in a chain the first is the leaf, the last the child of the root; one more is a spare.
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

# Of an operation that nothing is done to: who is broken, and how.
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
    """All cells of some operations and faults, in the order of the table."""
    return [
        Cell(place, fault, progress)
        for place in PLACES
        for fault in faults
        for progress in PROGRESS
        if place.op in ops and (place.role == NOBODY) == (fault == NOTHING)
    ]


def limit_s(cell: Cell, detection_s: float, wire_s: float, *, is_lost: bool) -> float:
    """What a cell may add to the time of its operation, in seconds.

    Args:
        cell: the cell.
        detection_s: after how long a silent node counts as dead.
        wire_s: what one object takes on the wire.
        is_lost: whether the object was lost; then it is the time from the fault to the last error.
    """
    # A process that dies is known at once by its sockets.
    detection = 0.05 if cell.fault == "kill" else detection_s
    if is_lost:
        return detection + 1.0
    if cell.fault == NOTHING:
        return 0.3
    # What a sum has to do again: all of it.
    return detection + {"broadcast": 0.3, "reduce": wire_s + 0.5, "allreduce": 2 * wire_s + 0.5}[cell.place.op]
