"""`fetch` and `fetch_async`: bring a version into tensors.

A version can become unavailable while it is copied. The fetch then continues with another version, whole, so that it
never returns tensors of two versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import torch

import hoplite
from hoplite import InvalidArgument, ObjectCorrupt
from hoplite._timeouts import DEFAULT, limit
from hoplite.torch.weights.choosing import UNAVAILABLE, Chooser
from hoplite.torch.weights.memory import check_dtype
from hoplite.torch.weights.names import Deadline
from hoplite.torch.weights.ordering import flowing_first
from hoplite.torch.weights.outs import check_outs, placed
from hoplite.torch.weights.pauses import paused_collector
from hoplite.torch.weights.results import MIXED, Content, Staged, Weights, state
from hoplite.torch.weights.sources import is_read_once, read
from hoplite.torch.weights.transfer import bring, check_capacity, parts

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from hoplite import Client, Ref
    from hoplite.torch.weights.sharding import Part


def fetch(
    name: str | Ref,
    *,
    into: Any = None,
    after: int | Weights | None = None,
    client: Client | None = None,
    layout: Mapping[str, Any] | None = None,
    dtype: Any = None,
    stage: bool = False,
    timeout: float | None = DEFAULT,
) -> Any:
    """Brings a version of published weights.

    The version is complete when this returns. A version that is being published is received while it is copied.

    Args:
        name: a prefix such as "policy/" for the newest version, or a name such as "policy/17" for exactly that one.
        into: module, mapping or pairs of names and tensors, with the names, shapes and dtypes of the publication. The
            bytes are copied into these tensors while they arrive. Two of them may share memory only if they are tied
            in the publication. Of a DTensor, only what this rank has is brought. None allocates tensors on the CPU.
        after: wait for a number above this one. With the `Weights` of the last fetch into the same tensors, which must
            be unchanged, and with the same `layout`, only what changed since is brought, also of an exact version.
        client: client to use; None means `hoplite.client()`.
        layout: what to bring, by name of the tensor: a slice of axis 0, a tuple of slices, or `...` for the whole
            tensor. Other tensors are left out, also those of a module in `into`; a mapping has the names of `layout`.
            With `into`, each of its tensors has the shape of its slices.
        dtype: dtype of the tensors here, in place of floating dtypes of 16 to 64 bits of the publication. The copy
            converts.
        stage: bring the version into host memory, and leave `into` as it is until `Staged.switch`.
        timeout: seconds to wait for the version and all of its bytes.

    Returns:
        `Weights`: the tensors by name, with `version`, `name` and `manifest`. With `stage=True`, `Staged`.

    Raises:
        HopliteError: torch can't copy a tensor.
        InvalidArgument: an argument is not valid; `into` or `layout` has other names than the publication; or tensors
            of `into` share memory.
        ManifestInvalid: the exact version is not a publication, or its shards do not fit together.
        ObjectCorrupt: the bytes of the exact version do not match a digest.
        ObjectDeleted: the exact version was pruned.
        ObjectLost: no copy of the exact version is left; or a version became unavailable while it was copied and there
            is no other. In the latter case the message states that the tensors are a mix of versions.
        ShapeMismatch: a tensor of `into` has another shape or dtype than in the publication.
        StoreFull: this node has no capacity for the bytes, or this process no memory for the tensors.
        Timeout: no such version was published in time, or its bytes did not arrive in time.

    An interrupt (Ctrl-C) ends the copies before it is raised. If tensors of `into` are a mix of versions then, a note
    of the `KeyboardInterrupt` states it.

    Examples:
        >>> import torch
        >>> import hoplite.torch as ht
        >>> ref = ht.publish({"w": torch.ones(2)}, "fetched/1").ref
        >>> ht.fetch("fetched/", timeout=10)["w"]
        tensor([1., 1.])
    """
    return _run(
        _fetch(name, into, after, client, layout, dtype, stage, timeout, aside=False),
    )


async def fetch_async(
    name: str | Ref,
    *,
    into: Any = None,
    after: int | Weights | None = None,
    client: Client | None = None,
    layout: Mapping[str, Any] | None = None,
    dtype: Any = None,
    stage: bool = False,
    timeout: float | None = DEFAULT,  # noqa: ASYNC109 - as every verb
) -> Any:
    """`fetch`, for asyncio.

    Asyncio:
        Copies run in threads of their own. If it is canceled, nothing is copied any more when it raises. If it was
        copying into `into` then, the tensors are a mix of versions, and a note of the `CancelledError` states it.
    """
    return await _fetch(name, into, after, client, layout, dtype, stage, timeout, aside=True)


def _run(steps: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine in a loop of its own, in a thread of its own if this one has a running loop."""
    try:
        return asyncio.run(steps) if not _is_in_loop() else _run_in_thread(steps)
    except KeyboardInterrupt as error:
        # The coroutine was canceled, and has stated what the tensors are.
        for note in getattr(error.__context__, "__notes__", ()):
            error.add_note(note)
        raise


def _run_in_thread(steps: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine in another thread. An interrupt cancels it, and is raised once it has ended."""
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    outcome: list[tuple[Any, BaseException | None]] = []
    # Not Thread.join: in Python 3.11, an interrupted one takes the thread for ended.
    canceled, over = threading.Event(), threading.Event()

    async def main() -> Any:
        task = asyncio.ensure_future(steps)
        running.append((asyncio.get_running_loop(), task))
        if canceled.is_set():
            task.cancel()
        return await task

    def run() -> None:
        try:
            outcome.append((asyncio.run(main()), None))
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            outcome.append((None, error))
        over.set()

    threading.Thread(target=run, name="hoplite-fetch", daemon=True).start()
    try:
        over.wait()
    except BaseException as error:
        canceled.set()
        for loop, task in running:
            # The loop may have ended meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)
        while not over.is_set():
            with contextlib.suppress(KeyboardInterrupt):
                over.wait()
        error.__context__ = outcome[0][1]
        raise
    result, failure = outcome[0]
    if failure is not None:
        raise failure
    return result


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _fetch(
    name: str | Ref,
    into: Any,
    after: int | Weights | None,
    client: Client | None,
    layout: Mapping[str, Any] | None,
    dtype: Any,
    stage: bool,
    timeout: float | None,  # noqa: ASYNC109 - as every verb
    *,
    aside: bool,
) -> Weights | Staged:
    wanted = check_dtype(dtype)
    if stage and into is None:
        raise InvalidArgument("stage=True needs the tensors to switch: pass into=")
    sharded: dict[str, Part] = {}
    if is_read_once(into):
        into = list(into)
    with paused_collector():
        outs = None if into is None else read(into, fills=True, parts=sharded)
    if outs is not None and layout is not None and isinstance(into, torch.nn.Module):
        outs = {each: tensor for each, tensor in outs.items() if each in layout}
    if outs is not None and sharded:
        places: dict[str, Any] = dict.fromkeys(outs, ...) if layout is None else dict(layout)
        for each in sharded.keys() & places.keys():
            if places[each] is not ...:
                raise InvalidArgument(f"{each} is a DTensor, whose slices are known: write `...` for it in layout")
            places[each] = sharded[each].places
        layout = places
    fulls = {each: part.full for each, part in sharded.items()}
    check_outs(outs or {})
    client = client or hoplite.client()
    deadline = Deadline(limit(timeout, client))
    base = after if isinstance(after, Weights) and outs is not None else None
    floor = after.version if isinstance(after, Weights) else after
    if isinstance(after, Weights) and not str(name).endswith("/"):
        # Of an exact version, too, only what changed is brought.
        floor = None
    chooser = Chooser(client, str(name), floor, deadline)
    # What the tensors are, if not what they were before the call.
    now: str | None = None
    content: Content | None = None

    def touch() -> None:
        nonlocal now
        if content is not None:
            now = MIXED
            content.replace()
        if base is not None:
            # A copy of a result, as by pickle, is not among those that are marked.
            base._content.is_current = False

    while True:
        try:
            # A mix of versions must not stay: any whole version replaces it.
            version, manifest = await (chooser.any() if now is MIXED else chooser.next())
            with paused_collector():
                placement = placed(version, manifest, outs, layout, wanted, fulls=fulls, stages=stage, touch=touch)
                if outs is not None:
                    # During the wait, the program may have given a parameter other memory.
                    content = Content(str(name) if base is None else base.name, outs)
            try:
                known = base.manifest if base is not None and content and base._is_in(placement, content) else None
                wanted_parts = parts(manifest, placement, known)
                if placement.keeps_objects:
                    await check_capacity(client, version, wanted_parts)
                wanted_parts = await flowing_first(client, wanted_parts, deadline)
                await bring(client, wanted_parts, deadline, aside=aside)
            except (*UNAVAILABLE, ObjectCorrupt) as error:
                chooser.fail(manifest, error)
                continue
        except BaseException as error:
            if now is not None:
                state(error, now)
            raise
        if chooser.is_wanted(version):
            return (
                Staged(version.name, manifest, placement, None if known is None else content)
                if stage
                else Weights(version.name, manifest, placement.tensors, placement.boxes, content)
            )
        now = f"the tensors are those of {version.name} now"
