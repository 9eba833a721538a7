"""Ranks of a process group for tests: threads of this process, or processes."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import torch_forks

if TYPE_CHECKING:
    from collections.abc import Callable


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


def errors_in_threads(size: int, timeout_s: float, call: Callable[[Any, int], None]) -> list[str]:
    """Runs a function that fails on each rank of a group; returns the errors in order.

    No rank leaves before all have failed. No error may be that of the timeout.
    """
    import pytest
    import torch.distributed as dist

    over = threading.Barrier(size)

    def body(group: Any, rank: int) -> str:
        try:
            with pytest.raises(dist.DistBackendError) as caught:
                call(group, rank)
            return str(caught.value)
        finally:
            over.wait()

    found: list[str] = in_threads(size, timeout_s, body)
    assert not [text for text in found if "timeout after" in text]
    return found


def options(kind: str, **values: Any) -> Any:
    """Returns options of torch for an operation that is over on return."""
    from torch._C import _distributed_c10d as c10d

    made = getattr(c10d, f"{kind}Options")()
    made.asyncOp = False
    for name, value in values.items():
        setattr(made, name, value)
    return made


def free_port() -> int:
    """Returns a TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def in_processes(size: int, port: int, program: str) -> list[tuple[int, str]]:
    """Runs a program as each rank of a job on this host; returns the exit status and the output of each.

    Args:
        size: number of processes.
        port: port of the store.
        program: Python code; RANK and WORLD_SIZE are in its environment, as torchrun sets them.
    """
    job = {name: value for name, value in os.environ.items() if not name.startswith("HOPLITE_")}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    return torch_forks.run(program, [job | {"RANK": str(rank)} for rank in range(size)])
