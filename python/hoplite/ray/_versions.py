"""The supported version of Ray, and wrappers of Ray's private interfaces.

If Ray is missing, the error names the extra to install. If an interface differs, the error names the versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from hoplite.errors import HopliteError, PackageMissing
from hoplite.extras import install

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# The version that `make test-ray` runs with.
KNOWN = "2.60"

try:
    import ray
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise PackageMissing(f"hoplite.ray needs Ray, which is not installed: {install('ray')}") from None


class UnknownRay(HopliteError, ImportError):
    """An interface of the installed Ray differs from the interface that this package supports."""


def unknown(what: str) -> UnknownRay:
    """Returns the error for an interface that differs.

    Args:
        what: the difference, as a clause that follows "which".
    """
    return UnknownRay(
        f"hoplite.ray supports Ray {KNOWN}, but this is Ray {ray.__version__}, which {what}: install a supported "
        f"version, {install('ray')}"
    )


try:
    from ray.experimental import get_object_locations
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise unknown(f"has no {error.name}") from None

__all__ = [
    "KNOWN",
    "NodeAffinitySchedulingStrategy",
    "UnknownRay",
    "before_shutdown",
    "create_transfer_manager",
    "get_object_locations",
    "unknown",
    "unlocked",
    "when_unreferenced",
]


def when_unreferenced(ref: Any, call: Callable[[str], None]) -> None:
    """Calls a function with the id of an ObjectRef, as text, when no process refers to the ObjectRef any more.

    Args:
        ref: an ObjectRef that this process owns.
        call: runs in a thread of Ray, and must not call Ray.

    Raises:
        UnknownRay: this Ray does not report the end of references.
    """
    core = ray._private.worker.global_worker.core_worker
    if not hasattr(core, "add_object_out_of_scope_callback"):
        raise unknown("does not report that an ObjectRef has no references")
    if not core.add_object_out_of_scope_callback(ref, lambda gone: call(gone.hex())):
        call(ref.hex())


def before_shutdown(call: Callable[[], None]) -> None:
    """Calls a function in this process each time before Ray shuts down, by `ray.shutdown` or at exit.

    Threads that call Ray have to stop before: a call of Ray that starts during the shutdown ends the process.

    Raises:
        UnknownRay: this Ray has no hook for it.
    """
    worker = ray._private.worker.global_worker
    ordinary = getattr(worker, "shutdown_rdt_manager", None)
    if ordinary is None:
        raise unknown("has no hook before its shutdown (shutdown_rdt_manager)")

    def first() -> None:
        call()
        ordinary()

    worker.shutdown_rdt_manager = first


def create_transfer_manager() -> None:
    """Creates Ray's manager of tensor transfers in this process, if it does not exist yet.

    Ray creates it at first use, without a lock. In an actor, two threads use it at once: one receives the first
    tensors, the other waits for them, to run a method. If each creates a manager, the method waits in one manager for
    tensors that arrived in the other, until Ray's timeout. Before the first transfer, no other thread uses it.

    Raises:
        UnknownRay: this Ray has no such manager.
    """
    worker = ray._private.worker.global_worker
    if getattr(worker, "rdt_manager", None) is None:
        raise unknown("has no manager of tensor transfers (rdt_manager)")


def unlocked(call: Callable[[], T]) -> T:
    """Calls a function during unpickling with Ray's lock released, so that other threads can unpickle meanwhile.

    Raises:
        UnknownRay: this Ray uses another lock.
    """
    lock: Any = getattr(ray._private.worker.global_worker.function_actor_manager, "lock", None)
    if not hasattr(lock, "_release_save"):
        raise unknown("uses a different lock during unpickling")
    if not lock._is_owned():
        return call()
    # As threading.Condition does in `wait`.
    state = lock._release_save()
    try:
        return call()
    finally:
        lock._acquire_restore(state)
