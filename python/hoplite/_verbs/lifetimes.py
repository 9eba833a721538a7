"""The verbs that control the lifetime of an object: `lease` and `delete`."""

# A mixin of one class, which annotates `self` with that class.
# mypy: disable-error-code="misc"

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from hoplite._arguments import check_ref, check_refs
from hoplite._attachment import Attachment
from hoplite._shared import DEFAULT
from hoplite._waits import IN_LOOP, IN_THREAD, answer, answer_async, finish
from hoplite.errors import NotAllowed, ObjectDeleted, ObjectLost
from hoplite.lease import Lease

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hoplite._client import Client
    from hoplite._waits import Waits
    from hoplite.ref import Ref


class Lifetimes(Attachment):
    """Base class of `Client`."""

    def lease(self: Client, ref: Ref | str, *, timeout: float | None = DEFAULT) -> Lease:
        """Takes a lease of an object. The object is deleted 5 s after its last lease in the cluster ends.

        A lease ends when it is released, or when its client closes or fails. The 5 s leave time to pass a ref to
        another client that takes its own lease. An object that never had a lease exists until `delete`.

        Args:
            ref: the object. It need not exist yet, so that it can have a lease from the start. For a name, the object
                that has the name when the last lease ends is deleted.
            timeout: seconds to wait until the owner of the object has registered the lease.

        Returns:
            The lease: use `with hp.lease(ref): ...`, or `lease.release()`. A lease that is garbage-collected is
            released.

        Raises:
            Timeout: the owner did not reply in time. The lease is released.
            InvalidArgument: the ref is not valid.

        Examples:
            >>> ref = hp.reserve()
            >>> with hp.lease(ref):
            ...     bytes(hp.get(hp.put(b"for a while", name=ref)))
            b'for a while'
        """
        return finish(self._lease(IN_THREAD, check_ref(ref), self._limit(timeout)))

    async def lease_async(self: Client, ref: Ref | str, *, timeout: float | None = DEFAULT) -> Lease:
        """`lease`, for asyncio."""
        return await self._lease(IN_LOOP, check_ref(ref), self._limit(timeout))

    async def _lease(self: Client, waits: Waits, text: str, limit: float | None) -> Lease:
        native, limit = self._open_within(limit)
        lease = Lease(self, text)
        try:
            acquired = native.start_acquire_lease(text)
            # The node and the owner receive the lease before this request. Its reply confirms both, within the timeout.
            # A client that may not lease may not look either; the refusal of the lease names the verb.
            with contextlib.suppress(NotAllowed, ObjectDeleted, ObjectLost):
                await waits.answer(native.start_locations(text, None, limit))
            await waits.answer(acquired)
        except BaseException:
            lease.release()
            raise
        return lease

    def delete(self, refs: Ref | str | Iterable[Ref | str], *, timeout: float | None = DEFAULT) -> None:
        """Deletes all copies of objects on all nodes.

        Values that `get` returned stay valid; their memory is freed when they are garbage-collected. Calls that wait
        for a deleted object raise `ObjectDeleted`. The name of a deleted object can be put again.

        Args:
            refs: one ref or name, or a list of them, which may be empty.
            timeout: seconds to wait for the confirmation of the objects' owners.

        Examples:
            >>> ref = hp.put(b"x", name="scratch/1")
            >>> hp.delete(["scratch/1"])
            >>> ref = hp.put(b"y", name="scratch/1")
        """
        texts = check_refs(refs)
        native, limit = self._open_within(self._limit(timeout))
        answer(native.start_delete(texts, limit))

    async def delete_async(self, refs: Ref | str | Iterable[Ref | str], *, timeout: float | None = DEFAULT) -> None:
        """`delete`, for asyncio.

        Asyncio:
            Canceling it ends the wait. Deletions that have started are completed.
        """
        texts = check_refs(refs)
        native, limit = self._open_within(self._limit(timeout))
        await answer_async(native.start_delete(texts, limit))
