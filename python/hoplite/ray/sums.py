"""`reduce` over what Hoplite has and over what tasks of Ray return, and which of them were folded.

What Ray has is brought into Hoplite by a small task on the node where it lies, under a name that the reduce waits
for from the beginning: so tasks that are still running count as inputs. What a method of an actor returns by the
tensor transport is put by that actor, before Ray reports the end of the method: if it has ended and put nothing under
the name, it has failed. The ObjectRef of the result is what the keeper of the Ray node returns when it is complete.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

import ray

from hoplite import HopliteError, InvalidArgument, Ref
from hoplite.ray._versions import get_object_locations
from hoplite.ray.again import put_again
from hoplite.ray.lifetime import DELETE_S, Kept, lifetimes
from hoplite.ray.names import ARRAYS, TENSORS, name_of
from hoplite.ray.objects import behind, get
from hoplite.ray.place import client, keeper

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hoplite import Client, Lease

logger = logging.getLogger("hoplite.ray")

# What Ray has of an object of Hoplite is smaller; what it stores inside of the process that owns it is not on a node.
STORED_BYTES_MAX = 4096

# What Ray has been asked for that it has at hand.
HEAR_S = 1.0

# A worker process that dies under it is the fault of no input.
BRING_RETRIES = 3


class _Inputs:
    """The inputs of one reduce that Ray has, on their way into Hoplite.

    Args:
        hp: the client of this process.
        given: the inputs, as the caller gave them.
        count: how many the reduce needs; None means all.
    """

    def __init__(self, hp: Client, given: list[Any], count: int | None) -> None:
        self._hp = hp
        self._count = len(given) if count is None else count
        self._prefix = f"ray-input/{uuid.uuid4().hex}"
        # Referred to from here until the result is complete.
        self.given = given
        self._to_bring: dict[str, Any] = {}
        self._leases: list[Lease] = []
        self._tasks: dict[Any, str] = {}
        # Methods of actors that may still run, whose tensors their actors put.
        self._methods: dict[Any, str] = {}
        # Of the last input that failed.
        self._why = ""
        self.texts = [self._text(place, each) for place, each in enumerate(given)]

    def _text(self, place: int, each: Any) -> str:
        if not isinstance(each, ray.ObjectRef):
            if not isinstance(each, (Ref, str)):
                raise InvalidArgument(
                    f"input {place} of the reduce is no ObjectRef, no ref and no name but a {type(each).__name__}: "
                    "put it first, by hoplite.ray.put"
                )
            return str(each)
        kept = lifetimes.of(each)
        if kept is not None:
            return kept.text
        if each.tensor_transport() in (TENSORS, ARRAYS):
            self._methods[each] = name_of(each.hex())
            return self._methods[each]
        stored = behind(each) if _may_be_stored(each) else None
        if stored is not None:
            return str(stored)
        name = f"{self._prefix}/{place}"
        self._to_bring[name] = each
        return name

    def hold(self) -> None:
        """Takes leases of what is to be brought: it goes with this process, if that dies."""
        self._leases = [self._hp.lease(name) for name in self._to_bring]

    def bring(self) -> None:
        """Sends tasks for what Ray has. Ray runs each where most of its argument lies."""
        task = ray.remote(bring).options(num_cpus=0, max_retries=BRING_RETRIES)
        self._tasks = {task.remote(each, name): name for name, each in self._to_bring.items()}

    def refs(self) -> list[Any]:
        """The tasks and methods that Ray has not reported yet."""
        return [*self._tasks, *self._methods]

    def over(self, ref: Any, kept: Kept) -> None:
        """Takes note of a task or method that has ended, and of the input that does not come if it failed."""
        if (name := self._tasks.get(ref)) is not None:
            if self._hear(ref, name, kept):
                del self._tasks[ref]
        elif (name := self._methods.get(ref)) is not None:
            is_put = bool(self._hp.wait([name], timeout=0)[0])
            if is_put or self._hear(ref, name, kept):
                del self._methods[ref]
                if not is_put and name not in kept.failed:
                    self._fail(name, kept, "its method returned no tensor, or several: return one array or tensor")

    def _hear(self, ref: Any, name: str, kept: Kept) -> bool:
        """Takes note of the failure of a task or method; false if Ray does not say yet what became of it."""
        try:
            ray.get(ref, timeout=HEAR_S)
        except ray.exceptions.GetTimeoutError:
            logger.debug("input %s of a reduce is slow to come from Ray", name)
            return False
        except Exception as error:  # noqa: BLE001 - a transport raises what it likes
            # The last line is the error itself, after where it came from.
            self._fail(name, kept, str(error).strip().rpartition("\n")[2])
            # Its frames would keep refs alive.
            error.__traceback__ = None
        return True

    def _fail(self, name: str, kept: Kept, why: str) -> None:
        place = self.texts.index(name)
        logger.warning("input %d of the reduce %s can't come: %s", place, kept.text, why)
        kept.failed.add(name)
        self._why = f"input {place}: {why}"

    def fails(self, kept: Kept) -> bool:
        """Ends the reduce if too few inputs can still come, where neither Ray nor Hoplite has lost so many alone."""
        if not self._is_short(kept):
            return False
        why = f"too few inputs of the reduce {kept.text} can still come. {self._why}"
        # Hoplite would wait for ever for what was never put. It has to end by this before its inputs are deleted.
        return bool(ray.get(keeper().give_up.remote(kept.text, kept.wait, why, delete=True), timeout=DELETE_S))

    def _is_short(self, kept: Kept) -> bool:
        lost = {str(each) for each in Ref(kept.text, self._hp).lost(timeout=DELETE_S)}
        return len(self.texts) - len(lost | kept.failed) < self._count

    def release(self) -> None:
        """Lets go of the inputs, and deletes those that were brought for this reduce alone."""
        for task in self._tasks:
            ray.cancel(task)
        names, self.given = list(self._to_bring), []
        self._tasks, self._methods, self._to_bring = {}, {}, {}
        try:
            self._hp.delete(names, timeout=DELETE_S)
        except HopliteError as error:
            logger.debug("inputs were not deleted: %s", error)
        # A task that puts one after that loses it with these.
        for lease in self._leases:
            lease.release()


def reduce(
    refs: Iterable[Any],
    op: str = "sum",
    *,
    count: int | None = None,
    name: str | None = None,
    timeout: float | None = None,
) -> Any:
    """Folds the first `count` inputs to arrive, as `hoplite.reduce` does, and returns a Ray ObjectRef of the result.

    It returns at once. The ObjectRef is ready when the result is complete, and fails if there will be none, as that of
    a task: `ray.get` and `ray.wait` wait for it, and tasks that have it as an argument begin then. The result and what
    was brought into Hoplite for it live as `put` says.

    Args:
        refs: a list of the inputs: refs of Hoplite, names, and ObjectRefs of Ray, whether of `put`, of arrays in Ray's
            store, of tasks that return an array and may still run, or of actor methods with the tensor
            transport "hoplite" that return one tensor or array.
        op: see `hoplite.reduce`.
        count: how many inputs to fold; None means all. A task or method that raises, or whose worker has died for good,
            is an input that does not come. If too few can still come, the result fails with `ObjectLost`.
        name: what to call the result; None mints an id.
        timeout: seconds until the inputs must have arrived and the result be folded.

    Raises:
        ConnectError: Hoplite does not run on this Ray node.
        InvalidArgument: an input is of none of these kinds; or as `hoplite.reduce`.
        HopliteError: as `hoplite.reduce`.
    """
    if isinstance(refs, (str, bytes, Ref, ray.ObjectRef)):
        raise InvalidArgument(f"reduce takes a list of inputs, not a {type(refs).__name__}: write [{refs!r}]")
    hp = client()
    taken = _Inputs(hp, list(refs), count)
    result = hp.reserve() if name is None else Ref(name)
    lease = hp.lease(result)
    try:
        taken.hold()
        hp.reduce(taken.texts, op, count=count, name=result, timeout=timeout)
        wait = uuid.uuid4().hex
        anchor, over = keeper().result.options(num_returns=2).remote(str(result), wait)
        taken.bring()
    except BaseException:
        lease.release()
        taken.release()
        raise
    # What Hoplite alone has needs no look.
    pending = taken if any(isinstance(each, ray.ObjectRef) for each in taken.given) else None
    kept = Kept(hp, str(result), lease, name is not None, wait, over, pending, taken.texts)
    lifetimes.keep(anchor, kept)
    return anchor


def inputs(result: Any, *, timeout: float | None = None) -> list[int]:
    """Tells which inputs a reduce of this process has folded.

    Args:
        result: what `reduce` returned.
        timeout: seconds to wait until that is decided.

    Returns:
        The places of the inputs in what `reduce` was given, in the order in which they were folded.

    Raises:
        Timeout: too few have arrived in time.
        InvalidArgument: it is no result of a reduce of this process.
        ObjectLost: too few can still arrive.
    """
    kept = _reduced(result)
    return [kept.inputs.index(str(each)) for each in Ref(kept.text, kept.client).inputs(timeout=timeout)]


def lost(result: Any, *, timeout: float | None = None) -> list[int]:
    """Tells which inputs of a reduce of this process can't come any more, as far as is known now.

    They were put by a process or on a node that has died since, were deleted, or are of a task that has failed. What is
    wanted in their place has to be asked for again.

    Args:
        result: what `reduce` returned.
        timeout: seconds to wait for this host's node; the inputs are not waited for.

    Returns:
        The places of the inputs in what `reduce` was given, none of which is in the result, in their order. After the
        reduce, those that were lost when it was over.

    Raises:
        InvalidArgument: it is no result of a reduce of this process.
        ObjectLost: too few can still come.
    """
    kept = _reduced(result)
    gone = {str(each) for each in Ref(kept.text, kept.client).lost(timeout=timeout)} | kept.failed
    return [place for place, text in enumerate(kept.inputs) if text in gone]


def _reduced(result: Any) -> Kept:
    """What is known of the result of a reduce."""
    kept = lifetimes.of(result) if isinstance(result, ray.ObjectRef) else None
    if kept is None or not kept.inputs:
        raise InvalidArgument(f"{result} is no result of a hoplite.ray.reduce of this process")
    return kept


def bring(value: Any, name: str) -> None:
    """A task of Ray: puts what Ray has brought here into Hoplite.

    Args:
        value: an array; or what a task returned in place of one, a ref of Hoplite or an ObjectRef.
        name: what to call it.
    """
    if isinstance(value, (Ref, ray.ObjectRef)):
        value = get(value)
    hp = client()
    # Who asked may have died, or want it no more: then it goes with this lease.
    with hp.lease(name):
        put_again(hp, value, name)


def _may_be_stored(each: Any) -> bool:
    """Whether Ray has the value already, and it may be of Hoplite: so small that bringing it here costs nothing."""
    ready, _ = ray.wait([each], num_returns=1, timeout=0, fetch_local=False)
    if not ready:
        return False
    known = get_object_locations([each]).get(each, {})
    return not known.get("node_ids") or (known.get("object_size") or 0) <= STORED_BYTES_MAX
