"""Fork handlers: the child's inherited views stay valid, and the child does not keep its parent's sockets open.

The child has the memory of its parent but none of its threads, so it can't use the parent's nodes and attachments. Its
clients attach again on first use.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

from hoplite import _native

if TYPE_CHECKING:
    from hoplite._attachment import Attachment

_clients: weakref.WeakSet[Attachment] = weakref.WeakSet()


def register(client: Attachment) -> None:
    """Registers a client, without keeping it alive."""
    _clients.add(client)


def _after_in_child() -> None:
    sockets = _native.after_fork_in_child()
    for client in list(_clients):
        client._forked = True
    # Replaced by /dev/null, not closed: objects own their descriptor numbers and may still close them.
    if not sockets:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor, inode in sockets:
        try:
            if os.fstat(descriptor).st_ino == inode:
                os.dup2(null, descriptor, inheritable=False)
        except OSError:
            # Closed before the fork.
            continue
    os.close(null)


os.register_at_fork(
    before=_native.before_fork, after_in_parent=_native.after_fork_in_parent, after_in_child=_after_in_child
)
