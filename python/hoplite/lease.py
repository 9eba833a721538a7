"""Leases: an object with leases is deleted after its last lease ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite.errors import HopliteError
from hoplite.ref import Ref

if TYPE_CHECKING:
    from typing import Self

    from hoplite._client import Client


class Lease:
    """A client's lease of an object, from `Client.lease`. A `with` statement releases it at the end of the block.

    The lease also ends when its client closes, or when the process or the node of the client ends. A forked child has
    its own lease once it has used its client.

    Examples:
        >>> lease = hp.lease(hp.put(b"leased"))
        >>> lease.release()

    Args:
        client: client that takes the lease.
        text: text of the object's ref.
    """

    def __init__(self, client: Client, text: str) -> None:
        self._client = client
        self._text = text
        self._is_taken = True
        client._leases.add(self)

    @property
    def ref(self) -> Ref:
        """The ref of the object."""
        return Ref(self._text, self._client)

    @property
    def released(self) -> bool:
        """Whether the lease was released or its client was closed."""
        return not self._is_taken or self._client.closed

    def release(self) -> None:
        """Releases the lease, without waiting. A second call does nothing."""
        if not self._is_taken:
            return
        self._forget()
        native = self._client._attached()
        if native is not None:
            try:
                native.start_release_lease(self._text)
            except HopliteError:
                # The client was closed meanwhile, or its node is gone. Either ends the lease.
                return

    def _forget(self) -> None:
        """Marks the lease as released without a request to the node."""
        self._is_taken = False
        self._client._leases.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_is_taken", False):
            self.release()

    def __repr__(self) -> str:
        return f"<hoplite.Lease {self._text}{', released' if self.released else ''}>"
