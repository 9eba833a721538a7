"""Which ObjectRefs of this process are gone, as Ray counts them, and the end of the Hoplite objects behind them.

The process that made an ObjectRef counts the references to it, those of all tasks, actors and objects that have been
given it too, and leaves it out of its counts when none is left. A thread looks for that, as long as there is an
ObjectRef to look for. Each object has a lease of this process, and ends with it at the latest: Ray takes the
ObjectRef for lost then too. Knows neither puts nor reduces.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray

from hoplite import HopliteError
from hoplite.ray._versions import unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite import Client, Lease

logger = logging.getLogger("hoplite.ray")

# Between two looks; and how much longer than a look takes, where a process has very many references.
EVERY_S = 0.2
SHARE = 20

DELETE_S = 10.0


@dataclass
class Kept:
    """A Hoplite object behind an ObjectRef.

    Attributes:
        client: of this process.
        text: the object.
        lease: of this process.
        is_named: whether the user gave it a name, under which another try of the task may have put it again: then it
            goes with its last lease. One without is deleted at once.
        pending: what is to be done until the object is complete; returns whether there is more to wait for.
        inputs: of a reduce, the texts of what it folds, in the order in which the caller gave them.
        failed: those of its inputs that Ray could not give.
        failure: of the last of them, if any.
        is_ended: whether its ObjectRef is gone.
    """

    client: Client
    text: str
    lease: Lease
    is_named: bool = False
    pending: Callable[[Kept], bool] | None = None
    inputs: list[str] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    failure: Exception | None = None
    is_ended: bool = False

    def look(self) -> None:
        """Does what is pending."""
        if self.pending is None:
            return
        try:
            if not self.pending(self):
                self.pending = None
        except (HopliteError, ray.exceptions.RayError) as error:
            # The node is gone, and with it what was to come.
            logger.debug("object %s is not waited for any more: %s", self.text, error)
            self.pending = None

    def end(self) -> None:
        """Deletes the object, or lets go of it."""
        self.is_ended = True
        try:
            if not self.is_named:
                self.client.delete(self.text, timeout=DELETE_S)
        except HopliteError as error:
            # Its node is gone, and with it the object; or the process ends.
            logger.debug("object %s was not deleted: %s", self.text, error)
        self.lease.release()


def referred() -> set[str]:
    """The ids of all ObjectRefs that this process has, or owns and some process has.

    Raises:
        UnknownRay: this Ray does not tell.
    """
    core = ray._private.worker.global_worker.core_worker
    if not hasattr(core, "get_all_reference_counts"):
        raise unknown("does not tell its reference counts")
    return {key.decode() if isinstance(key, bytes) else key for key in core.get_all_reference_counts()}


class Lifetimes:
    """The objects of this process whose ObjectRefs Ray counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, Kept] = {}
        self._thread: threading.Thread | None = None

    def keep(self, anchor: Any, kept: Kept) -> None:
        """Ends an object when its ObjectRef is gone.

        Args:
            anchor: the ObjectRef, which this process has made just now and still has.
            kept: the object.

        Raises:
            UnknownRay: this Ray does not tell when that is.
        """
        if self._thread is None:
            referred()
        with self._lock:
            self._kept[anchor.hex()] = kept
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hoplite-lifetimes", daemon=True)
                self._thread.start()

    def of(self, anchor: Any) -> Kept | None:
        """The object behind an ObjectRef, if this process has made it."""
        with self._lock:
            return self._kept.get(anchor.hex())

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                self._look()
            except Exception:
                # Of many kinds, when Ray shuts down under this thread.
                logger.debug("the references could not be counted", exc_info=True)
            with self._lock:
                if not self._kept:
                    self._thread = None
                    return
            time.sleep(max(EVERY_S, SHARE * (time.monotonic() - began)))

    def _look(self) -> None:
        """Ends what is gone."""
        with self._lock:
            known = dict(self._kept)
        if not ray.is_initialized():
            # All ObjectRefs of that cluster are gone.
            for anchor, kept in known.items():
                kept.lease.release()
                self._drop(anchor)
            return
        living = referred()
        for anchor, kept in known.items():
            kept.look()
            if anchor not in living and not kept.is_ended:
                kept.end()
            # A reduce whose result no process wants may still need its inputs.
            if kept.is_ended and kept.pending is None:
                self._drop(anchor)

    def _drop(self, anchor: str) -> None:
        with self._lock:
            self._kept.pop(anchor, None)


lifetimes = Lifetimes()
