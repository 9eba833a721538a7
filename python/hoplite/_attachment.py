"""A process's attachment to a node: how it ends, goes on with the next node, and begins anew in a child made by fork.

Knows no object.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from hoplite import _native, forks, values
from hoplite._loop import is_in_loop
from hoplite.errors import ClientClosed, ForkedClient, HopliteError, InvalidArgument, NodeDown, NotAllowed

if TYPE_CHECKING:
    from typing import Self

    from hoplite._shared import ClientOptions
    from hoplite.lease import Lease
    from hoplite.node import Node
    from hoplite.values import Allowed

# How long a client that may reconnect waits for the next node: in a thread, from the moment on at which it notices that
# its node is gone; in a thread that comes later; in an event loop; and between two looks.
RECONNECT_S = 10.0
LATER_S = 0.5
IN_LOOP_S = 0.02
RECONNECT_POLL_S = 0.05

# How long a forked child tries to attach to the node of its parent: in a thread, and in an event loop, which stands
# still meanwhile. The node is there, and answers in milliseconds unless its host is busy.
FORKED_S = 10.0
FORKED_IN_LOOP_S = 0.5

# What the native client says of a wait that its close ended.
CLOSED = "this client is closed; make another by hoplite.init() or node.client()"


class Attachment:
    """What `Client` inherits; its arguments are those of `Client`."""

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
        # When it noticed that its node is gone, if it has not attached to another.
        self._gone_at: float | None = None
        self._closed = False
        # Those that it has taken and not released, to be taken again at the next node.
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        # Set in a child made by fork until it has attached anew.
        self._forked = False
        forks.register(self)
        self._enter(native)

    def _use(self, native: _native.Client) -> None:
        self._native = native
        # A pickle runs code in this process: none is taken from members that have proved nothing.
        said = self._options.allow_pickle
        self._allow_pickle: Allowed = native.is_authenticated() if said is None else said

    @property
    def node(self) -> Node | None:
        """The node, if it is embedded in this process; else None."""
        return self._node

    @property
    def job(self) -> str | None:
        """The job that its objects are of, if any."""
        return self._options.job

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Detaches from the node. Objects stay, and so do values that `get` returned. Closing twice is fine.

        Calls of this client that wait in other threads, or in an event loop, raise `ClientClosed` at once.
        """
        if not self._closed:
            self._closed = True
            if not self._forked:
                self._native.close()

    def _open(self) -> _native.Client:
        if self._closed:
            raise ClientClosed(CLOSED)
        if self._forked:
            self._attach_anew()
        if self._options.reconnect and self._native.is_node_gone():
            self._reattach()
        return self._native

    def _enter(self, native: _native.Client) -> None:
        """Tells a node the job and the leases of this client."""
        if self._options.job is not None:
            native.start_join(self._options.job, True).result()
        for lease in list(self._leases):
            native.start_take_lease(lease._text).result()

    def _attached(self) -> _native.Client | None:
        """The attachment, if there is one: not of a client that is closed, or was made before a fork."""
        return None if self._closed or self._forked else self._native

    def _reattach(self) -> None:
        """Attaches to the node that takes the place of one that is gone, once it is there."""
        assert self._path is not None
        now = time.monotonic()
        if self._gone_at is None:
            self._gone_at = now
        # Nobody waits again and again for a node that does not come.
        in_thread = max(min(LATER_S, RECONNECT_S), self._gone_at + RECONNECT_S - now)
        patience = IN_LOOP_S if is_in_loop() else in_thread
        until = now + patience
        why = "another thread still looks for it"
        # Threads that come meanwhile find it attached.
        if self._reconnecting.acquire(timeout=patience):
            try:
                while self._native.is_node_gone() and not self._closed:
                    try:
                        rest = max(0.0, until - time.monotonic())
                        native = _native.connect(self._path, rest, self._options.capability)
                        self._enter(native)
                    except NotAllowed:
                        # It has expired, or the next node has another token.
                        raise
                    except HopliteError as error:
                        why = str(error)
                        if time.monotonic() >= until:
                            break
                        time.sleep(min(patience, RECONNECT_POLL_S))
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
                f"the node of {self._path} is gone, and no other serves that socket after {patience:.3g} s ({why}): "
                "start it again with hoplite node, or call hoplite.init() to find another node"
            )

    def _attach_anew(self) -> None:
        """In a child made by fork: nothing of the parent's attachment can be used, but its node can."""
        if self._path is None:
            raise ForkedClient(
                "the node is embedded in the parent of this process and has no socket to attach to; start it with one, "
                "or run hoplite.init(node=hoplite.Node()) here"
            )
        try:
            patience = FORKED_IN_LOOP_S if is_in_loop() else FORKED_S
            native = _native.connect(self._path, patience, self._options.capability)
            self._enter(native)
        except HopliteError as error:
            raise ForkedClient(
                f"this process was forked and can't attach to the node of its parent ({error}): call hoplite.init() "
                "here to find another node or to start one, or run hoplite node before the fork"
            ) from None
        self._use(native)
        self._node = None
        # A thread of the parent may have held it.
        self._reconnecting = threading.Lock()
        self._gone_at = None
        self._forked = False

    def _decode(self, view: _native.View, copy: bool) -> Any:  # noqa: ANN401 - any value
        return values.decode(view, copy=copy, allow_pickle=self._allow_pickle)

    def _discard(self, text: str) -> None:
        """Deletes an object whose ref no caller has: its task was cancelled as it came to be."""
        try:
            self._open().start_delete([text], 10.0)
        except HopliteError:
            # The node is gone, and with it the object.
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
            "a client can't be sent to another process: send refs, and call hoplite.init() or hoplite.connect() there"
        )

    def __repr__(self) -> str:
        where = f"node {self._node.id}" if self._node is not None else "attached"
        return f"<hoplite.Client {'closed' if self._closed else where}>"
