"""Which Ray this package knows. Names the extra where Ray is missing, and the versions where an interface differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from hoplite.errors import HopliteError

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
    raise ModuleNotFoundError(
        "hoplite.ray needs Ray, which is not installed here: pip install 'hoplite-collectives[ray]'", name="ray"
    ) from None


class UnknownRay(HopliteError, ImportError):
    """An interface of the installed Ray is not the one that this package knows."""


def unknown(what: str) -> UnknownRay:
    """The error for an interface that differs.

    Args:
        what: differs, in words that follow "which".
    """
    return UnknownRay(
        f"hoplite.ray knows Ray {KNOWN}, and this is Ray {ray.__version__}, which {what}: install "
        f"'hoplite-collectives[ray]', which asks for a Ray that is known"
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
    "get_object_locations",
    "unknown",
    "unlocked",
    "when_unreferenced",
]


def when_unreferenced(ref: Any, call: Callable[[str], None]) -> None:
    """Calls something with the id of an ObjectRef, as text, when no process has the ObjectRef any more.

    Args:
        ref: an ObjectRef that this process owns.
        call: it runs in a thread of Ray, and must not call Ray.

    Raises:
        UnknownRay: this Ray does not report that.
    """
    core = ray._private.worker.global_worker.core_worker
    if not hasattr(core, "add_object_out_of_scope_callback"):
        raise unknown("does not report that an ObjectRef has no references")
    if not core.add_object_out_of_scope_callback(ref, lambda gone: call(gone.hex())):
        call(ref.hex())


def before_shutdown(call: Callable[[], None]) -> None:
    """Calls something in this process each time before Ray shuts down, by `ray.shutdown` or at exit.

    Threads that call Ray have to stop then: a call of Ray that begins later ends the process.

    Raises:
        UnknownRay: this Ray has no place for it.
    """
    worker = ray._private.worker.global_worker
    ordinary = getattr(worker, "shutdown_rdt_manager", None)
    if ordinary is None:
        raise unknown("shuts down otherwise")

    def first() -> None:
        call()
        ordinary()

    worker.shutdown_rdt_manager = first


def unlocked(call: Callable[[], T]) -> T:
    """Calls something while Ray unpickles, without the lock that Ray holds then: other threads unpickle meanwhile.

    Raises:
        UnknownRay: this Ray locks otherwise.
    """
    lock: Any = getattr(ray._private.worker.global_worker.function_actor_manager, "lock", None)
    if not hasattr(lock, "_release_save"):
        raise unknown("unpickles under another lock")
    if not lock._is_owned():
        return call()
    # As threading.Condition does in `wait`.
    state = lock._release_save()
    try:
        return call()
    finally:
        lock._acquire_restore(state)
