"""`scatter`, `replicate`, `reduce` and `ref`: operations on arrays of a Dask cluster with Hoplite."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed import Client, Future, wait

import hoplite
from hoplite._timeouts import DEFAULT, limit
from hoplite.dask import installation, tasks
from hoplite.dask.arrays import PREFIX
from hoplite.errors import HopliteError, InvalidArgument, UnsupportedDtype

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hoplite.dask.installation import Installation

log = logging.getLogger("hoplite.dask")


def scatter(client: Client, data: Any, *, broadcast: bool = True, timeout: float | None = DEFAULT) -> Any:  # noqa: ANN401
    """Puts arrays into shared memory and transfers them to every host of the Dask cluster.

    A task that takes the future gets a read-only NumPy array over the shared memory of its host. Hosts relay an array
    while it arrives. Dask's active memory manager may drop the replicas of workers; the array stays in each host's
    store, where tasks find it again. A host that joins later fetches it when a task there needs it. The object is
    deleted everywhere with its last future.

    Args:
        client: a client of a Dask cluster with `hoplite.dask.install`.
        data: a NumPy array, or a list, tuple or dict of them.
        broadcast: whether to transfer it to every host and wait for that. Otherwise hosts fetch it when tasks need it.
        timeout: seconds to wait for capacity in the store, and for the hosts.

    Returns:
        A `distributed.Future`, or a list, tuple or dict of futures.

    Raises:
        Timeout: an array did not reach every host in time. Its future and its object are removed.
        InvalidArgument: Hoplite is not installed on the cluster.
        StoreFull: the store had no capacity in time, or an array is larger than the store.
        UnsupportedDtype: a value is not a NumPy array, or has elements that Hoplite can't store.
    """
    here = installation.of(client)
    timeout = limit(timeout)
    if isinstance(data, dict):
        return dict(zip(data, _scatter(here, list(data.values()), broadcast, timeout), strict=True))
    if isinstance(data, list | tuple):
        return type(data)(_scatter(here, list(data), broadcast, timeout))
    return _scatter(here, [data], broadcast, timeout)[0]


def replicate(client: Client, futures: Future | Iterable[Future], *, timeout: float | None = DEFAULT) -> None:
    """Transfers arrays that are results of tasks to every worker, like `distributed.Client.replicate`.

    Waits for the tasks. Each worker first moves its array into the store of its host, where it replaces the worker's
    own copy. From then on, Dask transfers the array as a ref.

    Args:
        client: a client of a Dask cluster with `hoplite.dask.install`.
        futures: futures of NumPy arrays.
        timeout: seconds to wait for the tasks, and then for the hosts.

    Raises:
        Timeout: an array did not reach every host in time.
        HopliteError: a worker can't move an array into its host's store, for example because the store is full.
        InvalidArgument: Hoplite is not installed on the cluster.
        TimeoutError: the tasks were not complete in time.
        UnsupportedDtype: a result is not an array that Hoplite can store.
    """
    here = installation.of(client)
    wanted = _futures(futures)
    timeout = limit(timeout)
    wait(wanted, timeout=timeout)
    for future in wanted:
        if future.status == "error":
            future.result()
    by_worker: dict[str, list[str]] = {}
    for key, workers in client.who_has(wanted).items():
        for worker in workers:
            by_worker.setdefault(worker, []).append(key)
    texts: set[str] = set()
    for worker, keys in by_worker.items():
        texts.update(here.run_on(worker, tasks.lift, keys).values())
    _spread(here, sorted(texts), timeout)
    client.replicate(wanted)


def reduce(client: Client, futures: Iterable[Future], op: str = "sum", *, count: int | None = None) -> Future:
    """Folds the first `count` results of tasks to arrive, and returns a future of the result at once.

    Inputs that are not from `scatter` or `reduce` are put by the workers that hold them. Nodes fold the inputs on the
    hosts that hold them, on the way to the host that runs the task of the result.

    Args:
        client: a client of a Dask cluster with `hoplite.dask.install`.
        futures: futures of NumPy arrays of one dtype and shape, without duplicates. Their tasks may still run.
        op: "sum", "min", "max", "prod" or "mean"; for bool also "any" or "all".
        count: number of inputs to fold; None means all. Failed tasks are ignored while enough inputs remain.

    Returns:
        A future like those of `scatter`. If too few inputs remain, it raises the error of an input. If the inputs
        can't be folded, it raises `UnknownOp`, `ShapeMismatch` or `UnsupportedDtype`.

    Raises:
        InvalidArgument: there are no inputs, an input occurs twice, or the count is below 1 or above their number. Or
            Hoplite is not installed on the cluster.
    """
    here = installation.of(client)
    inputs = _futures(futures)
    if len({future.key for future in inputs}) < len(inputs):
        raise InvalidArgument("a future occurs twice among the inputs: pass each future once")
    if not inputs:
        raise InvalidArgument("there are no inputs to reduce: pass at least one future")
    wanted = len(inputs) if count is None else count
    if not 1 <= wanted <= len(inputs):
        raise InvalidArgument(
            f"count {count!r} is not valid: use a number from 1 to {len(inputs)}, the number of inputs"
        )
    # One prefix, so that all names have the same owner.
    base = f"dask-{uuid.uuid4().hex[:12]}"
    parts = []
    for number, future in enumerate(inputs):
        if is_put(future):
            parts.append(future)
        else:
            name = f"{base}/{number}"
            parts.append(client.submit(tasks.share, future, here.id, name, key=PREFIX + name))
    total = f"{base}/total"
    texts = [str(ref(part)) for part in parts]
    keys = [part.key for part in parts]
    result = client.submit(tasks.fold, here.id, texts, keys, op, wanted, total, key=PREFIX + total)
    # Keep the inputs until the result is complete.
    result.add_done_callback(lambda _: parts.clear())
    return result


def ref(future: Future) -> hoplite.Ref:
    """Returns the ref of the object behind a future of `scatter` or `reduce`, for a `hoplite.Client`.

    Raises:
        InvalidArgument: the future is not from `scatter` or `reduce`.
    """
    if not is_put(future):
        raise InvalidArgument(f"{future!r} was not created by hoplite.dask.scatter or reduce: scatter its value first")
    return hoplite.Ref(future.key.removeprefix(PREFIX))


def is_put(future: Future) -> bool:
    """Whether a future is from `scatter` or `reduce`."""
    return isinstance(future.key, str) and future.key.startswith(PREFIX)


def _scatter(here: Installation, data: list[Any], broadcast: bool, timeout: float | None) -> list[Future]:
    for array in data:
        if type(array) is not np.ndarray:
            raise UnsupportedDtype(
                f"scatter takes NumPy arrays, not a {type(array).__name__}: use client.scatter, or put the value with "
                "a hoplite.Client in a task"
            )
    putter = _Local(here.client) if here.client is not None else _Remote(here)
    futures: list[Future] = []
    try:
        for array in data:
            # Create the future first, so that the object ends with it even if this process fails.
            text = putter.reserve()
            futures.append(here.dask.submit(tasks.open_array, here.id, text, key=PREFIX + text, pure=False))
            putter.put(array, text, timeout)
        if broadcast:
            _spread(here, [str(ref(future)) for future in futures], timeout)
    except BaseException:
        here.dask.cancel(futures)
        raise
    return futures


class _Local:
    """Puts objects at the node of this host."""

    def __init__(self, client: hoplite.Client) -> None:
        self._client = client

    def reserve(self) -> str:
        return str(self._client.reserve())

    def put(self, array: Any, text: str, timeout: float | None) -> None:  # noqa: ANN401 - an array
        self._client.put(array, name=text, timeout=timeout)


class _Remote:
    """Puts objects at the node of a worker, because this host has none. Dask transfers the bytes there."""

    def __init__(self, here: Installation) -> None:
        self._here = here
        self._worker = here.a_worker()

    def reserve(self) -> str:
        text: str = self._here.run_on(self._worker, tasks.reserve)
        return text

    def put(self, array: Any, text: str, timeout: float | None) -> None:  # noqa: ANN401, ARG002 - an array
        self._here.run_on(self._worker, tasks.store, text, array)


def _spread(here: Installation, texts: list[str], timeout: float | None) -> None:
    """Transfers objects to every host with a worker. A worker that fails meanwhile is ignored.

    Raises:
        HopliteError: a worker could not get an object.
    """
    if not texts:
        return
    for worker, answer in here.run(tasks.fetch, texts, timeout).items():
        if isinstance(answer, OSError) and not isinstance(answer, HopliteError):
            log.warning("could not reach worker %s, which has no copy now: %s", worker, answer)
        elif isinstance(answer, BaseException):
            raise answer


def _futures(futures: Future | Iterable[Future]) -> list[Future]:
    found: Sequence[Any] = [futures] if isinstance(futures, Future) else list(futures)
    for future in found:
        if not isinstance(future, Future):
            raise InvalidArgument(f"inputs must be Dask futures, not a {type(future).__name__}")
    return list(found)
