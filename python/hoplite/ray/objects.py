"""`put`, `get`, `wait` and `ref`: Ray ObjectRefs whose values are Hoplite objects.

Ray stores only the ref of such an object, once the object is complete. When Ray delivers the value of the ObjectRef, as
an argument of a task or by `ray.get`, it unpickles the ref, which gets the object from the Hoplite node of that host.
ObjectRefs inside a value are pickled by Ray next to the ref, so that their owners count them.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from typing import TYPE_CHECKING, Any

import ray

from hoplite import HopliteError, InvalidArgument, ObjectLost, Ref, Timeout
from hoplite._timeouts import DEFAULT, limit
from hoplite.ray._versions import unlocked
from hoplite.ray.again import put_again
from hoplite.ray.lifetime import Kept, lifetimes
from hoplite.ray.packing import packed, with_inner
from hoplite.ray.place import check_connected, client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# Interval between checks for ObjectRefs that are not ready yet.
POLL_S = 0.02


class _Reading(threading.local):
    """Whether unpickling in this thread returns refs instead of values."""

    refs = False


_reading = _Reading()


class Stored:
    """Ray's value of a Hoplite object: its ref.

    Args:
        text: the ref.
        inner: the ObjectRefs and actors inside the value.
    """

    __slots__ = ("_inner", "_text")

    def __init__(self, text: str, inner: tuple[Any, ...] = ()) -> None:
        self._text = text
        self._inner = inner

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return opened, (self._text, self._inner)


def opened(text: str, inner: tuple[Any, ...]) -> Any:
    """Returns the value to which a `Stored` is unpickled, or its ref if this thread wants refs."""
    if _reading.refs:
        return Found(text, inner)
    return unlocked(lambda: with_inner(inner, lambda: client().get(text)))


class Found(Ref):
    """A Hoplite ref that Ray has delivered, with the ObjectRefs inside its value."""

    __slots__ = ("inner",)

    def __init__(self, text: str, inner: tuple[Any, ...]) -> None:
        super().__init__(text)
        self.inner = inner


def put(value: object, *, name: str | None = None, replicas: int = 1, timeout: float | None = DEFAULT) -> Any:
    """Puts a value into Hoplite and returns a Ray ObjectRef of it.

    Pass the ObjectRef to tasks and actors, return it from them, or pass it to `ray.get`: they get the value,
    transferred by Hoplite. As with `ray.put`, the object lives while Ray counts a reference to it and the process that
    put it lives. Without a name, it is deleted at once after its last reference.

    Args:
        value: any value that `ray.put` accepts. Ray counts the ObjectRefs inside it. A class of the main script is
            pickled with the value.
        name: name of the object, so that reduces and readers can wait for it before it exists. If Ray retries a task,
            the retry may put the same name: the object of the first attempt stays. A named object is deleted 5 s after
            its last reference. None generates an id.
        replicas: number of nodes that hold the object, so that it survives the failure of a node.
        timeout: seconds to wait for capacity and for the replicas.

    Raises:
        ConnectError: Hoplite does not run on this Ray node.
        HopliteError: see `Client.put`.
    """
    hp = client()
    timeout = limit(timeout)
    # The lease starts before the object exists, so that the object can never outlive this process.
    ref = hp.reserve() if name is None else Ref(name)
    lease = hp.lease(ref)
    try:
        given, inner = packed(value)
        if name is None:
            hp.put(given, name=ref, replicas=replicas, timeout=timeout)
        else:
            put_again(hp, given, name, replicas=replicas, timeout=timeout)
        anchor = ray.put(Stored(str(ref), inner))
    except BaseException:
        lease.release()
        raise
    lifetimes.keep(anchor, Kept(hp, str(ref), lease, is_named=name is not None))
    return anchor


def ref(anchor: Any, *, timeout: float | None = DEFAULT) -> Ref | None:
    """Returns the Hoplite ref behind a Ray ObjectRef, for `Client.locations` and other verbs.

    The ref does not keep the object alive.

    Args:
        anchor: an ObjectRef. If its value is not in Hoplite, Ray transfers the value to this node.
        timeout: seconds to wait until Ray has the value.

    Returns:
        The ref; None if the value of the ObjectRef is not a Hoplite object.

    Raises:
        ConnectError: this process is not connected to Ray, or only by Ray Client.
        Timeout: Ray did not have the value in time.
        InvalidArgument: the argument is not an ObjectRef.
    """
    check_connected()
    if not isinstance(anchor, ray.ObjectRef):
        raise InvalidArgument(f"ref takes an ObjectRef, not a {type(anchor).__name__}: {anchor!r}")
    kept = lifetimes.of(anchor)
    if kept is not None:
        return Ref(kept.text, kept.client)
    value = _value([anchor], limit(timeout))[0]
    return Ref(str(value), client()) if isinstance(value, Ref) else None


def get(refs: Any, *, copy: bool = False, timeout: float | None = DEFAULT) -> Any:
    """Gets values by Ray ObjectRefs, Hoplite refs or names.

    `ray.get` of an ObjectRef from Hoplite returns the same value. Here, the timeout also covers the transfer by
    Hoplite, and errors are Hoplite's own; `ray.get` raises RaySystemError with their text.

    Args:
        refs: one ObjectRef, ref or name, or a list of them. The values of ObjectRefs can be in Ray's store too.
        copy: see `Client.get`.
        timeout: seconds to wait for all values.

    Returns:
        The value, or the values in the order of the list.

    Raises:
        ConnectError: Hoplite does not run on this Ray node.
        Timeout: not all values arrived in time.
        HopliteError: see `Client.get`.
    """
    if not isinstance(refs, list):
        return get([refs], copy=copy, timeout=timeout)[0]
    check_connected()
    timeout = limit(timeout)
    until = None if timeout is None else time.monotonic() + timeout
    values: list[Any] = list(refs)
    rays = [place for place, each in enumerate(values) if isinstance(each, ray.ObjectRef)]
    for place, value in zip(rays, _value([values[place] for place in rays], timeout), strict=True):
        values[place] = value
    ours = [
        place
        for place, (given, value) in enumerate(zip(refs, values, strict=True))
        if isinstance(value, Ref) or isinstance(given, str)
    ]
    # Each value has its own inner ObjectRefs, so these values are unpickled one by one.
    apart = [place for place in ours if isinstance(values[place], Found) and values[place].inner]
    for place in apart:
        get_one = functools.partial(client().get, values[place], copy=copy, timeout=_left(until))
        values[place] = with_inner(values[place].inner, get_one)
    together = [place for place in ours if place not in apart]
    if together:
        found = client().get([values[place] for place in together], copy=copy, timeout=_left(until))
        for place, value in zip(together, found, strict=True):
            values[place] = value
    return values


def wait(refs: Iterable[Any], *, num_returns: int = 1, timeout: float | None = DEFAULT) -> tuple[list[Any], list[Any]]:
    """Waits until some of several Ray ObjectRefs, Hoplite refs or names are ready.

    If all are ObjectRefs, `ray.wait` is enough.

    Args:
        refs: ObjectRefs, refs and names, without duplicates.
        num_returns: number of ready ones to wait for.
        timeout: seconds to wait.

    Returns:
        Two lists: those that are ready, at most `num_returns`, and the others in the given order.

    Raises:
        ConnectError: Hoplite does not run on this Ray node.
    """
    check_connected()
    given = list(refs)
    timeout = limit(timeout)
    until = None if timeout is None else time.monotonic() + timeout
    rays = {each: place for place, each in enumerate(given) if isinstance(each, ray.ObjectRef)}
    texts: dict[str, list[int]] = {}
    for place, each in enumerate(given):
        if not isinstance(each, ray.ObjectRef):
            texts.setdefault(str(each), []).append(place)
    number = min(num_returns, len(given))
    if not texts:
        ready, _ = ray.wait(given, num_returns=number, timeout=timeout, fetch_local=False) if given else ([], [])
        came = [rays[each] for each in ready]
    else:
        came = _first(rays, texts, number, until)
    chosen = came[:num_returns]
    return [given[place] for place in chosen], [each for place, each in enumerate(given) if place not in chosen]


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


def _first(rays: dict[Any, int], texts: dict[str, list[int]], number: int, until: float | None) -> list[int]:
    """Waits for ObjectRefs and Hoplite refs together; returns the positions of those that are ready."""
    while True:
        left = _left(until)
        ready, _ = ray.wait(list(rays), num_returns=len(rays), timeout=0, fetch_local=False) if rays else ([], [])
        came = [rays[each] for each in ready]
        wanted = number - len(came)
        if wanted > 0:
            pause = left if not rays else POLL_S if left is None else min(POLL_S, left)
            found, _ = client().wait(list(texts), min(wanted, len(texts)), timeout=pause)
            came += [place for each in found for place in texts[str(each)]]
        if len(came) >= number or (until is not None and time.monotonic() >= until):
            return came


def behind(anchor: Any) -> Ref | None:
    """Returns the Hoplite ref behind an ObjectRef; None if its task has failed."""
    try:
        return ref(anchor, timeout=None)
    except (HopliteError, ray.exceptions.RayError):
        return None


def _value(anchors: list[Any], timeout: float | None) -> list[Any]:
    """Returns Ray's values of ObjectRefs; for Hoplite objects, these are refs."""
    if not anchors:
        return []
    try:
        with _as_refs():
            found: list[Any] = ray.get(anchors, timeout=timeout)
    except ray.exceptions.GetTimeoutError as error:
        for kept in map(lifetimes.of, anchors):
            if kept is not None and kept.wait:
                # Raises an error that names the missing inputs.
                kept.client.get(kept.text, timeout=0)
        raise Timeout(f"Ray did not return {len(anchors)} objects within {timeout:g} s: {error}") from None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, HopliteError):
            # A new error, because the cause and Ray's error refer to each other, which would keep the ObjectRefs alive.
            raise type(error.cause)(*error.cause.args) from None
        raise
    except ray.exceptions.ObjectLostError as error:
        raise ObjectLost(str(error)) from None
    except ray.exceptions.RayActorError as error:
        if any(kept is not None and kept.wait for kept in map(lifetimes.of, anchors)):
            raise ObjectLost(f"the node that coordinated the reduce has ended: {error}") from None
        raise
    return found


@contextlib.contextmanager
def _as_refs() -> Iterator[None]:
    before, _reading.refs = _reading.refs, True
    try:
        yield
    finally:
        _reading.refs = before
