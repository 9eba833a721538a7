"""Ranks of a process group for tests: threads of this process, or processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# Long enough for a torch import on a busy machine.
PROCESS_S = 120.0


def in_threads(size: int, timeout_s: float, body: Callable[[Any, int], Any]) -> list[Any]:
    """Runs a function as each rank of a group, with its process group; returns the results in order.

    The ranks share the client of the process. The first error of a rank is raised.
    """
    import torch.distributed as dist

    from hoplite.torch.backend.membership import Member
    from hoplite.torch.backend.process_group import HopliteProcessGroup

    store = dist.HashStore()
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            member = Member(dist.PrefixStore("test", store), rank, size, timeout_s)
            try:
                results[rank] = body(HopliteProcessGroup(member), rank)
            finally:
                member.leave()
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def free_port() -> int:
    """Returns a TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def in_processes(size: int, port: int, program: str, *, ranks: int | None = None) -> list[tuple[int, str]]:
    """Runs a program as each rank of a job on this host; returns the exit status and the output of each.

    Args:
        size: number of processes.
        port: port of the store.
        program: Python code; RANK and WORLD_SIZE are in its environment, as torchrun sets them.
        ranks: the world size, if it is not `size`.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOPLITE_")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={
                **environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
                "WORLD_SIZE": str(ranks or size),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=PROCESS_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]
