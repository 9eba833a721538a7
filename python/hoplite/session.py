"""Functions that find or start the node of a process: `init`, `connect`, `client` and `shutdown`.

`init` looks for a node and starts one if there is none. `connect` attaches to a given node. Does not know objects.
"""

from __future__ import annotations

import atexit
import time
from typing import TYPE_CHECKING

from hoplite import _native, capabilities, log, settings, sockets
from hoplite._arguments import a_type, check_default_timeout, check_job, check_text, check_timeout, left
from hoplite._client import Client
from hoplite._shared import ClientOptions, shared
from hoplite.errors import (
    AddressInUse,
    ConnectError,
    ForkedClient,
    HopliteError,
    InvalidArgument,
    NodeDown,
)
from hoplite.node import Node, silence_daemons
from hoplite.settings import LOCAL, UNIX

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from hoplite.settings import Values

# A node that was found can leave before this process attaches to it; give up after this many in a row.
ATTEMPTS = 5


def init(
    address: str | None = None,
    *,
    timeout: float | None = 10.0,
    job: str | None = None,
    allow_pickle: bool | Iterable[str] | None = None,
    reconnect: bool = True,
    capability: str | os.PathLike[str] | None = None,
    digest: bool | None = None,
    default_timeout: float | None = None,
    node: Node | None = None,
) -> Client:
    """Attaches this process to a node; starts an embedded node if there is none.

    Without `address` and `node`, the first of these that exists is used:

    1. the address in the settings (HOPLITE_ADDRESS);
    2. in a Ray worker process, the node that `hoplite.ray.start` runs for its Ray node;
    3. in a Slurm job, the node of that job on this host;
    4. this user's node on this host (`hoplite node`);
    5. a node that another process of this user, or of the Slurm job, has embedded;
    6. a new embedded node, which takes its settings from the environment and from the file in HOPLITE_CONFIG.

    An embedded node serves a socket of its own, so that later scripts find it and `hoplite node` can still start. If
    several processes call `init` at once, one starts the node and the others attach to it. The node leaves when the
    process ends, also by SIGTERM (see `Node`), on `hoplite.shutdown()`, or on `client.node.close()`.

    An argument that is None is read from the environment or the settings file; docs/settings.md lists them.

    Args:
        address: "local" waits for this host's node and never starts one. "unix:/path" waits for the node that serves
            this socket. "host:port" starts an embedded node that joins that cluster; separate several addresses by
            commas and put an IPv6 address in brackets.
        timeout: seconds to wait for a node that should be running, for its reply, and for another process that is
            starting one. None waits without limit.
        job: name that marks all objects this client creates, such as "run-7". All objects of a job are deleted 5 s
            after its last client closes or dies. A client that joins the job within these 5 s prevents that. Values
            that `get` returned stay valid. The default is HOPLITE_JOB, or no job.
        allow_pickle: whether this client may put and get values that need pickle, or a list of the classes and
            functions that pickles may use, as ["mypackage.*", "datetime.datetime"]. The default is True if every node
            that can put is authenticated: the node has no TCP port, or its cluster uses a token or certificates with
            encryption.
        reconnect: whether to attach to the next node on the same socket after the node's process ends. Calls in
            progress raise `NodeDown`. The next call waits for a new node until its timeout, for at most 10 s after the
            end was detected; in an event loop it does not wait. A timeout of 0 limits waits for objects, not this one.
            Objects that only the old node held are lost; other refs stay valid. With False every later call raises
            `NodeDown`.
        capability: path or text of a capability that restricts this client, created by `hoplite token grant`. The
            default is HOPLITE_CAPABILITY, or no restriction. It requires a running node.
        digest: whether `put` announces the SHA-256 of the bytes of each object. Every node that receives the object
            verifies it before `get` returns, and fetches from another node on a mismatch. The default is
            HOPLITE_DIGEST, or False. docs/security.md states what this detects and what it costs.
        default_timeout: timeout in seconds of every call of this client, and of the integrations, without `timeout=`;
            such a call with `timeout=None` waits without limit. The default is HOPLITE_TIMEOUT, or no limit.
        node: a `Node` in this process to use. `hoplite.shutdown()` closes it.

    Returns:
        A client. `client.node` is the node if it is embedded in this process.

    Raises:
        ConnectError: no node served the socket, or this host, in time; or a capability is given and no node runs.
        InvalidArgument: the address is not valid, `node` is combined with an address or a capability, or the running
            node belongs to another cluster than HOPLITE_CLUSTER.
        JoinError: no node at the given addresses replied.
        NodeDown: `node` is closed.
        NotAllowed: the node rejects the capability, or requires one.

    Examples:
        >>> hp = hoplite.init(node=hoplite.Node(capacity="64MiB"))
        >>> hp.status()["store"]["capacity"] // 2**20
        64
    """
    given: dict[str, object] = {
        "address": address,
        "allow_pickle": allow_pickle,
        "job": job,
        "capability": capability,
        "digest": digest,
    }
    if node is not None and not isinstance(node, Node):
        raise InvalidArgument(f"node must be a hoplite.Node, not {a_type(node)}: write init(node=hoplite.Node(...))")
    given |= {"timeout": check_default_timeout(default_timeout), "config": None if node is None else node._config}
    values = settings.load_arguments(given)
    limit = check_timeout(timeout)
    log.start(values["log_level"], values["log_format"])
    with shared.lock:
        options = _options(values, reconnect=reconnect)
        if node is None:
            return _find(values, options, limit)
        return _use(node, values, options, address)


def connect(
    address: str,
    *,
    timeout: float | None = 10.0,
    job: str | None = None,
    allow_pickle: bool | Iterable[str] | None = None,
    reconnect: bool = True,
    capability: str | os.PathLike[str] | None = None,
    digest: bool | None = None,
    default_timeout: float | None = None,
) -> Client:
    """Attaches this process to a given node of this host.

    Unlike `init`, it never starts a node, and `hoplite.client()` does not return this client.

    Args:
        address: "unix:" and the path of the node's socket, or the path alone.
        timeout: seconds to wait until a node serves the socket and replies. None waits without limit.
        job: name that marks the objects of this client, as in `init`; but HOPLITE_JOB has no effect.
        allow_pickle: as in `init`.
        reconnect: as in `init`.
        capability: as in `init`.
        digest: as in `init`.
        default_timeout: as in `init`.

    Raises:
        ConnectError: no node served that socket in time.
        HopliteError: this process has no file descriptors left.
        InvalidArgument: the address is not a socket path, or the capability is not valid.
        NotAllowed: the node rejects the capability, or requires one.
    """
    text = check_text("address", address)
    path = text.removeprefix(UNIX)
    if not path or (path == text and not path.startswith(("/", "."))):
        raise InvalidArgument(
            f'address {text!r} is not a socket path: write "unix:/path"; hoplite.init(address) accepts other addresses'
        )
    bound = check_default_timeout(default_timeout)
    values = settings.load(allow_pickle=allow_pickle, capability=capability, digest=digest, timeout=bound)
    options = _options(values, job=check_job(job), reconnect=reconnect)
    limit, begun = check_timeout(timeout), time.monotonic()
    while True:
        path = sockets.wait_for([path], left(limit, begun))
        try:
            return _attach(path, left(limit, begun), options)
        except (ConnectError, NodeDown):
            # The node ended before this process attached: wait for the next one.
            if sockets.is_served(path):
                raise


def client(*, start: bool = True) -> Client:
    """Returns the client that this process shares: the one of the last `init`.

    Calls `init` if there is no such client or it is closed. In a child made by fork it returns a new client, attached
    to the node that the parent used.

    Args:
        start: whether `init` may start a node if none runs on this host and no address is configured, or wait for one
            if the address is "local".

    Raises:
        ConnectError: `start` is False and there is no node.
        ForkedClient: in a child made by fork, if the parent's node is gone.
        HopliteError: any error of `init`.

    Examples:
        >>> hoplite.client() is hoplite.client()
        True
    """
    found = shared.last_client()
    if found is not None:
        return found
    with shared.lock:
        # Another thread may have called `init` meanwhile.
        found = shared.last_client()
        if found is not None:
            return found
        path = shared.inherited
        if path is None:
            is_free = start or settings.load(address=None)["address"] not in (None, LOCAL)
            return init() if is_free else init(LOCAL, timeout=0)
        try:
            return shared.keep(_attach(path, 10.0, shared.options), path, shared.options)
        except ConnectError:
            raise ForkedClient(
                f"this process was forked from one whose node, {UNIX}{path}, is gone: call hoplite.init() here to find "
                "another node or to start one, or run hoplite node before the fork"
            ) from None


def shutdown() -> None:
    """Closes the client that the process shares and every node that `init` started or was given.

    A node hands over the objects that only it holds, within the setting `leave_timeout`. A later `init` starts anew.
    Without a client or a node this does nothing.
    """
    with shared.lock:
        found, nodes, timeout = shared.client, shared.nodes, shared.leave_timeout
        shared.client = shared.path = shared.node = None
        shared.nodes = []
        # A forked child that calls this must not attach to its parent's node either.
        shared.inherited = None
    if found is not None:
        found.close()
    for node in reversed(nodes):
        node.close(timeout)


def _options(values: Values, *, reconnect: bool, job: str | None = None) -> ClientOptions:
    capability = values["capability"]
    return ClientOptions(
        allow_pickle=values["allow_pickle"],
        job=check_job(values["job"]) if "job" in values else job,
        reconnect=reconnect,
        capability=None if capability is None else capabilities.text_of(capability),
        digest=values["digest"],
        timeout=check_timeout(values["timeout"]),
    )


def _use(node: Node, values: Values, options: ClientOptions, address: str | None) -> Client:
    """Makes a node of the caller the shared node of the process."""
    if address is not None:
        raise InvalidArgument(
            f"both address ({address!r}) and node are given: to join a cluster, write "
            f"init(node=hoplite.Node(join=[{address!r}]))"
        )
    if options.capability is not None:
        raise InvalidArgument(
            f"a capability ({values.origin('capability')}) restricts clients of a node in another process, but node "
            "runs in this process: omit the capability or node"
        )
    found = node._client(options)
    _adopt(node, node._leave_timeout)
    return shared.keep(found, node.socket, options)


def _find(values: Values, options: ClientOptions, limit: float | None) -> Client:
    """Finds or starts the node that the settings of `init` describe."""
    address: str | None = values["address"]
    is_path = address is not None and address.startswith(UNIX)
    is_local = address == LOCAL

    def attached(path: str) -> Client:
        found = _attach(path, limit, options)
        try:
            _check_cluster(found, values, path)
        except HopliteError:
            found.close()
            raise
        return shared.keep(found, path, options)

    if address is not None and is_path:
        return attached(sockets.wait_for([address.removeprefix(UNIX)], limit))
    if is_local:
        return attached(sockets.wait_for(sockets.host_sockets(values["socket"]), limit))

    join = [] if address is None else [part.strip() for part in address.split(",")]
    inherited = shared.inherited
    if options.capability is not None:
        # A node in this process would not restrict its own process.
        if join:
            raise InvalidArgument(
                f"a capability ({values.origin('capability')}) restricts clients of a running node, but the address "
                f"{address!r} starts a new one: omit the capability or the address"
            )
        if inherited is not None and sockets.is_served(inherited):
            return attached(inherited)
        return attached(sockets.find(values["socket"]) or values["socket"] or str(sockets.default_socket()))
    own = shared.own()
    if own is not None:
        if join and own._native.address not in join and not set(join) <= set(own._seeds):
            raise InvalidArgument(
                f"this process already has a node ({own._where}), which did not join {','.join(join)}: call "
                "hoplite.shutdown() first"
            )
        found = own._client(options)
        _check_cluster(found, values, own.socket)
        return shared.keep(found, own.socket, options)
    if join:
        node = _start(values, {"join": join})
        return shared.keep(node._client(options), node.socket, options)

    if inherited is not None and sockets.is_served(inherited):
        return attached(inherited)
    # Wait for Ray's node even if it is not serving yet: an embedded node would be alone.
    of_ray = sockets.raylet_socket()
    if of_ray is not None and of_ray.exists() and values["socket"] is None:
        return attached(str(of_ray))
    return _meet(values, options, limit, attached)


def _meet(values: Values, options: ClientOptions, limit: float | None, attached: Callable[[str], Client]) -> Client:
    """Attaches to this host's node, or starts it, while other processes do the same."""
    for attempt in range(ATTEMPTS):
        # A node that is still joining listens at its socket already. The lock is free once it has joined or failed.
        with sockets.needs_descriptors("look for this host's node"), sockets.one_at_a_time(limit):
            path = sockets.find(values["socket"])
            if path is None:
                sockets.warn_of_a_missing_folder()
                embedded = str(sockets.embedded_socket(values["socket"]))
                try:
                    node = _start(values, {"socket": embedded})
                except (AddressInUse, InvalidArgument):
                    # A process that does not take the lock can have taken the path meanwhile.
                    if not sockets.is_served(embedded):
                        raise
                    path = embedded
                else:
                    return shared.keep(node._client(options), embedded, options)
        try:
            return attached(path)
        except (ConnectError, NodeDown):
            # The node left before this process attached: look again.
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(0.05 * attempt)
    raise AssertionError("the last attempt returns or raises")


def _start(values: Values, changed: dict[str, object]) -> Node:
    """Starts an embedded node, which leaves when the process ends."""
    own_socket = {"socket": None, **changed}
    node = Node._embedded(values.replaced(own_socket), sockets.embedded_socket(values["socket"]))
    _adopt(node, values["leave_timeout"])
    return node


def _adopt(node: Node, leave_timeout: float) -> None:
    """Makes a node the shared node of the process, which `shutdown` closes."""
    shared.node, shared.leave_timeout = node, leave_timeout
    shared.nodes = [*(other for other in shared.nodes if not other.closed and other is not node), node]


def _attach(path: str, timeout: float | None, options: ClientOptions) -> Client:
    with sockets.needs_descriptors(f"attach to {path}"):
        if not sockets.is_served(path):
            advice = ": a capability requires a running node; start it with hoplite node" if options.capability else ""
            raise ConnectError(f"no node serves {path}{advice}")
        native = _native.connect(path, timeout, options.capability)
    return Client(native, options, path=path)


def _check_cluster(found: Client, values: Values, path: str) -> None:
    if values.is_set("cluster"):
        advice = "unset the cluster, or start a node of your own with init(node=hoplite.Node())"
        values.check_cluster(found.status()["cluster"], path, advice)


def _at_exit() -> None:
    if not shared.nodes:
        return
    silence_daemons()
    for node in reversed(shared.nodes):
        try:
            node.close(shared.leave_timeout)
        except HopliteError:
            # The process is ending; other nodes report what was lost.
            continue


atexit.register(_at_exit)
