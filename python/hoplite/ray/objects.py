"""`put`, `get` and `wait`: ObjectRefs of Ray whose values are objects of Hoplite.

Ray has of such an object only its ref, once the object is complete. Where Ray brings the value of the ObjectRef, as the
argument of a task or by `ray.get`, it unpickles that, which gets the object from Hoplite's node there. ObjectRefs
inside of a value are pickled by Ray, beside the ref, so that their owners count them.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from typing import TYPE_CHECKING, Any

import ray

from hoplite import HopliteError, InvalidArgument, ObjectLost, Ref, Timeout
from hoplite.ray._versions import unlocked
from hoplite.ray.again import put_again
from hoplite.ray.lifetime import Kept, lifetimes
from hoplite.ray.packing import packed, with_inner
from hoplite.ray.place import check_connected, client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# Between two looks at ObjectRefs of which Ray does not know yet what they are.
POLL_S = 0.02


class _Reading(threading.local):
    """Whether this thread wants refs rather than the values."""

    refs = False


_reading = _Reading()


class Stored:
    """What Ray has of an object of Hoplite.

    Args:
        text: of its ref.
        inner: the ObjectRefs inside of the value.
    """

    __slots__ = ("_inner", "_text")

    def __init__(self, text: str, inner: tuple[Any, ...] = ()) -> None:
        self._text = text
        self._inner = inner

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return opened, (self._text, self._inner)


def opened(text: str, inner: tuple[Any, ...]) -> Any:
    """What `Stored` is unpickled to: the value."""
    if _reading.refs:
        return Found(text, inner)
    return unlocked(lambda: with_inner(inner, lambda: client().get(text)))


class Found(Ref):
    """A ref of Hoplite that Ray has brought, with the ObjectRefs inside of its value."""

    __slots__ = ("inner",)

    def __init__(self, text: str, inner: tuple[Any, ...]) -> None:
        super().__init__(text)
        self.inner = inner


def put(value: object, *, name: str | None = None, replicas: int = 1, timeout: float | None = None) -> Any:
    """Puts a value into Hoplite, as `hoplite.put` does, and returns a Ray ObjectRef of it.

    Pass it to tasks and actors, return it from them, `ray.get` it: what they get is the value, brought by Hoplite. It
    lives as long as Ray counts a reference to it, and as the process that has put it, like what `ray.put` returns.
    After the last reference is gone the object is deleted at once.

    Args:
        value: anything that `ray.put` takes. ObjectRefs inside of it are counted by Ray, and a class of the main script
            is pickled with the value.
        name: what to call it, so that reduces and readers can wait for it before it is there. A task that Ray tries
            again may put it again: what the first try has put stays. An object with a name goes 5 s after its last
            reference. None mints an id.
        replicas: number of nodes that keep a copy, as in `hoplite.Client.put`.
        timeout: seconds to wait for room and for the copies.

    Raises:
        ConnectError: Hoplite does not run on this Ray node.
        HopliteError: as `hoplite.put`.
    """
    hp = client()
    # Held before it is there: there is no moment at which it would outlive this process.
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


def ref(anchor: Any, *, timeout: float | None = None) -> Ref | None:
    """The Hoplite ref behind a Ray ObjectRef, for `hoplite.locations` and other verbs; it keeps nothing alive.

    Args:
        anchor: an ObjectRef. One that is not of Hoplite is brought here by Ray.
        timeout: seconds to wait until Ray has the value.

    Returns:
        The ref; None if the value of the ObjectRef is none of Hoplite's.

    Raises:
        ConnectError: this process is not connected to Ray, or only by Ray Client.
        Timeout: Ray does not have the value in time.
        InvalidArgument: it is no ObjectRef.
    """
    check_connected()
    if not isinstance(anchor, ray.ObjectRef):
        raise InvalidArgument(f"ref takes an ObjectRef, not a {type(anchor).__name__}: {anchor!r}")
    kept = lifetimes.of(anchor)
    if kept is not None:
        return Ref(kept.text, kept.client)
    value = _value([anchor], timeout)[0]
    return Ref(str(value), client()) if isinstance(value, Ref) else None


def get(refs: Any, *, copy: bool = False, timeout: float | None = None) -> Any:
    """Gets values by ObjectRefs of Ray, refs of Hoplite or names.

    `ray.get` of an ObjectRef of Hoplite returns the same; but here `timeout` counts for Hoplite too, and errors are
    Hoplite's own, where `ray.get` raises RaySystemError with their text.

    Args:
        refs: one, or a list. ObjectRefs of other values than Hoplite's are taken too.
        copy: see `hoplite.get`.
        timeout: seconds to wait for all of them.

    Returns:
        The value, or the values in their order.

    Raises:
        ConnectError: Hoplite does not run on this Ray node.
        Timeout: not all were here in time.
        HopliteError: as `hoplite.get`.
    """
    if not isinstance(refs, list):
        return get([refs], copy=copy, timeout=timeout)[0]
    check_connected()
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
    # ObjectRefs inside of a value are known of this one alone.
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


def wait(refs: Iterable[Any], *, num_returns: int = 1, timeout: float | None = None) -> tuple[list[Any], list[Any]]:
    """Waits until some of several have come: ObjectRefs of Ray, refs of Hoplite or names.

    `ray.wait` is enough where all are ObjectRefs.

    Args:
        refs: each once.
        num_returns: how many to wait for.
        timeout: seconds to wait.

    Returns:
        Two lists of what was given: those that came, at most `num_returns`, and the others, in their order.

    Raises:
        ConnectError: Hoplite does not run on this Ray node.
    """
    check_connected()
    given = list(refs)
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
    """Waits for ObjectRefs of Ray and refs of Hoplite at once; returns the places of those that came."""
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
    """The Hoplite ref behind an ObjectRef; none of a task that has failed."""
    try:
        return ref(anchor)
    except (HopliteError, ray.exceptions.RayError):
        return None


def _value(anchors: list[Any], timeout: float | None) -> list[Any]:
    """What Ray has of some ObjectRefs: of one of Hoplite's its ref."""
    if not anchors:
        return []
    try:
        with _as_refs():
            found: list[Any] = ray.get(anchors, timeout=timeout)
    except ray.exceptions.GetTimeoutError as error:
        for kept in map(lifetimes.of, anchors):
            if kept is not None and kept.wait:
                # Names the inputs that are missing.
                kept.client.get(kept.text, timeout=0)
        raise Timeout(f"Ray did not have {len(anchors)} objects within {timeout:g} s: {error}") from None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, HopliteError):
            # A new one: the cause refers to Ray's error and that to the cause, which would keep the ObjectRefs.
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
