"""Refs: identifiers of objects that exist or will exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite._shared import DEFAULT, shared
from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite._client import Client

# The largest integer that the extension accepts, and the largest number at the end of a name.
NUMBER_MAX = 2**63 - 1


def number_of(name: str) -> int | None:
    """Returns the number at the end of a name, after the last "/"; None if there is none."""
    _, slash, last = name.rpartition("/")
    if not slash or not (last.isascii() and last.isdigit()):
        return None
    digits = last.lstrip("0")
    if len(digits) > 19 or (number := int(digits or "0")) > NUMBER_MAX:
        raise InvalidArgument(f"the number at the end of {name[:200]!r} exceeds {NUMBER_MAX}: use at most 18 digits")
    return number


class Ref:
    """Identifies one object, by an id that `put` or `reduce` generated or by a name such as "policy/17".

    A ref is immutable and hashable; refs with the same text are equal. It does not keep its object alive: an object
    exists until it is deleted. To use a ref in another process, pickle it or send `str(ref)`. Every method that takes
    a ref also takes its text.

    Args:
        text: text of the ref, as `str(ref)` returns it.
        client: client that `inputs()` and `lost()` use. Refs that a client returns have it.
    """

    __slots__ = ("_client", "_replicas", "_text")

    def __init__(self, text: str, client: Client | None = None) -> None:
        if not isinstance(text, str):
            raise InvalidArgument(f"the text of a ref must be a str, not {type(text).__name__}")
        if not text:
            raise InvalidArgument("the text of a ref is empty: use at least one character")
        self._text = text
        self._client = client
        self._replicas: int | None = None

    @property
    def replicas(self) -> int | None:
        """Number of nodes that kept a copy when the `put` or `seal` that returned this ref completed.

        It is below the requested `replicas` if the cluster has fewer nodes. It is None for refs from other sources.
        `Client.locations` lists the nodes that hold an object now.

        Examples:
            >>> hp.put(b"weights", replicas=2).replicas
            1
        """
        return self._replicas

    @property
    def number(self) -> int:
        """Number at the end of a name, such as 17 for "policy/17".

        Raises:
            InvalidArgument: the ref is not a name that ends in "/" and a number.

        Examples:
            >>> hoplite.Ref("policy/17").number
            17
        """
        number = number_of(self._text)
        if number is None:
            raise InvalidArgument(f'{self._text} does not end in "/" and a number: use a name such as "policy/17"')
        return number

    def inputs(self, timeout: float | None = DEFAULT) -> list[Ref]:
        """Returns the inputs that a reduce folded into this object. Waits until they are decided.

        Only clients of the node on which the reduce was called can query this. A ref that was unpickled, or created
        from text alone, uses the client of this process's last `hoplite.init()`.

        Args:
            timeout: seconds to wait. None waits until the inputs are decided or can no longer arrive; omitted, it is
                the `default_timeout` of the client.

        Returns:
            Exactly the `count` refs whose bytes are in the result.

        Raises:
            Timeout: fewer than `count` inputs arrived in time.
            InvalidArgument: the object is not the result of a reduce that was called on this node, or the ref has no
                client.
            ObjectDeleted: the result, or one of its inputs, was deleted.
            ObjectLost: too few inputs can still arrive.
        """
        return self._client_or_last()._inputs(self._text, timeout)

    async def inputs_async(self, timeout: float | None = DEFAULT) -> list[Ref]:  # noqa: ASYNC109 - as every verb
        """`inputs`, for asyncio."""
        return await self._client_or_last()._inputs_async(self._text, timeout)

    def lost(self, timeout: float | None = DEFAULT) -> list[Ref]:
        """Returns the inputs of the reduce that are lost now: deleted, or held only by nodes that failed.

        An input that is put again under its name is no longer lost. After the reduce has completed, the result is the
        list of inputs that were lost at that time. As with `inputs`, only clients of the node on which the reduce was
        called can query this.

        Args:
            timeout: seconds to wait for the reply of this host's node. The call does not wait for inputs.

        Returns:
            Refs of the lost inputs; none of them is in the result.

        Raises:
            InvalidArgument: as for `inputs`.
            ObjectDeleted: the result was deleted, or so many inputs that the reduce can't succeed.
            ObjectLost: so many inputs are lost that the reduce can't succeed. The message names them.
        """
        return self._client_or_last()._lost(self._text, timeout)

    async def lost_async(self, timeout: float | None = DEFAULT) -> list[Ref]:  # noqa: ASYNC109 - as every verb
        """`lost`, for asyncio."""
        return await self._client_or_last()._lost_async(self._text, timeout)

    def _client_or_last(self) -> Client:
        if self._client is not None:
            return self._client
        client = shared.last_client()
        if client is None:
            raise InvalidArgument(f"ref {self._text} has no client: create it with hoplite.Ref(text, client)")
        return client

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Ref({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[Callable[[str], Ref], tuple[str]]:
        return Ref, (self._text,)
