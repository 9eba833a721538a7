"""What a fork leaves in order: the child's inherited views stay valid, and it does not keep its parent's sockets open.

The child has the memory of its parent but none of its threads, so it can use nothing of what runs there. Its clients
attach anew by themselves when they are first used.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

from hoplite import _native

if TYPE_CHECKING:
    from hoplite.client import Client

_clients: weakref.WeakSet[Client] = weakref.WeakSet()

# Between the hooks of one fork, which holds the interpreter: what the child has to close, and the writing end of the
# pipe that says how long views are needed.
_sockets: list[tuple[int, int]] = []
_lifeline: int | None = None


def register(client: Client) -> None:
    """Remembers a client for as long as it lives."""
    _clients.add(client)


def _before() -> None:
    global _lifeline
    _sockets[:] = _native.before_fork()
    _lifeline = None
    clients = list(_clients)
    if not clients:
        return
    read, write = os.pipe()
    try:
        # What is read now stays pinned until nobody has the writing end: not the child, nor a child of its.
        # Each of them has to hold what it reads.
        held = [client._native.hold(read) for client in clients]
        if any(held):
            _lifeline, write = write, -1
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)


def _after_in_parent() -> None:
    _native.after_fork()
    if _lifeline is not None:
        os.close(_lifeline)


def _after_in_child() -> None:
    _native.after_fork()
    # The lifeline stays open until this process ends. Sockets are covered, not closed: their numbers belong to objects
    # that may still close them.
    if _sockets:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor, inode in _sockets:
            try:
                if os.fstat(descriptor).st_ino == inode:
                    os.dup2(null, descriptor, inheritable=False)
            except OSError:
                # Closed before the fork.
                continue
        os.close(null)
    for client in list(_clients):
        client._forked = True


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
