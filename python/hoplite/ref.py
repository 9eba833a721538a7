"""A ref: what a user holds of an object that exists, or will."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite._shared import shared
from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite._client import Client

# The largest that the extension takes, and the largest number at the end of a name.
NUMBER_MAX = 2**63 - 1


def number_of(name: str) -> int | None:
    """The number at the end of a name, after a "/"; None if it ends in something else."""
    _, slash, last = name.rpartition("/")
    if not slash or not (last.isascii() and last.isdigit()):
        return None
    digits = last.lstrip("0")
    if len(digits) > 19 or (number := int(digits or "0")) > NUMBER_MAX:
        raise InvalidArgument(f"the number at the end of {name[:200]!r} is above {NUMBER_MAX}: use at most 18 digits")
    return number


class Ref:
    """Names one object: by an id that `put` or `reduce` minted, or by a name such as "policy/17".

    A ref is immutable, hashable and equal to another of the same text, and holds nothing in the store: an object lives
    until it is deleted, not until its refs are gone. Pickle it, or send `str(ref)`, to use it in another process;
    wherever a ref is accepted, its text is too.

    Args:
        text: the text of a ref, as `str(ref)` gives it.
        client: answers `inputs()` and `lost()`; refs that a client returns have it.
    """

    __slots__ = ("_client", "_replicas", "_text")

    def __init__(self, text: str, client: Client | None = None) -> None:
        if not isinstance(text, str):
            raise InvalidArgument(f"the text of a ref is a str, not a {type(text).__name__}")
        if not text:
            raise InvalidArgument("the text of a ref is empty")
        self._text = text
        self._client = client
        self._replicas: int | None = None

    @property
    def replicas(self) -> int | None:
        """How many nodes kept a copy of the object when the `put` or `seal` that returned this ref was done.

        It is below the requested `replicas` if the cluster has fewer nodes. None for a ref from elsewhere; `locations`
        lists the nodes that hold an object now.

        Examples:
            >>> hp.put(b"weights", replicas=2).replicas
            1
        """
        return self._replicas

    @property
    def number(self) -> int:
        """The number at the end of a name: 17 of "policy/17".

        Raises:
            InvalidArgument: the ref is no name that ends in "/" and a number.

        Examples:
            >>> hoplite.Ref("policy/17").number
            17
        """
        number = number_of(self._text)
        if number is None:
            raise InvalidArgument(f'{self._text} does not end in a number, as "policy/17" does')
        return number

    def inputs(self, timeout: float | None = None) -> list[Ref]:
        """Tells which inputs a reduce folded into this object; waits until that is decided.

        Only the node that called the reduce knows. A ref that was unpickled, or made from text alone, uses the client
        of this process's last `hoplite.init()`.

        Args:
            timeout: seconds to wait; None waits as long as the inputs can still arrive.

        Returns:
            Exactly the refs whose bytes are in the result, `count` of them.

        Raises:
            Timeout: fewer than `count` inputs have arrived in time.
            InvalidArgument: the object is no result of a reduce that this node called, or no client is known to ask.
            ObjectDeleted: the result, or an input of it, was deleted.
            ObjectLost: too few inputs can still arrive.
        """
        return self._asked()._inputs(self._text, timeout)

    async def inputs_async(self, timeout: float | None = None) -> list[Ref]:  # noqa: ASYNC109 - as every verb
        """`inputs`, for asyncio."""
        return await self._asked()._inputs_async(self._text, timeout)

    def lost(self, timeout: float | None = None) -> list[Ref]:
        """Tells which inputs of the reduce that makes this object can't come any more, as far as is known now.

        Those that are lost with the last node that held them, or were deleted. One that is put again under its name
        is not lost any more. After the reduce, these are the inputs that were lost when it was over.

        Only the node that called the reduce knows; see `inputs`.

        Args:
            timeout: seconds to wait for this host's node; the inputs are not waited for.

        Returns:
            Refs of inputs, none of which is in the result.

        Raises:
            InvalidArgument: as `inputs`.
            ObjectDeleted: the result, or so many inputs that the reduce can't succeed, were deleted.
            ObjectLost: so many inputs are lost that the reduce can't succeed; the message names them.
        """
        return self._asked()._lost(self._text, timeout)

    async def lost_async(self, timeout: float | None = None) -> list[Ref]:  # noqa: ASYNC109 - as every verb
        """`lost`, for asyncio."""
        return await self._asked()._lost_async(self._text, timeout)

    def _asked(self) -> Client:
        if self._client is not None:
            return self._client
        client = shared.last_client()
        if client is None:
            raise InvalidArgument(f"{self._text} has no client to ask: make the ref by hoplite.Ref(text, client)")
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
