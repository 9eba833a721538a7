"""`put`, `get` and `wait`: ObjectRefs of Ray whose values are objects of Hoplite.

Ray has of such an object only its ref. Where Ray brings the value of the ObjectRef, as the argument of a task or by
`ray.get`, it unpickles that, which gets the object from Hoplite's node there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import ray

from hoplite import GetTimeout, ObjectDeleted, ObjectLost, Ref
from hoplite.ray.again import put_again
from hoplite.ray.lifetime import Kept, lifetimes
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
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return opened, (self._text,)


def opened(text: str) -> Any:
    """What `Stored` is unpickled to: the value."""
    if _reading.refs:
        return Ref(text)
    return client().get(text)


def put(value: object, *, name: str | None = None, copies: int = 1, timeout: float | None = None) -> Any:
    """Puts a value into Hoplite, as `hoplite.put` does, and returns a Ray ObjectRef of it.

    Pass it to tasks and actors, return it from them, `ray.get` it: what they get is the value, brought by Hoplite. It
    lives as long as Ray counts a reference to it, and as the process that has put it, like what `ray.put` returns.
    After the last reference is gone the object is deleted, within a second.

    Args:
        value: anything that `hoplite.put` takes.
        name: what to call it, so that reduces and readers can wait for it before it is there. A task that Ray tries
            again may put it again: what the first try has put stays. An object with a name goes 5 s after its last
            reference. None mints an id.
        copies: how many nodes are to hold it, so that it outlives the nodes of others.
        timeout: seconds to wait for room and for the copies.

    Raises:
        ConnectError: Hoplite does not run on this Ray node.
        HopliteError: as `hoplite.put`.
    """
    hp = client()
    # Held before it is there: there is no moment at which it would outlive this process.
    ref = hp.promise() if name is None else Ref(name)
    lease = hp.hold(ref)
    try:
        if name is None:
            hp.put(value, name=ref, copies=copies, timeout=timeout)
        else:
            put_again(hp, value, name, copies=copies, timeout=timeout)
        anchor = ray.put(Stored(str(ref)))
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
        GetTimeout: Ray does not have the value in time.
    """
    check_connected()
    kept = lifetimes.of(anchor)
    if kept is not None:
        return Ref(kept.text, kept.client)
    value = _value([anchor], timeout)[0]
    return Ref(str(value), client()) if isinstance(value, Ref) else None


def get(refs: Any, *, copy: bool | None = None, timeout: float | None = None) -> Any:
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
        GetTimeout: not all were here in time.
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
    if not ours:
        return values
    left = None if until is None else max(0.0, until - time.monotonic())
    try:
        found = client().get([values[place] for place in ours], copy=copy, timeout=left)
    except ObjectDeleted:
        for kept in [lifetimes.of(each) for each in refs if isinstance(each, ray.ObjectRef)]:
            if kept is not None and kept.failure is not None:
                raise ObjectLost(f"too few inputs of the reduce {kept.text} can still come: {kept.failure}") from None
        raise
    for place, value in zip(ours, found, strict=True):
        values[place] = value
    return values


def wait(refs: Iterable[Any], *, num_returns: int = 1, timeout: float | None = None) -> tuple[list[Any], list[Any]]:
    """Waits until some of several have come: ObjectRefs of Ray, refs of Hoplite or names.

    An ObjectRef of Hoplite's has come when the object has; `ray.wait` says so of a reduce's at once.

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
    texts: dict[int, str] = {}
    unknown: list[int] = []
    for place, each in enumerate(given):
        kept = lifetimes.of(each) if isinstance(each, ray.ObjectRef) else None
        if kept is not None:
            texts[place] = kept.text
        elif isinstance(each, ray.ObjectRef):
            unknown.append(place)
        else:
            texts[place] = str(each)
    came: list[int] = []
    while True:
        left = None if until is None else max(0.0, until - time.monotonic())
        if unknown:
            left = POLL_S if left is None else min(POLL_S, left)
        for place in _arrived(given, unknown):
            # Ray has it: if it is of Hoplite's, it may still be on its way.
            stored = behind(given[place])
            if stored is None:
                came.append(place)
            else:
                texts[place] = str(stored)
        waiting = {place: text for place, text in texts.items() if place not in came}
        wanted = num_returns - len(came)
        if wanted > 0 and waiting:
            by_text: dict[str, list[int]] = {}
            for place, text in waiting.items():
                by_text.setdefault(text, []).append(place)
            ready, _ = client().wait(list(by_text), min(wanted, len(by_text)), timeout=left)
            came += [place for each in ready for place in by_text[str(each)]]
        elif wanted > 0 and unknown:
            time.sleep(left or 0.0)
        is_late = until is not None and time.monotonic() >= until
        if len(came) >= num_returns or len(came) == len(given) or is_late:
            chosen = came[:num_returns]
            return [given[p] for p in chosen], [each for p, each in enumerate(given) if p not in chosen]


def _arrived(given: list[Any], unknown: list[int]) -> list[int]:
    """Takes those ObjectRefs out of `unknown` that Ray has by now."""
    if not unknown:
        return []
    objects = {given[place]: place for place in unknown}
    ready, _ = ray.wait(list(objects), num_returns=len(objects), timeout=0, fetch_local=False)
    found = [objects[each] for each in ready]
    for place in found:
        unknown.remove(place)
    return found


def behind(anchor: Any) -> Ref | None:
    """The Hoplite ref behind an ObjectRef; none of a task that has failed."""
    try:
        return ref(anchor)
    except ray.exceptions.RayError:
        return None


def _value(anchors: list[Any], timeout: float | None) -> list[Any]:
    """What Ray has of some ObjectRefs: of one of Hoplite's its ref."""
    if not anchors:
        return []
    with _as_refs():
        try:
            found: list[Any] = ray.get(anchors, timeout=timeout)
        except ray.exceptions.GetTimeoutError as error:
            raise GetTimeout(f"Ray did not have {len(anchors)} objects within {timeout:g} s: {error}") from None
    return found


@contextlib.contextmanager
def _as_refs() -> Iterator[None]:
    before, _reading.refs = _reading.refs, True
    try:
        yield
    finally:
        _reading.refs = before
