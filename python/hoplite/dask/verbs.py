"""What a program does with arrays on a Dask cluster that has Hoplite: scatter, replicate, reduce."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed import Client, Future, wait

import hoplite
from hoplite.dask import installation, tasks
from hoplite.dask.arrays import PREFIX
from hoplite.errors import HopliteError, InvalidArgument, UnsupportedDtype

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hoplite.dask.installation import Installation

log = logging.getLogger("hoplite.dask")


def scatter(client: Client, data: Any, *, broadcast: bool = True, timeout: float | None = None) -> Any:  # noqa: ANN401
    """Puts arrays into shared memory, and brings them to every host of the Dask cluster.

    A task that takes the future gets a read-only NumPy array over the shared memory of its host. Hosts that receive an
    array send it on while it arrives. Dask's active memory manager may drop what workers hold of it: the array stays in
    its host's store, where tasks find it again. A host that joins later gets it when a task there wants it. The object
    is deleted everywhere when the last future of it is gone.

    Args:
        client: of a Dask cluster with `hoplite.dask.install`.
        data: a NumPy array, or a list, tuple or dict of them.
        broadcast: whether to bring it to every host and to wait for that. Otherwise hosts fetch it when tasks want it.
        timeout: seconds to wait for room in the store, and for the hosts.

    Returns:
        A `distributed.Future`; of a list, tuple or dict such a one of them.

    Raises:
        Timeout: an array was not on every host in time. There is no future, and no object.
        InvalidArgument: Hoplite is not on the cluster.
        StoreFull: there was no room in time, or an array is larger than the store.
        UnsupportedDtype: something is no NumPy array, or has elements that Hoplite can't hold.
    """
    here = installation.of(client)
    if isinstance(data, dict):
        return dict(zip(data, _scatter(here, list(data.values()), broadcast, timeout), strict=True))
    if isinstance(data, list | tuple):
        return type(data)(_scatter(here, list(data), broadcast, timeout))
    return _scatter(here, [data], broadcast, timeout)[0]


def replicate(client: Client, futures: Future | Iterable[Future], *, timeout: float | None = None) -> None:
    """Brings arrays that workers hold, results of any tasks, to every worker, as `Client.replicate` does.

    A worker moves the array into its host's store first, so that Dask moves it as a ref from then on; it takes the
    place of the worker's own. Waits for the tasks.

    Args:
        client: of a Dask cluster with `hoplite.dask.install`.
        futures: of NumPy arrays.
        timeout: seconds to wait for the tasks, and then for the hosts.

    Raises:
        Timeout: an array was not on every host in time.
        HopliteError: a worker can't move an array into its host's store, which is full for instance.
        InvalidArgument: Hoplite is not on the cluster.
        TimeoutError: the tasks were not done in time.
        UnsupportedDtype: a result is no array that Hoplite can hold.
    """
    here = installation.of(client)
    wanted = _futures(futures)
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
    """Folds arrays that tasks make, where they lie, into one: the first `count` of them to be there.

    Each input that `scatter` or `reduce` has not put is put by the worker that holds it; nodes fold on the way to the
    host where the result is wanted. Returns at once.

    Args:
        client: of a Dask cluster with `hoplite.dask.install`.
        futures: of NumPy arrays of one dtype and shape, each once; they need not be done.
        op: "sum", "min", "max", "prod" or "mean", or of bool "any" or "all".
        count: how many to fold; None means all. Tasks that fail are left out as long as enough remain.

    Returns:
        A future like those of `scatter`. It raises what the inputs raised, if too few remain, and `UnknownOp`,
        `ShapeMismatch` or `UnsupportedDtype` if they can't be folded.

    Raises:
        InvalidArgument: no inputs, one of them twice, a count below 1 or above their number; or Hoplite is not on the
            cluster.
    """
    here = installation.of(client)
    inputs = _futures(futures)
    if len({future.key for future in inputs}) < len(inputs):
        raise InvalidArgument("a future is there twice among the inputs")
    if not inputs:
        raise InvalidArgument("there are no inputs to reduce")
    wanted = len(inputs) if count is None else count
    if not 1 <= wanted <= len(inputs):
        raise InvalidArgument(f"count is {count!r}; there are {len(inputs)} inputs")
    # One prefix, so one owner for all of them.
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
    # Inputs live until the result does.
    result.add_done_callback(lambda _: parts.clear())
    return result


def ref(future: Future) -> hoplite.Ref:
    """The ref of the object behind a future of `scatter` or `reduce`, for the verbs of `hoplite`.

    Raises:
        InvalidArgument: it is a future of something else.
    """
    if not is_put(future):
        raise InvalidArgument(f"{future!r} is no future of hoplite.dask.scatter or reduce")
    return hoplite.Ref(future.key.removeprefix(PREFIX))


def is_put(future: Future) -> bool:
    """Whether a future is one of `scatter` or `reduce`."""
    return isinstance(future.key, str) and future.key.startswith(PREFIX)


def _scatter(here: Installation, data: list[Any], broadcast: bool, timeout: float | None) -> list[Future]:
    for array in data:
        if type(array) is not np.ndarray:
            raise UnsupportedDtype(
                f"scatter takes NumPy arrays and not a {type(array).__name__}: use client.scatter, or hoplite.put in a "
                "task"
            )
    putter = _Local(here.client) if here.client is not None else _Remote(here)
    futures: list[Future] = []
    try:
        for array in data:
            # The future first: the object ends with it, whenever this process ends.
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
    """Puts at the node of this host."""

    def __init__(self, client: hoplite.Client) -> None:
        self._client = client

    def reserve(self) -> str:
        return str(self._client.reserve())

    def put(self, array: Any, text: str, timeout: float | None) -> None:  # noqa: ANN401 - an array
        self._client.put(array, name=text, timeout=timeout)


class _Remote:
    """Puts at the node of a worker, to which Dask brings the bytes: this host has no node."""

    def __init__(self, here: Installation) -> None:
        self._here = here
        self._worker = here.a_worker()

    def reserve(self) -> str:
        text: str = self._here.run_on(self._worker, tasks.reserve)
        return text

    def put(self, array: Any, text: str, timeout: float | None) -> None:  # noqa: ANN401, ARG002 - an array
        self._here.run_on(self._worker, tasks.store, text, array)


def _spread(here: Installation, texts: list[str], timeout: float | None) -> None:
    """Brings objects to every host with a worker.

    Raises:
        HopliteError: a worker could not get one. One that dies meanwhile is left out.
    """
    if not texts:
        return
    for worker, answer in here.run(tasks.fetch, texts, timeout).items():
        if isinstance(answer, OSError) and not isinstance(answer, HopliteError):
            log.warning("worker %s was not reached and got no copy: %s", worker, answer)
        elif isinstance(answer, BaseException):
            raise answer


def _futures(futures: Future | Iterable[Future]) -> list[Future]:
    found: Sequence[Any] = [futures] if isinstance(futures, Future) else list(futures)
    for future in found:
        if not isinstance(future, Future):
            raise InvalidArgument(f"inputs are futures of Dask, and not a {type(future).__name__}")
    return list(found)
