"""A connector of ProxyStore: the bytes of its stores are objects of Hoplite, which those of one host share.

`ConnectorConfig(kind="hoplite.proxystore.HopliteConnector")` is all that it takes. Needs ProxyStore: pip install
'hoplite-collectives[proxystore]'.
"""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import hoplite
from hoplite.errors import HopliteError, InvalidArgument, NameTaken, ObjectDeleted, ObjectLost, Timeout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

# What means that there is no such object.
GONE = (Timeout, ObjectDeleted, ObjectLost)


class HopliteKey(NamedTuple):
    """Names an object of a connector.

    Attributes:
        name: the name of the object.
    """

    name: str


class HopliteConnector:
    """Stores bytes as objects of Hoplite: ProxyStore's `Connector` and `DeferrableConnector`.

    Args:
        address: "unix:/path" of a node of this host, as for `hoplite.connect`. The default is the node that
            `hoplite.init()` finds: HOPLITE_ADDRESS, which `hoplite.dask` sets on workers, or this user's node, or else
            one that it starts.
        prefix: of the names of objects whose key comes before they do, as of futures.
        timeout: seconds that `get` waits for the bytes of an object that exists, and `put` for room; None is as long as
            it takes.
        clear: whether `close` deletes the objects that this connector has put.

    Raises:
        ConnectError: no node serves the address.
        InvalidArgument: an argument makes no sense.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        prefix: str = "proxystore",
        timeout: float | None = 60.0,
        clear: bool = False,
    ) -> None:
        if not prefix or prefix.startswith("@"):
            raise InvalidArgument(f"prefix is {prefix!r}; it is a text that does not begin with @")
        self.address = address
        self.prefix = prefix
        self.timeout = timeout
        self.clear = clear
        self._client = hoplite.init() if address is None else hoplite.connect(address, reconnect=True)
        # The client of `init` is the process's, which others may use.
        self._is_own = address is not None
        self._lock = threading.Lock()
        self._put: set[str] = set()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"HopliteConnector(address={self.address!r}, prefix={self.prefix!r})"

    def close(self) -> None:
        """Detaches from the node. Objects stay, unless they are to be cleared. Twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            names, self._put = sorted(self._put), set()
        self._client.delete(names)
        if self._is_own:
            self._client.close()

    def config(self) -> dict[str, Any]:
        """What `from_config` makes the same connector of, in another process too."""
        return {"address": self.address, "prefix": self.prefix, "timeout": self.timeout, "clear": self.clear}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> HopliteConnector:
        """Makes a connector of what `config` returned."""
        return cls(**config)

    def evict(self, key: HopliteKey) -> None:
        """Deletes an object everywhere; one that does not exist is fine. Bytes that `get` returned stay valid."""
        with self._lock:
            self._put.discard(key.name)
        self._client.delete(key.name)

    def exists(self, key: HopliteKey) -> bool:
        """Whether there is an object of this key."""
        try:
            return any(location.complete for location in self._client.locations(key.name, timeout=self.timeout))
        except (ObjectDeleted, ObjectLost):
            return False

    def get(self, key: HopliteKey) -> memoryview | None:
        """The bytes of an object, read-only and in shared memory; None if it does not exist.

        Raises:
            Timeout: it exists, and has not come in time.
        """
        try:
            return self._bytes(key.name, 0)
        except GONE:
            pass
        # It is not on this host; whether it is anywhere its owner knows.
        if not self.exists(key):
            return None
        try:
            return self._bytes(key.name, self.timeout)
        except (ObjectDeleted, ObjectLost):
            return None

    def get_batch(self, keys: Sequence[HopliteKey]) -> list[memoryview | None]:
        """The bytes of several objects, as `get` does it, in their order."""
        return [self.get(key) for key in keys]

    def new_key(self, obj: bytes | None = None) -> HopliteKey:  # noqa: ARG002 - others need it
        """A key for an object that `set` makes; `obj` makes no difference."""
        # The text before the last slash chooses the nodes that look after an object: others for each.
        return HopliteKey(f"{self.prefix}/{uuid.uuid4().hex}/bytes")

    def put(self, obj: Any) -> HopliteKey:  # noqa: ANN401 - anything with bytes
        """Copies bytes into the store under a new key.

        Raises:
            StoreFull: there was no room in time.
        """
        ref = self._client.put(memoryview(obj).cast("B"), timeout=self.timeout)
        return self._noted(HopliteKey(str(ref)))

    def put_batch(self, objs: Sequence[Any]) -> list[HopliteKey]:
        """Puts several, and returns their keys in their order."""
        return [self.put(obj) for obj in objs]

    def set(self, key: HopliteKey, obj: Any) -> None:  # noqa: ANN401 - anything with bytes
        """Copies bytes into the store under a key of `new_key`. Doing it again with the same bytes is fine.

        Raises:
            NameTaken: the key has other bytes already: an object never changes. `evict` it first.
            StoreFull: there was no room in time.
        """
        data = memoryview(obj).cast("B")
        try:
            self._client.put(data, name=key.name, timeout=self.timeout)
        except NameTaken:
            there = self.get(key)
            if there is None or there != data:
                raise NameTaken(f"{key.name} has other bytes already; evict it first, or take a new key") from None
        self._noted(key)

    def _noted(self, key: HopliteKey) -> HopliteKey:
        """Takes note of what `close` may have to delete."""
        if self.clear:
            with self._lock:
                self._put.add(key.name)
        return key

    def _bytes(self, name: str, timeout: float | None) -> memoryview:
        value = self._client.get(name, timeout=timeout)
        if not isinstance(value, memoryview):
            raise HopliteError(f"{name} is a {type(value).__name__} and no bytes: a connector has not put it")
        return value
