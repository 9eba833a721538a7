"""Fork handlers: the child's inherited views stay valid, and the child does not keep its parent's sockets open.

The child has the memory of its parent but none of its threads, so it can't use the parent's nodes and attachments. Its
clients attach again on first use.
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

# Serializes forks of several threads, which share the lists below.
_turn = threading.Lock()
# Descriptors that the child closes, and pipes that it keeps: an open pipe marks its inherited views as in use.
_sockets: list[tuple[int, int]] = []
_lifelines: list[int] = []


def register(client: Attachment) -> None:
    """Registers a client, without keeping it alive."""
    _clients.add(client)


def _before() -> None:
    _turn.acquire()
    _lifelines.clear()
    try:
        # Memory that is read now stays pinned until all processes, including children of the child, close these pipes.
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
    # The lifelines stay open until this process ends. Sockets are replaced by /dev/null, not closed: objects own their
    # descriptor numbers and may still close them.
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
