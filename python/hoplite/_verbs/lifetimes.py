"""The verbs that decide how long an object lives."""

# A mixin of one class, which says so of its self.
# mypy: disable-error-code="misc"

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from hoplite._arguments import check_ref, check_refs, check_timeout
from hoplite._attachment import Attachment
from hoplite._waits import IN_LOOP, IN_THREAD, answer, answer_async, finish
from hoplite.errors import ObjectDeleted, ObjectLost
from hoplite.lease import Lease

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hoplite._client import Client
    from hoplite._waits import Waits
    from hoplite.ref import Ref


class Lifetimes(Attachment):
    """What `Client` inherits."""

    def lease(self: Client, ref: Ref | str, *, timeout: float | None = None) -> Lease:
        """Takes a lease of an object: it lives as long as some client of the cluster has one.

        When the last lease is released, or its client has closed or died, the object is deleted, 5 s later: a client
        that is handed the ref has taken its own lease by then. An object of which no lease was taken lives until
        `delete`.

        Args:
            ref: the object; it need not exist yet, so that there is no moment at which it is not held. Of a name, what
                has the name when the last lease ends is deleted.
            timeout: seconds to wait until the owner of the object knows of the lease.

        Returns:
            The lease: `with hp.lease(ref): ...`, or `lease.release()`. One that is garbage is released.

        Raises:
            Timeout: the owner has not answered in time, and there is no lease.
            InvalidArgument: it is no ref.

        Examples:
            >>> ref = hp.reserve()
            >>> with hp.lease(ref):
            ...     bytes(hp.get(hp.put(b"for a while", name=ref)))
            b'for a while'
        """
        return finish(self._lease(IN_THREAD, check_ref(ref), check_timeout(timeout)))

    async def lease_async(self: Client, ref: Ref | str, *, timeout: float | None = None) -> Lease:
        """`lease`, for asyncio."""
        return await self._lease(IN_LOOP, check_ref(ref), check_timeout(timeout))

    async def _lease(self: Client, waits: Waits, text: str, limit: float | None) -> Lease:
        native = self._open()
        lease = Lease(self, text)
        try:
            await waits.answer(native.start_take_lease(text))
            # The owner has heard of the lease when it answers this, which it is asked after it.
            with contextlib.suppress(ObjectDeleted, ObjectLost):
                await waits.answer(native.start_locations(text, None, limit))
        except BaseException:
            lease.release()
            raise
        return lease

    def delete(self, refs: Ref | str | Iterable[Ref | str], *, timeout: float | None = None) -> None:
        """Deletes all copies of objects everywhere.

        Values that `get` returned stay valid; their memory is free once they are garbage. Calls that wait for a deleted
        object raise `ObjectDeleted`. A name is free at once.

        Args:
            refs: one ref or name, or several; none is fine.
            timeout: seconds to wait until the owners of the objects know.

        Examples:
            >>> ref = hp.put(b"x", name="scratch/1")
            >>> hp.delete(["scratch/1"])
            >>> ref = hp.put(b"y", name="scratch/1")
        """
        texts = check_refs(refs)
        answer(self._open().start_delete(texts, check_timeout(timeout)))

    async def delete_async(self, refs: Ref | str | Iterable[Ref | str], *, timeout: float | None = None) -> None:
        """`delete`, for asyncio.

        Asyncio:
            Cancelled, it does not wait any more; what is deleted stays deleted.
        """
        texts = check_refs(refs)
        await answer_async(self._open().start_delete(texts, check_timeout(timeout)))
