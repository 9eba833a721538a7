"""Lifetimes of the Hoplite objects behind the ObjectRefs that this process owns.

Ray counts the references to an ObjectRef in its owner process, including those of tasks, actors and other objects. It
calls back when the last one is gone. A thread then deletes the object. The thread also checks the inputs of reduces
that have no result yet. Each object has a lease of this process, and ends with the process at the latest; Ray reports
its ObjectRef as lost then too. The thread makes no calls of Ray once Ray shuts down. The module implements neither puts
nor reduces.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import ray

from hoplite import HopliteError
from hoplite.ray._versions import before_shutdown, when_unreferenced
from hoplite.ray.place import keeper

if TYPE_CHECKING:
    from hoplite import Client, Lease

logger = logging.getLogger("hoplite.ray")

# Interval between checks of the inputs of pending reduces: at least EVERY_S, and SHARE times the duration of a check.
EVERY_S = 0.2
SHARE = 10

DELETE_S = 10.0


class Pending(Protocol):
    """The inputs of a pending reduce: one that has no result yet."""

    def refs(self) -> list[Any]:
        """Returns the ObjectRefs of tasks and methods that Ray has not reported as finished."""

    def over(self, ref: Any, kept: Kept) -> None:
        """Records that an ObjectRef is ready or has failed."""

    def fails(self, kept: Kept) -> bool:
        """Ends the reduce if too few inputs can still arrive; returns whether it did."""

    def release(self) -> None:
        """Releases all inputs: the reduce has ended."""


@dataclass
class Kept:
    """A Hoplite object behind an ObjectRef.

    Attributes:
        client: the client of this process.
        text: the ref of the object.
        lease: the lease of this process.
        is_named: whether the user chose the name. A retry of the task may have put a named object again, so it ends
            with its last lease. An object without a name is deleted at once.
        wait: for the result of a reduce, the name of the keeper's wait; empty for objects from `put`.
        is_over: for a reduce, an ObjectRef that is ready when the keeper's wait has ended.
        pending: for a reduce without a result, its inputs that come from Ray.
        inputs: for a reduce, the refs of its inputs in the caller's order.
        failed: the inputs that Ray could not deliver.
    """

    client: Client
    text: str
    lease: Lease
    is_named: bool = False
    wait: str = ""
    is_over: Any = None
    pending: Pending | None = None
    inputs: list[str] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)


class Lifetimes:
    """Tracks the objects of this process whose ObjectRefs Ray counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, Kept] = {}
        # The subset of pending reduces.
        self._pending: dict[str, Kept] = {}
        # Ids of ObjectRefs without references. An empty id wakes the thread. Any thread, and Ray, may call its `put`.
        self._gone: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # Held by the thread during each call of Ray.
        self._calling = threading.Lock()
        self._is_connected = False
        self._next_look = 0.0

    def keep(self, anchor: Any, kept: Kept) -> None:
        """Ends an object when its ObjectRef has no references any more.

        Args:
            anchor: an ObjectRef that this process has just created and still refers to.
            kept: the object.

        Raises:
            UnknownRay: this Ray does not report the end of references.
        """
        with self._lock:
            if self._thread is None:
                before_shutdown(self._stop)
                self._thread = threading.Thread(target=self._run, name="hoplite-lifetimes", daemon=True)
                self._thread.start()
            self._is_connected = True
            self._kept[anchor.hex()] = kept
            if kept.pending is not None:
                self._pending[anchor.hex()] = kept
        when_unreferenced(anchor, self._gone.put)
        if kept.pending is not None:
            self._gone.put("")

    def of(self, anchor: Any) -> Kept | None:
        """Returns the object behind an ObjectRef, if this process created it."""
        with self._lock:
            return self._kept.get(anchor.hex())

    def _stop(self) -> None:
        """Releases all objects before Ray shuts down, because the ObjectRefs of this process end."""
        with self._calling:
            self._is_connected = False
        with self._lock:
            kept = list(self._kept.values())
            self._kept, self._pending = {}, {}
        for each in kept:
            each.lease.release()

    def _run(self) -> None:
        while True:
            gone = self._next()
            try:
                self._end(gone)
                began = time.monotonic()
                if self._pending and began >= self._next_look:
                    self._next_look = began + EVERY_S
                    self._look()
                    self._next_look = max(self._next_look, began + SHARE * (time.monotonic() - began))
            except Exception:
                # Errors of many kinds are possible while Ray's own processes end.
                logger.debug("could not check the lifetimes of objects", exc_info=True)

    def _next(self) -> list[str]:
        """Waits for ObjectRefs without references, or for the next check of pending reduces."""
        gone = []
        with contextlib.suppress(queue.Empty):
            pause = max(0.0, self._next_look - time.monotonic()) if self._pending else None
            gone.append(self._gone.get(timeout=pause))
            # Delete all of them in one call.
            while True:
                gone.append(self._gone.get_nowait())
        return gone

    def _end(self, gone: list[str]) -> None:
        """Deletes the objects behind ObjectRefs, or releases their leases if they have names."""
        with self._lock:
            ended = {anchor: self._kept.pop(anchor) for anchor in gone if anchor in self._kept}
        with self._calling:
            waits = {} if not self._is_connected else _waiting({a: kept for a, kept in ended.items() if kept.wait})
            for kept in waits.values():
                # No process waits any more. A named object ends with its lease, and every object with its node.
                with contextlib.suppress(HopliteError):
                    keeper().give_up.remote(kept.text, kept.wait, None, delete=not kept.is_named)
        unnamed = [kept for anchor, kept in ended.items() if not kept.is_named and anchor not in waits]
        for hp in {id(kept.client): kept.client for kept in unnamed}.values():
            try:
                hp.delete([kept.text for kept in unnamed if kept.client is hp], timeout=DELETE_S)
            except HopliteError as error:
                # The node has ended, and its objects with it, or this process ends.
                logger.debug("could not delete objects without references: %s", error)
        for kept in ended.values():
            kept.lease.release()

    def _look(self) -> None:
        """Checks the inputs of pending reduces, whether or not a process still wants their results."""
        with self._lock:
            pending = dict(self._pending)
        given = {ref: kept for kept in pending.values() for ref in _inputs(kept).refs()}
        with self._calling:
            if not self._is_connected:
                return
            for ref in _ready(list(given)):
                _inputs(given[ref]).over(ref, given[ref])
            waits = _waiting(pending)
        for anchor, kept in pending.items():
            try:
                with self._calling:
                    if not self._is_connected:
                        return
                    if anchor not in waits or (kept.failed and _inputs(kept).fails(kept)):
                        _inputs(kept).release()
                        kept.pending = None
            except (HopliteError, ray.exceptions.RayError) as error:
                logger.debug("could not check the inputs of reduce %s, will retry: %s", kept.text, error)
            if kept.pending is None:
                with self._lock:
                    self._pending.pop(anchor, None)


def _inputs(kept: Kept) -> Pending:
    assert kept.pending is not None
    return kept.pending


def _waiting(reduces: dict[str, Kept]) -> dict[str, Kept]:
    """Returns the reduces whose waits in the keeper have not ended."""
    over = _ready([kept.is_over for kept in reduces.values()])
    return {anchor: kept for anchor, kept in reduces.items() if kept.is_over not in over}


def _ready(refs: list[Any]) -> set[Any]:
    return set(ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[0]) if refs else set()


lifetimes = Lifetimes()
