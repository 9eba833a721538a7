"""The Hoplite objects behind the ObjectRefs that this process owns, and their end.

Ray counts the references to an ObjectRef in its owner, those of all tasks, actors and objects that were given it too,
and calls back when none is left. A thread deletes then, and looks after reduces that still wait for inputs. Each object
has a lease of this process, and ends with it at the latest: Ray reports the ObjectRef as lost then too. The thread
stops before Ray does. Knows neither puts nor reduces.
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

# Between two looks at the inputs of reduces that wait; and how much longer than a look takes, where many wait.
EVERY_S = 0.2
SHARE = 10

DELETE_S = 10.0


class Pending(Protocol):
    """The inputs of a reduce that has no result yet."""

    def refs(self) -> list[Any]:
        """The ObjectRefs whose end matters to the reduce."""

    def over(self, ref: Any, kept: Kept) -> None:
        """Takes note of an ObjectRef that Ray has now, or that failed."""

    def fails(self, kept: Kept) -> bool:
        """Ends the reduce if too few inputs can still come."""

    def release(self) -> None:
        """Lets go of all inputs: there is a result, or there will be none."""


@dataclass
class Kept:
    """A Hoplite object behind an ObjectRef.

    Attributes:
        client: of this process.
        text: the object.
        lease: of this process.
        is_named: whether the user gave it a name, under which another try of the task may have put it again: then it
            goes with its last lease. One without is deleted at once.
        wait: of the result of a reduce, names the wait of the keeper; empty of what was put.
        is_over: of a reduce, an ObjectRef that is ready when the keeper does not wait any more.
        pending: of a reduce that has no result yet, if Ray has inputs of it.
        inputs: of a reduce, the texts of what it folds, in the order in which the caller gave them.
        failed: those of its inputs that Ray could not give.
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
    """The objects of this process whose ObjectRefs Ray counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, Kept] = {}
        # Those of them that are reduces without a result.
        self._pending: dict[str, Kept] = {}
        # Ids of ObjectRefs that are gone; an empty one wakes the thread. Its `put` may be called from anywhere.
        self._gone: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # Held in each call of Ray by the thread.
        self._calling = threading.Lock()
        self._is_connected = False
        self._next_look = 0.0

    def keep(self, anchor: Any, kept: Kept) -> None:
        """Ends an object when its ObjectRef is gone.

        Args:
            anchor: the ObjectRef, which this process has made just now and still has.
            kept: the object.

        Raises:
            UnknownRay: this Ray does not tell when that is.
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
        """The object behind an ObjectRef, if this process has made it."""
        with self._lock:
            return self._kept.get(anchor.hex())

    def _stop(self) -> None:
        """Ray is about to shut down: all ObjectRefs of this process go with it."""
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
                # Of many kinds, where Ray's own processes end under this thread.
                logger.debug("objects were not looked after", exc_info=True)

    def _next(self) -> list[str]:
        """Waits for ObjectRefs that are gone, or until it is time to look at what is pending."""
        gone = []
        with contextlib.suppress(queue.Empty):
            pause = max(0.0, self._next_look - time.monotonic()) if self._pending else None
            gone.append(self._gone.get(timeout=pause))
            # All that are gone by now are deleted by one call.
            while True:
                gone.append(self._gone.get_nowait())
        return gone

    def _end(self, gone: list[str]) -> None:
        """Deletes the objects behind ObjectRefs, or lets go of them."""
        with self._lock:
            ended = {anchor: self._kept.pop(anchor) for anchor in gone if anchor in self._kept}
        with self._calling:
            waits = {} if not self._is_connected else _waiting({a: kept for a, kept in ended.items() if kept.wait})
            for kept in waits.values():
                # Nobody waits any more. What has a name ends with its lease; all ends with its node.
                with contextlib.suppress(HopliteError):
                    keeper().give_up.remote(kept.text, kept.wait, None, delete=not kept.is_named)
        unnamed = [kept for anchor, kept in ended.items() if not kept.is_named and anchor not in waits]
        for hp in {id(kept.client): kept.client for kept in unnamed}.values():
            try:
                hp.delete([kept.text for kept in unnamed if kept.client is hp], timeout=DELETE_S)
            except HopliteError as error:
                # Its node is gone, and with it the objects; or the process ends.
                logger.debug("objects were not deleted: %s", error)
        for kept in ended.values():
            kept.lease.release()

    def _look(self) -> None:
        """Looks at the inputs of reduces that have no result; that no process wants it any more changes nothing."""
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
                logger.debug("reduce %s is looked at again: %s", kept.text, error)
            if kept.pending is None:
                with self._lock:
                    self._pending.pop(anchor, None)


def _inputs(kept: Kept) -> Pending:
    assert kept.pending is not None
    return kept.pending


def _waiting(reduces: dict[str, Kept]) -> dict[str, Kept]:
    """Those of some reduces for whose results the keeper waits, as far as is known here."""
    over = _ready([kept.is_over for kept in reduces.values()])
    return {anchor: kept for anchor, kept in reduces.items() if kept.is_over not in over}


def _ready(refs: list[Any]) -> set[Any]:
    return set(ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[0]) if refs else set()


lifetimes = Lifetimes()
