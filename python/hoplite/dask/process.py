"""What one process holds of each installation: the client of its host's node, which all its workers and tasks share.

Knows nothing of Dask.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import hoplite
from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from collections.abc import Callable

# Where `hoplite.init()` in a task looks.
VARIABLE = "HOPLITE_ADDRESS"


class Member:
    """This process's part in an installation.

    Args:
        installation: its id.
        socket: path of the socket of the host's node.

    Attributes:
        client: of the host's node; it attaches to the next node that serves the socket.
        workers: the addresses of the workers of this process that are in it.
    """

    def __init__(self, installation: str, socket: str) -> None:
        self.installation = installation
        self.socket = socket
        self.client = hoplite.connect(f"unix:{socket}", reconnect=True)
        self.workers: set[str] = set()


_members: dict[str, Member] = {}
_lock = threading.Lock()
# By installation and worker, what has others send bytes to the worker for a while.
_steps_back: dict[tuple[str, str], Callable[[], None]] = {}
# What the variable said before the first installation.
_before: list[str | None] = []


def reads_refs(installation: str, worker: str, step_back: Callable[[], None] | None) -> None:
    """Takes note of how a worker has others send bytes to it for a while; None forgets it."""
    with _lock:
        _steps_back.pop((installation, worker), None)
        if step_back is not None:
            _steps_back[installation, worker] = step_back


def step_back(installation: str) -> None:
    """Has others send bytes to the workers of this process, for a while: a ref could not be read here."""
    with _lock:
        steps = [step for (of, _), step in _steps_back.items() if of == installation]
    for step in steps:
        step()


def enter(installation: str, socket: str, worker: str) -> None:
    """Takes a worker of this process into an installation, whose node serves the socket.

    Raises:
        ConnectError: no node serves it.
    """
    with _lock:
        member = _members.get(installation)
        if member is None:
            member = _members[installation] = Member(installation, socket)
            if not _before:
                _before.append(os.environ.get(VARIABLE))
            os.environ[VARIABLE] = f"unix:{socket}"
        member.workers.add(worker)


def leave(installation: str, worker: str) -> None:
    """Takes a worker out; the last one closes the client. One that is not in it is fine."""
    with _lock:
        member = _members.get(installation)
        if member is None:
            return
        member.workers.discard(worker)
        if member.workers:
            return
        del _members[installation]
        member.client.close()
        if not _members and _before:
            said = _before.pop()
            os.environ.pop(VARIABLE, None)
            if said is not None:
                os.environ[VARIABLE] = said


def member_of(installation: str) -> Member:
    """This process's part in an installation.

    Raises:
        HopliteError: no worker of this process has a node.
    """
    member = _members.get(installation)
    if member is None:
        raise HopliteError(
            f"no worker of this process ({os.getpid()}) has a Hoplite node: hoplite.dask was uninstalled, or its node "
            "could not be started here, and then the log of the worker says why"
        )
    return member
