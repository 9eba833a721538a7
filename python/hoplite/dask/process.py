"""The state of each installation in this process: one client of the host's node, shared by all workers and tasks.

The module does not depend on Dask.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import hoplite
from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from collections.abc import Callable

# The variable by which `hoplite.init()` in a task finds the node.
VARIABLE = "HOPLITE_ADDRESS"


class Member:
    """The membership of this process in an installation.

    Args:
        installation: the id of the installation.
        socket: path of the socket of the host's node.

    Attributes:
        client: a client of the host's node. It reconnects to a new node at the same socket.
        workers: the addresses of this process's workers in the installation.
    """

    def __init__(self, installation: str, socket: str) -> None:
        self.installation = installation
        self.socket = socket
        self.client = hoplite.connect(f"unix:{socket}", reconnect=True)
        self.workers: set[str] = set()


_members: dict[str, Member] = {}
_lock = threading.Lock()
# Functions that request bytes instead of refs for a worker for a while, by installation and worker.
_steps_back: dict[tuple[str, str], Callable[[], None]] = {}
# The value of the variable before the first installation.
_before: list[str | None] = []


def reads_refs(installation: str, worker: str, step_back: Callable[[], None] | None) -> None:
    """Sets the function that requests bytes instead of refs for a worker for a while; None removes it."""
    with _lock:
        _steps_back.pop((installation, worker), None)
        if step_back is not None:
            _steps_back[installation, worker] = step_back


def step_back(installation: str) -> None:
    """Requests bytes for this process's workers for a while, because a ref could not be resolved here."""
    with _lock:
        steps = [step for (of, _), step in _steps_back.items() if of == installation]
    for step in steps:
        step()


def enter(installation: str, socket: str, worker: str) -> None:
    """Adds a worker of this process to an installation, whose node serves the socket.

    Raises:
        ConnectError: no node serves the socket.
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
    """Removes a worker. The last one closes the client. An unknown worker is ignored."""
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
    """Returns the membership of this process in an installation.

    Raises:
        HopliteError: no worker of this process has a node.
    """
    member = _members.get(installation)
    if member is None:
        raise HopliteError(
            f"no worker of this process ({os.getpid()}) has a Hoplite node: hoplite.dask was uninstalled, or the node "
            "could not start here. Check the log of the worker"
        )
    return member
