"""A process's attachment to a node: its end, its reconnect to the next node, and its renewal in a forked child.

Does not know objects.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from hoplite import _native, forks, values
from hoplite._arguments import check_timeout, left
from hoplite._loop import is_in_loop
from hoplite._shared import DEFAULT
from hoplite.errors import ClientClosed, ForkedClient, HopliteError, InvalidArgument, NodeDown, NotAllowed

if TYPE_CHECKING:
    from typing import Self

    from hoplite._shared import ClientOptions
    from hoplite.lease import Lease
    from hoplite.node import Node
    from hoplite.values import Allowed

# How long a client with `reconnect` waits for the next node: in a thread, counted from when it detects that its node is
# gone; at least, in a later call; in an event loop, and at least, in a call with a timeout above 0. The last is the
# interval between two attempts.
RECONNECT_S = 10.0
LATER_S = 0.5
IN_LOOP_S = 0.02
RECONNECT_POLL_S = 0.05

# How long a forked child tries to attach to the node of its parent: in a thread, and in an event loop, which is blocked
# meanwhile. The node is running, and replies within milliseconds unless its host is busy.
FORKED_S = 10.0
FORKED_IN_LOOP_S = 0.5

# The compiled module raises the same message for a wait that `close` ended.
CLOSED = "this client is closed: create another with hoplite.init() or node.client()"


class Attachment:
    """Base class of `Client`, with the same arguments."""

    def __init__(
        self,
        native: _native.Client,
        options: ClientOptions,
        *,
        node: Node | None = None,
        path: str | None = None,
    ) -> None:
        self._options = options
        self._node = node
        self._path = path
        self._use(native)
        self._reconnecting = threading.Lock()
        # When it detected that its node is gone; None while attached.
        self._gone_at: float | None = None
        self._closed = False
        # Leases to take again at the next node.
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        # Set in a forked child until it has attached again.
        self._forked = False
        forks.register(self)
        self._enter(native)

    def _use(self, native: _native.Client) -> None:
        self._native = native
        # A pickle runs code in this process. By default, only authenticated members may send one.
        allowed = self._options.allow_pickle
        self._allow_pickle: Allowed = native.is_authenticated() if allowed is None else allowed

    @property
    def node(self) -> Node | None:
        """The node, if it is embedded in this process; else None."""
        return self._node

    @property
    def socket(self) -> str | None:
        """Path of the Unix socket of its node, for `hoplite.connect`."""
        return self._path

    @property
    def job(self) -> str | None:
        """The job that marks its objects, if any."""
        return self._options.job

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Detaches from the node. Objects, and values that `get` returned, stay. A second call does nothing.

        Calls of this client that wait in other threads, or in an event loop, raise `ClientClosed` immediately.
        """
        if not self._closed:
            self._closed = True
            if not self._forked:
                self._native.close()

    def _limit(self, timeout: float | None) -> float | None:
        """Returns the seconds that a call may take, None for no limit; an omitted timeout is that of the client."""
        return self._options.timeout if timeout is DEFAULT else check_timeout(timeout)

    def _open(self) -> _native.Client:
        """Returns the attachment, for a request without a timeout."""
        return self._open_within(None)[0]

    def _open_within(self, limit: float | None) -> tuple[_native.Client, float | None]:
        """Returns the attachment, and the rest of a call's timeout after the reconnect, if one is needed."""
        if self._closed:
            raise ClientClosed(CLOSED)
        if self._forked:
            self._attach_anew()
        if self._options.reconnect and self._native.is_node_gone():
            begun = time.monotonic()
            self._reattach(limit)
            limit = left(limit, begun)
        return self._native, limit

    def _enter(self, native: _native.Client) -> None:
        """Registers the job and the leases of this client at a node."""
        if self._options.job is not None:
            native.start_join(self._options.job).result()
        for lease in list(self._leases):
            native.start_acquire_lease(lease._text).result()

    def _attached(self) -> _native.Client | None:
        """The attachment; None if the client is closed, or is inherited by a fork and not attached again."""
        return None if self._closed or self._forked else self._native

    def _reattach(self, call_limit: float | None) -> None:
        """Waits for the node that replaces one that is gone, and attaches to it."""
        assert self._path is not None
        now = time.monotonic()
        if self._gone_at is None:
            self._gone_at = now
        # Later calls wait for less time, so that they do not all wait for a node that never starts.
        in_thread = max(min(LATER_S, RECONNECT_S), self._gone_at + RECONNECT_S - now)
        limit = IN_LOOP_S if is_in_loop() else in_thread
        # A timeout of 0 requests the present state of objects, which only a node knows.
        if call_limit:
            limit = min(limit, max(call_limit, IN_LOOP_S))
        until = now + limit
        why = "another thread is still reconnecting"
        # Other threads wait here, and then find the client attached.
        if self._reconnecting.acquire(timeout=limit):
            try:
                while self._native.is_node_gone() and not self._closed:
                    try:
                        rest = max(0.0, until - time.monotonic())
                        native = _native.connect(self._path, rest, self._options.capability)
                        self._enter(native)
                    except NotAllowed:
                        # The capability has expired, or the next node has another token.
                        raise
                    except HopliteError as error:
                        why = str(error)
                        if time.monotonic() >= until:
                            break
                        time.sleep(min(limit, RECONNECT_POLL_S))
                    else:
                        self._use(native)
                        self._gone_at = None
            finally:
                self._reconnecting.release()
        if self._closed:
            self._native.close()
            raise ClientClosed(CLOSED)
        if self._native.is_node_gone():
            raise NodeDown(
                f"the node at {self._path} is gone, and no other node served that socket within {limit:.3g} s ({why}): "
                "start it again with hoplite node, or call hoplite.init() to find another node"
            )

    def _attach_anew(self) -> None:
        """Attaches a forked child to the node of its parent. The parent's attachment is not usable here."""
        if self._path is None:
            raise ForkedClient(
                "the node is embedded in the parent of this process and has no socket: start it with a socket, or call "
                "hoplite.init(node=hoplite.Node()) here"
            )
        try:
            limit = FORKED_IN_LOOP_S if is_in_loop() else FORKED_S
            native = _native.connect(self._path, limit, self._options.capability)
            self._enter(native)
        except HopliteError as error:
            raise ForkedClient(
                f"this forked process can't attach to the node of its parent ({error}): call hoplite.init() here to "
                "find another node or to start one, or run hoplite node before the fork"
            ) from None
        self._use(native)
        self._node = None
        # A thread of the parent may have held the lock at the fork.
        self._reconnecting = threading.Lock()
        self._gone_at = None
        self._forked = False

    def _decode(self, view: _native.View, copy: bool) -> Any:  # noqa: ANN401 - any value
        return values.decode(view, copy=copy, allow_pickle=self._allow_pickle)

    def _discard(self, text: str) -> None:
        """Deletes an object whose ref no caller has, because the task was canceled while it was created."""
        try:
            self._open().start_delete([text], 10.0)
        except HopliteError:
            # The node is gone, and the object with it.
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise InvalidArgument(
            "a client can't be pickled: send refs to the other process, and call hoplite.init() or hoplite.connect() "
            "there"
        )

    def __repr__(self) -> str:
        where = f"node {self._node.id}" if self._node is not None else "attached"
        return f"<hoplite.Client {'closed' if self._closed else where}>"
