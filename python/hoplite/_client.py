"""The client: a process's handle to the node of its host."""

from __future__ import annotations

from hoplite._verbs.getting import Getting
from hoplite._verbs.lifetimes import Lifetimes
from hoplite._verbs.making import Making
from hoplite._verbs.overview import Overview
from hoplite._verbs.waiting import Waiting


class Client(Making, Getting, Waiting, Lifetimes, Overview):
    """A process's connection to the node of its host: `hoplite.init()`, `hoplite.connect()` or `node.client()`.

    All methods are thread-safe and release the GIL while they wait. Every `timeout` is in seconds: 0 does not wait,
    None waits until the object exists or can no longer appear. DEFAULT is the `default_timeout` of the client: no
    limit, unless that or HOPLITE_TIMEOUT is set. A call without a limit logs to the logger "hoplite" what is missing,
    first after 10 s. Ctrl-C interrupts any call. Each verb has an asyncio twin with the suffix `_async` and the same
    arguments; canceling it cancels the request.

    All methods raise `ClientClosed` after `close`, and `NodeDown` if the node has closed or failed. Calls that wait
    raise these immediately. In a forked child, a client attaches to the node again on first use. It raises
    `ForkedClient` if the node has no socket.

    If the node's process is stopped (SIGSTOP), a call with a timeout of 5 s or more raises `Timeout` when its time is
    over. A call with a shorter timeout, and `status`, raise `NodeDown` after 5 s. If the process runs but its host is
    overloaded, the client waits up to 10 s longer for a reply, which states what is missing.

    Args:
        native: connection of the compiled module.
        options: how to use the node.
        node: the node, if it is embedded in this process.
        path: path of the node's Unix socket, to which forked children attach.
    """
