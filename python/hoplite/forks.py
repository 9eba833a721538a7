"""What a fork leaves in order: the child's inherited views stay valid, and it does not keep its parent's sockets open.

The child has the memory of its parent but none of its threads, so it can use nothing of what runs there. Its clients
attach anew by themselves when they are first used.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from hoplite import _native

if TYPE_CHECKING:
    from hoplite._attachment import Attachment

_clients: weakref.WeakSet[Attachment] = weakref.WeakSet()

# One fork at a time has what is below; another thread's waits for it.
_turn = threading.Lock()
# What the child has to close, and what it keeps: pipes by which its nodes know how long views are needed.
_sockets: list[tuple[int, int]] = []
_lifelines: list[int] = []


def register(client: Attachment) -> None:
    """Remembers a client for as long as it lives."""
    _clients.add(client)


def _before() -> None:
    _turn.acquire()
    _lifelines.clear()
    try:
        # What is read now stays pinned until no process has these: not the child, nor a child of its.
        _lifelines[:] = _native.hold_all()
    finally:
        _sockets[:] = _native.before_fork()


def _after_in_parent() -> None:
    _native.after_fork()
    lifelines = _lifelines[:]
    _turn.release()
    for lifeline in lifelines:
        os.close(lifeline)


def _after_in_child() -> None:
    global _turn
    _native.after_fork()
    _turn = threading.Lock()
    for client in list(_clients):
        client._forked = True
    # The lifelines stay open until this process ends. Sockets are covered, not closed: their numbers belong to objects
    # that may still close them.
    if not _sockets:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor, inode in _sockets:
        try:
            if os.fstat(descriptor).st_ino == inode:
                os.dup2(null, descriptor, inheritable=False)
        except OSError:
            # Closed before the fork.
            continue
    os.close(null)


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
