"""How a script finds its node: `init` looks around, `connect` is told; and the client that the process shares."""

from __future__ import annotations

import atexit
import socket
import time
from typing import TYPE_CHECKING

from hoplite import _native, capabilities, log, settings, sockets
from hoplite._arguments import check_job, check_text, check_timeout
from hoplite._shared import ClientOptions, shared
from hoplite.addresses import split_address
from hoplite.client import Client
from hoplite.errors import AddressInUse, ConnectError, ForkedClient, HopliteError, InvalidArgument, NodeDown
from hoplite.node import Node, silence_daemons
from hoplite.settings import LOCAL, UNIX

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from hoplite.settings import Values

# A node that we saw can be gone when we attach; one that comes and goes this often is none.
ATTEMPTS = 5


def init(
    address: str | None = None,
    *,
    embedded: bool = False,
    timeout: float | None = 10.0,
    listen: str | None = None,
    advertise: str | None = None,
    rack: str | None = None,
    topology: str | os.PathLike[str] | None = None,
    topology_host: str | None = None,
    capacity: int | str | None = None,
    spill: str | os.PathLike[str] | None = None,
    spill_limit: int | str | None = None,
    spill_keep: bool | None = None,
    cluster: str | None = None,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    ca: str | os.PathLike[str] | None = None,
    crl: str | os.PathLike[str] | None = None,
    insecure: bool | None = None,
    config: str | os.PathLike[str] | None = None,
    allow_pickle: bool | Iterable[str] | None = None,
    reconnect: bool = True,
    job: str | None = None,
    cleanup: bool = True,
    capability: str | os.PathLike[str] | None = None,
) -> Client:
    """Attaches this process to a node, and starts one here if there is none.

    Looks, in this order, at `address` or else the settings' (HOPLITE_ADDRESS); in a worker process of Ray, at the node
    that `hoplite.ray.start` runs for its Ray node; at this user's node on this host, in a Slurm job first at that of
    the job; at a node that another process of this user, or of the job, has embedded; and starts an embedded node
    otherwise. That one has a socket beside the one of the host's node, so that the next script finds it, and `hoplite
    node` can still start; of several that look at once, one starts it and the others attach. It leaves at the end of
    the process, by `hoplite.shutdown()`, or by `client.node.close()`.

    An argument that is None is looked for in the environment and in a file, as docs/settings.md says.

    Args:
        address: "local" waits for the node of this host, and starts none; "unix:/path" waits for the node there;
            "host:port" (several with commas, an IPv6 address in brackets) starts an embedded node that joins that
            cluster.
        embedded: start a node of one's own even if one runs on this host.
        timeout: seconds to wait for a node that is to be there, for its answer, and for another process that is
            starting one; None waits as long as that takes.
        listen: of an embedded node, as for `Node`; the default is a free port that the cluster which it joins can
            reach, and no port if it is to join none.
        advertise: of an embedded node, as for `Node`.
        rack: of an embedded node, as for `Node`.
        topology: of an embedded node, as for `Node`.
        topology_host: of an embedded node, as for `Node`.
        capacity: of an embedded node, as for `Node`.
        spill: of an embedded node, as for `Node`.
        spill_limit: of an embedded node, as for `Node`.
        spill_keep: of an embedded node, as for `Node`.
        cluster: of an embedded node, as for `Node`; a running node must be of that cluster.
        token: of an embedded node, as for `Node`.
        token_file: of an embedded node, as for `Node`.
        certificate: of an embedded node, as for `Node`.
        key: of an embedded node, as for `Node`.
        ca: of an embedded node, as for `Node`.
        crl: of an embedded node, as for `Node`.
        insecure: of an embedded node, as for `Node`.
        config: a TOML file of settings.
        allow_pickle: whether the client may put and get values that need pickle, or the names of the classes and
            functions that pickles may use, as ["mypackage.*", "datetime.datetime"]. The default is whether all who
            may put have proved who they are: true for a node without a TCP port, and in a cluster with a token that is
            not plain.
        reconnect: when the node, in another process, is gone: calls under way raise `NodeDown`, and the next one
            attaches to the node that serves the same socket by then. Calls wait for that one until 10 s after the end
            of the old one was noticed, or in an event loop not at all. Objects that the old node alone held are lost;
            refs of others go on to be good. False has every later call raise `NodeDown`.
        job: a name, such as "run-7": what the objects that this client makes are of. The default is HOPLITE_JOB, or
            none.
        cleanup: delete all objects of the job, wherever they are, 5 s after its last client has closed or died, or its
            node has. A client that begins within these 5 s goes on with them; values that `get` returned stay valid.
            Without it the job only names them in `objects`.
        capability: what the client may do, as the path of a file that `hoplite token grant` has made, or its text; the
            default is the file that HOPLITE_CAPABILITY_FILE names, or else everything. It is for a node that runs
            already: with one no node is started.

    Returns:
        A client; `client.node` is the node if it is embedded in this process.

    Raises:
        ConnectError: no node came to serve the given socket, or this host, in time; or none runs, and there is a
            capability.
        InvalidArgument: the address is not understood, options of an embedded node are given where a running node is
            used, or the running node is of another cluster.
        JoinError: no node at the given address answered.
        NotAllowed: the node does not take the capability, or takes no client without one.
    """
    values = settings.load_arguments(locals())
    limit = check_timeout(timeout)
    log.start(values["log"])
    text = _capability(capability, values)
    options = ClientOptions(values["allow_pickle"], check_job(values["job"]), cleanup, reconnect, text)
    with shared.lock:
        shared.options = options
        return _find(values, embedded, limit)


def connect(
    address: str,
    *,
    timeout: float | None = 10.0,
    allow_pickle: bool | Iterable[str] | None = None,
    reconnect: bool = True,
    job: str | None = None,
    cleanup: bool = True,
    capability: str | os.PathLike[str] | None = None,
) -> Client:
    """Attaches this process to a node of this host.

    Args:
        address: "unix:" and the path of the node's socket, or the path alone.
        timeout: seconds to wait for a node to serve the socket, and then for its answer; None waits as long as that
            takes.
        allow_pickle: whether the client may put and get values that need pickle, or which ones; see `init`. The default
            is HOPLITE_ALLOW_PICKLE, or else whether all who may put have proved who they are.
        reconnect: go on with the next node that serves the socket when this one is gone; see `init`.
        job: a name that objects of this client are of; see `init`. The default is none, whatever HOPLITE_JOB says.
        cleanup: whether they are deleted with the last client of the job; see `init`.
        capability: what the client may do, as a path or a text; see `init`. The default is the file that
            HOPLITE_CAPABILITY_FILE names, or else everything.

    Raises:
        ConnectError: no node came to serve that socket in time.
        HopliteError: this process has no file descriptors left.
        InvalidArgument: the address is that of another kind, or the capability is none.
        NotAllowed: the node does not take the capability, or takes no client without one.
    """
    text = check_text("address", address)
    path = text.removeprefix(UNIX)
    if path == text and not path.startswith(("/", ".")):
        raise InvalidArgument(
            f'{text!r} is no socket: connect takes "unix:/path"; hoplite.init({text!r}) joins a cluster'
        )
    held = _capability(capability, settings.load(capability_file=None))
    options = ClientOptions(settings.may_pickle(allow_pickle), check_job(job), cleanup, reconnect, held)
    limit = check_timeout(timeout)
    return _attach(sockets.wait_for([path], limit), limit, options)


last_client = shared.last_client


def default_client() -> Client:
    """The client that the process shares: that of the last `init`, which is called if there is none or it was closed.

    In a child made by fork it is one of the child's own, attached to the node that the parent used.

    Raises:
        ForkedClient: in such a child, if nothing serves the parent's node any more.
        HopliteError: whatever `init` raises.
    """
    client = last_client()
    if client is not None:
        return client
    with shared.lock:
        # Another thread may have been faster.
        client = last_client()
        if client is not None:
            return client
        path = shared.inherited
        if path is None:
            return init()
        try:
            return shared.keep(_attach(path, 10.0, shared.options), path)
        except ConnectError:
            raise ForkedClient(
                f"this process was forked from one whose node, {UNIX}{path}, is gone: call hoplite.init() here to find "
                "another node or to start one, or run hoplite node before the fork"
            ) from None


def shutdown() -> None:
    """Closes the client that the process shares and the nodes that `init` started in it; nothing to close is fine.

    A node hands over what only it holds, for as long as the setting leave_timeout says. The next `init` begins anew.
    """
    with shared.lock:
        client, nodes, timeout = shared.client, shared.nodes, shared.leave_timeout
        shared.client = shared.path = shared.node = None
        shared.nodes = []
        # A child that says so wants none of its parent's either.
        shared.inherited = None
    if client is not None:
        client.close()
    for node in reversed(nodes):
        node.close(timeout)


def _find(values: Values, embedded: bool, limit: float | None) -> Client:
    """What `init` does once it knows the settings."""
    options = shared.options
    address: str | None = values["address"]
    is_path = address is not None and address.startswith(UNIX)
    is_local = address == LOCAL

    def attached(path: str) -> Client:
        because = f"a node of yours runs on this host already ({UNIX}{path})"
        if is_path:
            because = f"{UNIX}{path} is a running node"
        client = _attach(path, limit, options)
        try:
            _refuse(values, because)
            _check_cluster(client, values, path)
        except HopliteError:
            client.close()
            raise
        return shared.keep(client, path)

    if address is not None and is_path and not embedded:
        return attached(sockets.wait_for([address.removeprefix(UNIX)], limit))
    if is_local and not embedded:
        return attached(sockets.wait_for(sockets.host_sockets(values["socket"]), limit))

    join = [] if address is None or is_path or is_local else [part.strip() for part in address.split(",")]
    inherited = shared.inherited
    if options.capability is not None:
        # A node of this process would let it do everything.
        if join or embedded:
            raise InvalidArgument(
                "a capability is for a node that runs already, and this one is to be started here: leave out the "
                "capability, or the cluster's address and embedded"
            )
        if inherited is not None and sockets.is_served(inherited):
            return attached(inherited)
        return attached(sockets.find(values["socket"]) or values["socket"] or str(sockets.default_socket()))
    own = shared.own()
    if own is not None and not (_node_arguments(values) and (join or embedded)):
        _refuse(values, f"this process has a node already ({own._where}), which init() started")
        if join and own._native.address not in join and not set(join) <= set(own._seeds):
            raise InvalidArgument(
                f"this process has a node already ({own._where}), which did not join {','.join(join)}: close it by "
                "hoplite.shutdown() first"
            )
        client = own._client(options)
        _check_cluster(client, values, own.socket)
        return shared.keep(client, own.socket)

    if join or embedded:
        node = _start(values, join=join or values["join"])
        return shared.keep(node._client(options), node.socket)

    if inherited is not None and sockets.is_served(inherited):
        return attached(inherited)
    # Also if it is not served at this moment: a node of one's own would be alone.
    of_ray = sockets.raylet_socket()
    if of_ray is not None and of_ray.exists() and values["socket"] is None:
        return attached(str(of_ray))
    return _meet(values, limit, attached)


def _meet(values: Values, limit: float | None, attached: Callable[[str], Client]) -> Client:
    """Attaches to the node that this process is to use, or becomes it, while others try the same."""
    for attempt in range(ATTEMPTS):
        # A node that is joining serves its socket already: who holds the lock has joined, or failed, when we have it.
        with sockets.needs_descriptors("look for this host's node"), sockets.one_at_a_time(limit):
            path = sockets.find(values["socket"])
            if path is None:
                sockets.warn_of_a_missing_folder()
                embedded = str(sockets.embedded_socket(values["socket"]))
                try:
                    node = _start(values, join=values["join"], socket=embedded)
                except (AddressInUse, InvalidArgument):
                    # One that looks at nothing first can take the path between our look and our start.
                    if not sockets.is_served(embedded):
                        raise
                    path = embedded
                else:
                    return shared.keep(node._client(shared.options), embedded)
        try:
            return attached(path)
        except (ConnectError, NodeDown):
            # It left between our look and our call: perhaps it is our turn now.
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(0.05 * attempt)
    raise AssertionError("the last attempt returns or raises")


def _start(values: Values, *, join: Sequence[str], socket: str | None = None) -> Node:
    """Starts an embedded node, which leaves at the end of the process."""
    changed: dict[str, object] = {"join": list(join), "socket": socket}
    if join and values["listen"] is None:
        changed["listen"] = _listen_address(join)
    node = Node._embedded(values.replaced(changed), sockets.embedded_socket(values["socket"]))
    shared.node, shared.leave_timeout = node, values["leave_timeout"]
    shared.nodes = [*(other for other in shared.nodes if not other.closed), node]
    return node


def _attach(path: str, timeout: float | None, options: ClientOptions) -> Client:
    if not path:
        raise InvalidArgument('the address "unix:" has no path')
    with sockets.needs_descriptors(f"attach to {path}"):
        if not sockets.is_served(path):
            advice = ", and a capability is for one that runs: start it by hoplite node" if options.capability else ""
            raise ConnectError(f"no node serves {path}{advice}")
        native = _native.connect(path, timeout, options.capability)
    return Client(native, options, path=path)


def _capability(said: str | os.PathLike[str] | None, values: Values) -> str | None:
    """The text of the capability that a client is to have, as its maker says, else as the settings say."""
    capability = values["capability_file"] if said is None else said
    return None if capability is None else capabilities.text_of(capability)


def _node_arguments(values: Values) -> list[str]:
    """The arguments of `init` that configure an embedded node, but for its cluster, which a running node may be of."""
    return [name for name in values.given() if settings.TABLE[name].of_node and name != "cluster"]


def _refuse(values: Values, because: str) -> None:
    # To say that something is not wanted is no wish.
    given = [name for name in _node_arguments(values) if values[name] is not False]
    if given:
        raise InvalidArgument(
            f"{', '.join(given)} would have no effect: {because}; embedded=True starts one of your own"
        )


def _check_cluster(client: Client, values: Values, path: str) -> None:
    if values.is_set("cluster"):
        advice = "leave the cluster out, or embedded=True starts a node of your own"
        values.check_cluster(client.status()["cluster"], path, advice)


def _listen_address(join: Sequence[str]) -> str:
    """Chooses where a node listens so that the nodes it joins can reach it."""
    import ipaddress

    for seed in join:
        host, port = split_address(seed)
        try:
            family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            # No packet is sent: the kernel only says from which address it would go.
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(target)
                own = ipaddress.ip_address(probe.getsockname()[0].partition("%")[0])
        except OSError:
            # The next seed may do; if none does, joining says why.
            continue
        return f"[{own}]:0" if own.version == 6 else f"{own}:0"
    return settings.LOOPBACK


def _at_exit() -> None:
    if not shared.nodes:
        return
    silence_daemons()
    for node in reversed(shared.nodes):
        try:
            node.close(shared.leave_timeout)
        except HopliteError:
            # The process ends; the cluster tells those who need what was here.
            continue


atexit.register(_at_exit)
