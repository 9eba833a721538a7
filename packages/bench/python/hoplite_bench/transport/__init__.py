"""Which transport moved the data of an operation, according to the kernel; not what a library reports or promises.

    TCP, loopback TCP   bytes that passed the interfaces of the processes' network namespaces, and their own sockets
    CMA                 bytes that process_vm_readv and process_vm_writev returned, counted by strace
    shared memory       the rest of the payload, if at least two of the processes map and used the same memory

Only a tenth of the payload counts as use, because control messages and other programs move bytes too. A byte that is
moved by something else is "unknown". Processes of all containers of this machine are visible to root here.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument
from hoplite_bench import processes
from hoplite_bench.agent import GROUP_VARIABLE
from hoplite_bench.transport import memory, network
from hoplite_bench.transport.calls import Calls
from hoplite_bench.transport.judgement import (
    CMA,
    LOOPBACK,
    SHARED_MEMORY,
    TCP,
    UNKNOWN,
    Transport,
    advice,
    judged,
    payload,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "CMA",
    "LOOPBACK",
    "SHARED_MEMORY",
    "TCP",
    "UNKNOWN",
    "Transport",
    "advice",
    "judged",
    "payload",
    "processes_of",
    "used",
]

# Below this, other programs and control messages move as many bytes.
PAYLOAD_MIN = 1 << 20


def processes_of(group: str) -> list[int]:
    """The ids of all living processes of a group on this machine, in containers and outside.

    Args:
        group: the id of the group, `Group.id`.
    """
    mark = f"{GROUP_VARIABLE}={group}".encode()
    found = []
    for process in processes.all_ids():
        with contextlib.suppress(OSError):
            if mark in processes.read(f"/proc/{process}/environ").split(b"\0"):
                found.append(process)
    return sorted(found)


def used(ranks: Sequence[int], payload_bytes: int, run: Callable[[], object]) -> Transport:
    """Runs an operation once, and determines how its data moved; strace makes it slow.

    Args:
        ranks: ids of the processes, as this process sees them; they run, and are not frozen.
        payload_bytes: bytes that must get from one of them to another, at least 1 MiB.
        run: the operation; returns when it has ended.

    Raises:
        InvalidArgument: the payload is too small.
    """
    if payload_bytes < PAYLOAD_MIN:
        raise InvalidArgument(f"a payload of {payload_bytes} B is too small to be recognized: use at least 1 MiB")
    shared = memory.shared_by(ranks)
    memory.clear(ranks)
    with Calls(ranks) as calls:
        began = network.sockets(ranks)
        before = network.interfaces(ranks)
        run()
        after = network.interfaces(ranks)
        ended = network.sockets(ranks)
    shared |= memory.shared_by(ranks)
    evidence = {"payload_bytes": payload_bytes} | {name: after[name] - before[name] for name in before}
    evidence |= network.received(began, ended)
    evidence |= {"cma_bytes": calls.bytes, "cma_calls": calls.calls, "cma_refused": calls.refused}
    evidence |= {"shared_segments": len(shared), "shared_touched_bytes": memory.touched(ranks, shared)}
    return judged(evidence, calls.reason)
