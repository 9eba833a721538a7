"""`reduce` over Hoplite objects and results of Ray tasks; `inputs` and `lost` list which inputs it used.

A result in Ray's store is put into Hoplite by a small task on the node that has it. The reduce waits for its name
from the start, so tasks that still run can be inputs. A result of the tensor transport is put by its actor before Ray
reports the end of the method. If the method has ended without such an object, the input has failed. The ObjectRef of
the result belongs to a call of the Ray node's keeper, which returns when the result is complete.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

import ray

from hoplite import HopliteError, InvalidArgument, Ref
from hoplite._timeouts import DEFAULT, limit
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

# Upper limit of the size of a `Stored`. Ray keeps small values in their owner process, with no location on a node.
STORED_BYTES_MAX = 4096

# Timeout of `ray.get` for results that Ray reports as ready.
HEAR_S = 1.0

# Retries of the task that puts an input, because its worker process can die without a fault of the input.
BRING_RETRIES = 3


class _Inputs:
    """The inputs of one reduce, and the tasks that put results from Ray's store into Hoplite.

    Args:
        hp: the client of this process.
        given: the inputs, as passed by the caller.
        count: number of inputs that the reduce needs; None means all.
    """

    def __init__(self, hp: Client, given: list[Any], count: int | None) -> None:
        self._hp = hp
        self._count = len(given) if count is None else count
        self._prefix = f"ray-input/{uuid.uuid4().hex}"
        # Keeps references to the inputs until the result is complete.
        self.given = given
        self._to_bring: dict[str, Any] = {}
        self._leases: list[Lease] = []
        self._tasks: dict[Any, str] = {}
        # Actor methods that may still run, with the names of the tensors that their actors put.
        self._methods: dict[Any, str] = {}
        # The error of the last failed input.
        self._why = ""
        self.texts = [self._text(place, each) for place, each in enumerate(given)]

    def _text(self, place: int, each: Any) -> str:
        if not isinstance(each, ray.ObjectRef):
            if not isinstance(each, (Ref, str)):
                raise InvalidArgument(
                    f"input {place} of the reduce is a {type(each).__name__}, not an ObjectRef, ref or name: "
                    "put it first, with hoplite.ray.put"
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
        """Leases the objects of the tasks, so that they are deleted if this process dies."""
        self._leases = [self._hp.lease(name) for name in self._to_bring]

    def bring(self) -> None:
        """Starts the tasks. Ray runs each on the node that has most of its argument."""
        task = ray.remote(bring).options(num_cpus=0, max_retries=BRING_RETRIES)
        self._tasks = {task.remote(each, name): name for name, each in self._to_bring.items()}

    def refs(self) -> list[Any]:
        """Returns the tasks and methods that Ray has not reported as finished."""
        return [*self._tasks, *self._methods]

    def over(self, ref: Any, kept: Kept) -> None:
        """Records that a task or method has ended, and that its input is lost if it failed."""
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
        """Records the failure of a task or method; returns False if Ray does not deliver the outcome yet."""
        try:
            ray.get(ref, timeout=HEAR_S)
        except ray.exceptions.GetTimeoutError:
            logger.debug("Ray has not yet delivered the outcome of reduce input %s, will retry", name)
            return False
        except Exception as error:  # noqa: BLE001 - transports raise any error
            # The last line is the error itself, after its traceback.
            self._fail(name, kept, str(error).strip().rpartition("\n")[2])
            # The frames of the traceback would keep refs alive.
            error.__traceback__ = None
        return True

    def _fail(self, name: str, kept: Kept, why: str) -> None:
        place = self.texts.index(name)
        logger.warning("input %d of the reduce %s is lost: %s", place, kept.text, why)
        kept.failed.add(name)
        self._why = f"input {place}: {why}"

    def fails(self, kept: Kept) -> bool:
        """Ends the reduce if too few inputs remain after the losses of Ray and of Hoplite together."""
        if not self._is_short(kept):
            return False
        why = f"too few inputs of the reduce {kept.text} can still arrive. {self._why}"
        # Hoplite would wait forever for inputs that were never put. The reduce has to end with this reason before its
        # inputs are deleted.
        return bool(ray.get(keeper().give_up.remote(kept.text, kept.wait, why, delete=True), timeout=DELETE_S))

    def _is_short(self, kept: Kept) -> bool:
        lost = {str(each) for each in Ref(kept.text, self._hp).lost(timeout=DELETE_S)}
        return len(self.texts) - len(lost | kept.failed) < self._count

    def release(self) -> None:
        """Releases the inputs, and deletes those that were put for this reduce only."""
        for task in self._tasks:
            ray.cancel(task)
        names, self.given = list(self._to_bring), []
        self._tasks, self._methods, self._to_bring = {}, {}, {}
        try:
            self._hp.delete(names, timeout=DELETE_S)
        except HopliteError as error:
            logger.debug("could not delete the inputs of a finished reduce: %s", error)
        # An input that a task puts after this ends with its lease.
        for lease in self._leases:
            lease.release()


def reduce(
    refs: Iterable[Any],
    op: str = "sum",
    *,
    count: int | None = None,
    name: str | None = None,
    timeout: float | None = DEFAULT,
) -> Any:
    """Folds the first `count` inputs to arrive, and returns a Ray ObjectRef of the result at once.

    Like the ObjectRef of a task, it is ready when the result is complete, and fails if the reduce fails. `ray.get` and
    `ray.wait` wait for it, and tasks that have it as an argument start then. The lifetime of the result follows the
    rules of `put`.

    Args:
        refs: a list of inputs: Hoplite refs, names and Ray ObjectRefs. An ObjectRef can be from `put`, of an array in
            Ray's store, of a task that returns an array and may still run, or of an actor method that returns one
            tensor or array by the tensor transport "hoplite".
        op: see `Client.reduce`.
        count: number of inputs to fold; None means all. If a task or method raises, or its worker dies permanently, its
            input is lost. If too few inputs can still arrive, the result fails with `ObjectLost`.
        name: name of the result; None generates an id.
        timeout: seconds until the inputs must have arrived and the result must be complete.

    Raises:
        ConnectError: Hoplite does not run on this Ray node.
        InvalidArgument: an input is of another kind; see also `Client.reduce`.
        HopliteError: see `Client.reduce`.
    """
    if isinstance(refs, (str, bytes, Ref, ray.ObjectRef)):
        raise InvalidArgument(f"reduce takes a list of inputs, not a {type(refs).__name__}: write [{refs!r}]")
    hp = client()
    taken = _Inputs(hp, list(refs), count)
    result = hp.reserve() if name is None else Ref(name)
    lease = hp.lease(result)
    try:
        taken.hold()
        hp.reduce(taken.texts, op, count=count, name=result, timeout=limit(timeout))
        wait = uuid.uuid4().hex
        anchor, over = keeper().result.options(num_returns=2).remote(str(result), wait)
        taken.bring()
    except BaseException:
        lease.release()
        taken.release()
        raise
    # Inputs that are Hoplite objects need no checks.
    pending = taken if any(isinstance(each, ray.ObjectRef) for each in taken.given) else None
    kept = Kept(hp, str(result), lease, name is not None, wait, over, pending, taken.texts)
    lifetimes.keep(anchor, kept)
    return anchor


def inputs(result: Any, *, timeout: float | None = DEFAULT) -> list[int]:
    """Returns which inputs a reduce of this process has folded.

    Args:
        result: the ObjectRef that `reduce` returned.
        timeout: seconds to wait until the inputs are chosen.

    Returns:
        The positions of the inputs in the list passed to `reduce`, in the order of folding.

    Raises:
        Timeout: too few inputs arrived in time.
        InvalidArgument: the argument is not a result of a reduce of this process.
        ObjectLost: too few inputs can still arrive.
    """
    kept = _reduced(result)
    return [kept.inputs.index(str(each)) for each in Ref(kept.text, kept.client).inputs(timeout=limit(timeout))]


def lost(result: Any, *, timeout: float | None = DEFAULT) -> list[int]:
    """Returns which inputs of a reduce of this process are known to be lost.

    An input is lost if its process or node failed, if it was deleted, or if its task failed. Resubmit the task if you
    still need the input.

    Args:
        result: the ObjectRef that `reduce` returned.
        timeout: seconds to wait for the reply of this host's node. The call does not wait for inputs.

    Returns:
        The positions of lost inputs in the list passed to `reduce`, in ascending order. None of them is part of the
        result. After the reduce, the list contains the inputs that were lost when it ended.

    Raises:
        InvalidArgument: the argument is not a result of a reduce of this process.
        ObjectLost: too few inputs can still arrive.
    """
    kept = _reduced(result)
    gone = {str(each) for each in Ref(kept.text, kept.client).lost(timeout=limit(timeout))} | kept.failed
    return [place for place, text in enumerate(kept.inputs) if text in gone]


def _reduced(result: Any) -> Kept:
    """Returns the record of a reduce by its result."""
    kept = lifetimes.of(result) if isinstance(result, ray.ObjectRef) else None
    if kept is None or not kept.inputs:
        raise InvalidArgument(
            f"{result} is not a result of hoplite.ray.reduce in this process: pass the ObjectRef that reduce returned"
        )
    return kept


def bring(value: Any, name: str) -> None:
    """Puts a value that Ray has delivered into Hoplite, as a Ray task.

    Args:
        value: an array, or a Hoplite ref or ObjectRef that a task returned instead of one.
        name: name of the object.
    """
    if isinstance(value, (Ref, ray.ObjectRef)):
        value = get(value)
    hp = client()
    # If the caller has died, or does not need the input any more, the object ends with this lease.
    with hp.lease(name):
        put_again(hp, value, name)


def _may_be_stored(each: Any) -> bool:
    """Whether Ray has the value already, and it is small enough to be a `Stored`, so that a transfer costs little."""
    ready, _ = ray.wait([each], num_returns=1, timeout=0, fetch_local=False)
    if not ready:
        return False
    known = get_object_locations([each]).get(each, {})
    return not known.get("node_ids") or (known.get("object_size") or 0) <= STORED_BYTES_MAX
