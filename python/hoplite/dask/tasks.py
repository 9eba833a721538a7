"""Functions that run on workers: tasks with futures, and functions for `Client.run` in a worker's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed import get_worker, secede
from distributed.core import clean_exception

from hoplite.dask import arrays, process
from hoplite.dask.plugins import MEETING, NAME
from hoplite.errors import HopliteError, NameTaken, UnsupportedDtype

if TYPE_CHECKING:
    from collections.abc import Coroutine, Hashable, Sequence


def installed(dask_scheduler: Any) -> bytes | None:  # noqa: ANN401 - Dask has no types here
    """Returns the pickled worker plugin of the scheduler, or None. Runs on the scheduler."""
    plugin: bytes | None = dask_scheduler.worker_plugins.get(NAME)
    return plugin if MEETING in dask_scheduler.plugins else None


def where(installation: str, dask_worker: Any) -> dict[str, str] | None:  # noqa: ANN401 - as above
    """Returns the node of a worker, or None."""
    plugin = dask_worker.plugins.get(NAME)
    if plugin is None or plugin.installation != installation:
        return None
    try:
        path = process.member_of(installation).socket
    except HopliteError:
        return None
    return {"host": socket.gethostname(), "socket": path, "address": plugin.link.address, "node": plugin.link.id}


async def reserve(installation: str, dask_worker: Any) -> str:  # noqa: ANN401, ARG001 - as Dask calls it
    """Reserves a ref for an object that `store` puts."""
    return str(await process.member_of(installation).client.reserve_async())


async def store(installation: str, text: str, array: Any, dask_worker: Any) -> None:  # noqa: ANN401, ARG001
    """Puts an object under a reserved ref."""
    await process.member_of(installation).client.put_async(array, name=text)


async def fetch(installation: str, texts: list[str], timeout: float | None, dask_worker: Any) -> None:  # noqa: ANN401, ARG001, ASYNC109
    """Transfers objects to this host. Several workers of a host share one transfer."""
    await process.member_of(installation).client.get_async(texts, timeout=timeout)


async def lift(installation: str, keys: list[Hashable], dask_worker: Any) -> dict[Hashable, str]:  # noqa: ANN401
    """Moves arrays of this worker into shared memory.

    Returns:
        The refs of the arrays that are in shared memory now, by key.
    """
    client = process.member_of(installation).client
    texts = {}
    for key in keys:
        array = dask_worker.data.get(key)
        if array is None:
            # The future was released, or the array has moved.
            continue
        if type(array) is not np.ndarray:
            raise UnsupportedDtype(
                f"{key!r} is a {type(array).__name__}, not a NumPy array: convert it with numpy.asarray first"
            )
        text = arrays.text_of(array, installation)
        if text is None:
            ref = await client.reserve_async()
            if not await dask_worker.scheduler.hoplite_own(key=key, ref=str(ref)):
                await client.delete_async(ref)
                continue
            text = str(await client.put_async(array, name=ref))
            view = await client.get_async(text)
            arrays.remember(view, installation, text)
            if key in dask_worker.data:
                dask_worker.data[key] = view
        texts[key] = text
    return texts


def open_array(installation: str, text: str) -> Any:  # noqa: ANN401 - an array
    """Returns the array of an object that exists or is being put, as a task."""
    return arrays.view(process.member_of(installation).client, installation, text, None)


def share(array: Any, installation: str, text: str) -> Any:  # noqa: ANN401 - an array
    """Puts an array under a name, as a task. If the task has no future any more, deletes the object again."""
    client = process.member_of(installation).client
    client.put(array, name=text, exist_ok=True)
    worker = get_worker()
    if not _answer(worker, worker.scheduler.hoplite_own(key=worker.get_current_task(), ref=text)):
        client.delete(text)
        return array
    return arrays.view(client, installation, text, None)


def fold(installation: str, texts: Sequence[str], keys: Sequence[Hashable], op: str, count: int, total: str) -> Any:  # noqa: ANN401
    """Reduces the first `count` of several objects into one named `total`, as a task.

    Raises:
        Exception: too few of the tasks that make the inputs can succeed; the error of one of them.
        HopliteError: see `Client.reduce` and `Client.get`.
    """
    client = process.member_of(installation).client
    # The tasks of the inputs may need this thread.
    secede()
    # An earlier run of this task, on a failed worker, may have started or completed the reduce.
    with contextlib.suppress(NameTaken):
        client.reduce(texts, op, count=count, name=total)
    if not any(location.complete for location in client.locations(total)):
        worker = get_worker()
        failure = _answer(worker, worker.scheduler.hoplite_settled(keys=list(keys), count=count))
        if failure is not None:
            client.delete(total)
            raise _raised(failure["exception"]) or HopliteError(failure["why"])
    return arrays.view(client, installation, total, None)


def _raised(exception: Any) -> BaseException | None:  # noqa: ANN401 - Dask has no types here
    """Returns the exception of a task from the scheduler's serialized form."""
    raised: BaseException | None = clean_exception(exception)[1]
    return raised


def _answer(worker: Any, question: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - Dask has no types here
    """Returns the scheduler's reply to a request, for a task's thread."""
    return asyncio.run_coroutine_threadsafe(question, worker.loop.asyncio_loop).result()
