"""A ProxyStore connector that stores bytes as Hoplite objects, shared by the processes of a host.

Configure it with `ConnectorConfig(kind="hoplite.proxystore.HopliteConnector")`. It needs the extra
`proxystore`.
"""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import hoplite
from hoplite._timeouts import DEFAULT, limit
from hoplite.errors import HopliteError, InvalidArgument, NameTaken, ObjectDeleted, ObjectLost, Timeout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

# Errors that mean that an object does not exist.
GONE = (Timeout, ObjectDeleted, ObjectLost)


class HopliteKey(NamedTuple):
    """The key of an object of a connector.

    Attributes:
        name: the name of the object.
    """

    name: str


class HopliteConnector:
    """Stores bytes as Hoplite objects; implements ProxyStore's `Connector` and `DeferrableConnector`.

    Args:
        address: "unix:/path" of a node of this host, as for `hoplite.connect`. The default is the node that
            `hoplite.init()` finds: that of HOPLITE_ADDRESS, which `hoplite.dask` sets on workers, this user's node, or
            a node that `init` starts.
        prefix: prefix of the names of objects whose key exists before them, as for futures.
        timeout: seconds that `get` waits for the bytes of an existing object, and `put` for capacity. None waits
            without a limit. The default is `default_timeout` of `hoplite.init`, or 60.
        clear: whether `close` deletes the objects that this connector put.

    Raises:
        ConnectError: no node serves the address.
        InvalidArgument: an argument is not valid.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        prefix: str = "proxystore",
        timeout: float | None = DEFAULT,
        clear: bool = False,
    ) -> None:
        if not prefix or prefix.startswith("@"):
            raise InvalidArgument(f"prefix {prefix!r} is not valid: use a nonempty string that does not start with @")
        self.address = address
        self.prefix = prefix
        self.clear = clear
        self._client = hoplite.init() if address is None else hoplite.connect(address, reconnect=True)
        self.timeout = limit(timeout, self._client, otherwise=60.0)
        # The client of `init` belongs to the process, which may use it elsewhere.
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
        """Detaches from the node. Objects stay, unless `clear` is set. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            names, self._put = sorted(self._put), set()
        self._client.delete(names)
        if self._is_own:
            self._client.close()

    def config(self) -> dict[str, Any]:
        """Returns the arguments from which `from_config` creates an equal connector, also in another process."""
        return {"address": self.address, "prefix": self.prefix, "timeout": self.timeout, "clear": self.clear}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> HopliteConnector:
        """Creates a connector from the result of `config`."""
        return cls(**config)

    def evict(self, key: HopliteKey) -> None:
        """Deletes an object everywhere, if it exists. Bytes that `get` returned stay valid."""
        with self._lock:
            self._put.discard(key.name)
        self._client.delete(key.name)

    def exists(self, key: HopliteKey) -> bool:
        """Returns whether an object with this key exists."""
        try:
            return any(location.complete for location in self._client.locations(key.name, timeout=self.timeout))
        except (ObjectDeleted, ObjectLost):
            return False

    def get(self, key: HopliteKey) -> memoryview | None:
        """Returns the bytes of an object, read-only and in shared memory; None if it does not exist.

        Raises:
            Timeout: the object exists, but did not arrive in time.
        """
        try:
            return self._bytes(key.name, 0)
        except GONE:
            pass
        # The object is not on this host. The directory lists copies on other hosts.
        if not self.exists(key):
            return None
        try:
            return self._bytes(key.name, self.timeout)
        except (ObjectDeleted, ObjectLost):
            return None

    def get_batch(self, keys: Sequence[HopliteKey]) -> list[memoryview | None]:
        """Returns the bytes of several objects, in the order of their keys; see `get`."""
        return [self.get(key) for key in keys]

    def new_key(self, obj: bytes | None = None) -> HopliteKey:  # noqa: ARG002 - other connectors use it
        """Returns a key for an object that `set` creates; `obj` is ignored."""
        # The text before the last slash selects the owners of an object, so each key may have different owners.
        return HopliteKey(f"{self.prefix}/{uuid.uuid4().hex}/bytes")

    def put(self, obj: Any) -> HopliteKey:  # noqa: ANN401 - anything with bytes
        """Copies bytes into the store under a new key.

        Raises:
            StoreFull: the store had no capacity in time.
        """
        ref = self._client.put(memoryview(obj).cast("B"), timeout=self.timeout)
        return self._noted(HopliteKey(str(ref)))

    def put_batch(self, objs: Sequence[Any]) -> list[HopliteKey]:
        """Puts several objects, and returns their keys in the same order."""
        return [self.put(obj) for obj in objs]

    def set(self, key: HopliteKey, obj: Any) -> None:  # noqa: ANN401 - anything with bytes
        """Copies bytes into the store under a key from `new_key`. A second call with the same bytes does nothing.

        Raises:
            NameTaken: the key already holds different bytes, and objects are immutable. `evict` it first.
            StoreFull: the store had no capacity in time.
        """
        data = memoryview(obj).cast("B")
        try:
            self._client.put(data, name=key.name, timeout=self.timeout)
        except NameTaken:
            there = self.get(key)
            if there is None or there != data:
                raise NameTaken(f"{key.name} already holds different bytes: evict it first, or use a new key") from None
        self._noted(key)

    def _noted(self, key: HopliteKey) -> HopliteKey:
        """Records an object that `close` may have to delete; returns its key."""
        if self.clear:
            with self._lock:
                self._put.add(key.name)
        return key

    def _bytes(self, name: str, timeout: float | None) -> memoryview:
        value = self._client.get(name, timeout=timeout)
        if not isinstance(value, memoryview):
            raise HopliteError(f"{name} is a {type(value).__name__}, not bytes: use a key that a connector created")
        return value
