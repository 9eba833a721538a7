"""A client: what a process holds to use the node of its host."""

from __future__ import annotations

from hoplite._verbs.getting import Getting
from hoplite._verbs.lifetimes import Lifetimes
from hoplite._verbs.making import Making
from hoplite._verbs.overview import Overview


class Client(Making, Getting, Lifetimes, Overview):
    """A process's attachment to the node of its host, by `hoplite.init()`, `hoplite.connect()` or `node.client()`.

    All methods may be called from several threads at once and release the GIL while they wait. Every `timeout` is in
    seconds: 0 asks without waiting, None waits as long as the awaited thing can still come to exist. A `get`
    without a timeout tells the log "hoplite" now and then what it waits for. Ctrl-C ends any of them. Each verb has a
    twin for asyncio with the suffix `_async`, which takes the same arguments; cancelling it takes back what it asked
    for.

    Any method raises `NodeDown` once the client is closed, or the node has closed or died; one that waits does so at
    once. In a child made by fork a client attaches anew when it is first used, and raises `ForkedClient` if the
    parent's node has no socket. If the node's process is stopped, a call with a timeout ends at that time with
    `Timeout`, or after 5 s with `NodeDown` if that is later. So does `status`, which takes no timeout. A
    node that is not stopped may answer up to 10 s later than that, as on a busy host: its answer says what is missing.

    Args:
        native: the attachment itself.
        options: how to use the node.
        node: the node, where it is embedded in this process.
        path: the Unix socket of the node, for a child to attach to.
    """
