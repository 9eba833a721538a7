"""Idempotent puts for tasks that Ray retries: the object of an earlier attempt counts if its bytes still exist."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hoplite import NameTaken, ObjectDeleted, ObjectLost, Timeout

if TYPE_CHECKING:
    from hoplite import Client, Ref

# How long to wait for the bytes of an earlier attempt before the next put of the name: initially, and at most.
PATIENCE_S = 1.0
PATIENCE_MAX_S = 60.0


def put_again(hp: Client, value: object, name: str, *, replicas: int = 1, timeout: float | None = None) -> Ref:
    """Puts a value, unless a complete object of that name exists.

    The node of an earlier attempt may have failed a moment ago, while the name still seems to be taken. The existing
    object therefore counts only once this host has a copy of it.

    Args:
        hp: the client that puts.
        value: the value.
        name: the name of the object.
        replicas: see `Client.put`.
        timeout: seconds to wait; see `Client.put`.

    Raises:
        Timeout: the object of an earlier attempt was neither complete nor lost in time.
        HopliteError: see `Client.put`.
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
