"""Which transports explain what the kernel counted during an operation, and what would make it faster; pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARED_MEMORY, CMA, TCP, LOOPBACK, UNKNOWN = "shared memory", "CMA", "TCP", "loopback TCP", "unknown"
# A transport counts as used if it carried this part of the payload.
USED_SHARE = 10
# Advice for containers that share nothing.
SHARE = (
    "One /dev/shm (--ipc=host, or one volume at /dev/shm), one process-id namespace (--pid=host) and one host name "
    "(--uts=host) for all containers may let the library use shared memory or CMA, as in other set-ups. This was not "
    "measured."
)
ONE_NODE = (
    "One node per host may let all containers use its shared memory, as in other set-ups: mount the socket of the node "
    "and the /dev/shm of the host into each container. This was not measured."
)


@dataclasses.dataclass(frozen=True)
class Transport:
    """The transports of one operation.

    Attributes:
        names: those that moved at least a tenth of the payload: SHARED_MEMORY, CMA, TCP, LOOPBACK; UNKNOWN if a part
            of the payload is not explained.
        evidence: what the kernel counted during the operation: `payload_bytes`, `interface_bytes`, `loopback_bytes`,
            `tcp_segments`, `socket_interface_bytes`, `socket_loopback_bytes`, `cma_bytes`, `cma_calls`, `cma_refused`,
            `shared_segments`, `shared_touched_bytes`. -1 is unknown.
        reason: why something is unknown; otherwise empty.
    """

    names: tuple[str, ...]
    evidence: dict[str, int]
    reason: str = ""


def payload(op: str, ranks: int, nbytes: int) -> int:
    """The bytes that must at least get from one rank to another, in total.

    Args:
        op: an operation of the bench.
        ranks: number of ranks.
        nbytes: size of each rank's array.

    Raises:
        InvalidArgument: an unknown operation.
    """
    others = ranks - 1
    arrays = {"rtt": 2, "allgather": ranks * others, **dict.fromkeys(("broadcast", "gather", "reduce"), others)}
    # An allreduce is a reduce and a broadcast; a step of training is one of both kinds.
    arrays |= dict.fromkeys(("allreduce", "ddp", "train-ps", "train-allreduce"), 2 * others)
    if op not in arrays:
        raise InvalidArgument(f"no payload is known for the operation {op!r}: choose from {', '.join(arrays)}")
    return arrays[op] * nbytes


def judged(evidence: dict[str, int], reason: str = "") -> Transport:
    """Names the transports that explain the evidence; pure."""
    least = evidence["payload_bytes"] // USED_SHARE
    carried = {CMA: max(0, evidence["cma_bytes"])}
    for name, kind in ((TCP, "interface"), (LOOPBACK, "loopback")):
        counts = evidence[f"{kind}_bytes"], evidence[f"socket_{kind}_bytes"]
        # Interfaces of this machine count other programs too; sockets are unknown in containers, which have their own.
        carried[name] = min(count for count in counts if count >= 0)
    if evidence["tcp_segments"] == 0:
        carried[TCP] = carried[LOOPBACK] = 0
    names = [name for name, count in carried.items() if count >= least]
    why = ""
    if evidence["payload_bytes"] - sum(carried.values()) >= least:
        touched = evidence["shared_touched_bytes"]
        counted = evidence["cma_bytes"] >= 0
        # A ring in shared memory may be smaller than what passes through it. If calls of CMA were not counted, only
        # much used memory is evidence.
        if touched >= least or (counted and touched > 0 and evidence["shared_segments"] > 0):
            names.insert(0, SHARED_MEMORY)
        if not counted or SHARED_MEMORY not in names:
            names.append(UNKNOWN)
            why = reason or (
                "the kernel does not report the use of shared memory (/proc/PID/smaps)"
                if touched < 0 and evidence["shared_segments"] > 0
                else "neither network interfaces nor shared memory explain the payload"
            )
    return Transport(tuple(names), evidence, why)


def advice(
    container: str,
    transports: Sequence[str],
    *,
    elsewhere: Sequence[str] = (),
    attaches: bool = False,
    gpus: int = 0,
    refused: int = 0,
) -> str:
    """What may make an operation use a faster transport; empty if nothing is known.

    Args:
        container: the container set-up: "bare", "hpc", "single" or "cross".
        transports: names of the transports that it used.
        elsewhere: names of the transports that the same library used in other set-ups.
        attaches: whether processes share memory through the node of their host, to which they attach, as with Hoplite.
        gpus: number of GPUs that hold its data; 0 if it is in main memory.
        refused: calls of CMA that the kernel refused.
    """
    found = []
    fast = {SHARED_MEMORY, CMA}.intersection(transports)
    # Only a library that has such a transport can use what containers share.
    if container == "cross" and not fast and {SHARED_MEMORY, CMA}.intersection(elsewhere):
        found.append(ONE_NODE if attaches else SHARE)
    elif not fast and LOOPBACK in transports:
        found.append("Choose a library with a transport for shared memory: the ranks already share it.")
    if refused and CMA not in transports:
        found.append(
            "Let processes access each other's memory for CMA: run all ranks as one user in one user namespace, or "
            "grant CAP_SYS_PTRACE (--cap-add=SYS_PTRACE)."
        )
    if gpus > 1 and container == "cross":
        found.append(
            "Make all GPUs visible in each container (--gpus all) and share /dev/shm, so that NCCL can connect them "
            "directly."
        )
    return " ".join(found)
