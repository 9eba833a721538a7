"""Puts under a name as often as Ray tries a task: what an earlier try has put counts, if its bytes are still there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hoplite import NameTaken, ObjectDeleted, ObjectLost, Timeout

if TYPE_CHECKING:
    from hoplite import Client, Ref

# How long the bytes of an earlier try are waited for before the name is tried again: at first, and at most.
PATIENCE_S = 1.0
PATIENCE_MAX_S = 60.0


def put_again(hp: Client, value: object, name: str, *, replicas: int = 1, timeout: float | None = None) -> Ref:
    """Puts a value, unless an object of that name is complete and can be got.

    An earlier try may have died with its node a moment ago, while the name still seems to be taken. So the object
    counts when a copy of it is on this host.

    Args:
        hp: the client that puts.
        value: what to put.
        name: what to call it.
        replicas: see `Client.put`.
        timeout: seconds to wait; see `Client.put`.

    Raises:
        Timeout: the object of an earlier try was neither complete nor lost in time.
        HopliteError: as `Client.put`.
    """
    until = None if timeout is None else time.monotonic() + timeout
    patience = PATIENCE_S
    while True:
        left = None if until is None else max(0.0, until - time.monotonic())
        try:
            return hp.put(value, name=name, replicas=replicas, timeout=left)
        except NameTaken:
            pass
        left = patience if until is None else min(patience, max(0.0, until - time.monotonic()))
        try:
            hp.get(name, timeout=left)
        except (ObjectLost, ObjectDeleted):
            continue
        except Timeout:
            if until is not None and time.monotonic() >= until:
                raise
            patience = min(2 * patience, PATIENCE_MAX_S)
        else:
            return hp.put(value, name=name, exist_ok=True, timeout=left)
