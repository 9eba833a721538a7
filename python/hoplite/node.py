"""A node embedded in this process: the store of its host, and a member of a cluster."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from typing import TYPE_CHECKING

from hoplite import _admission, _ending, _listening, _native, _places, log, settings, sockets, viewers
from hoplite._arguments import check_default_timeout, check_job, check_timeout
from hoplite._client import Client
from hoplite._shared import ClientOptions
from hoplite.errors import AddressInUse, ClientClosed, InvalidArgument, JoinError, NodeDown

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Self

    from hoplite.settings import Values


# Other processes can take each free path for a socket before this one does; give up after this many in a row.
ATTEMPTS = 10

# Nodes that are closed when the process ends, even if the thread that used them has ended.
_running: weakref.WeakSet[Node] = weakref.WeakSet()


class Node:
    """A node embedded in this process: a shared-memory store for the processes of this host, and a cluster member.

    It listens on TCP only if clustering is configured, that is, if one of `listen`, `advertise`, `join`, `cluster`,
    `token`, `token_file`, `certificate`, `no_encryption` and `no_auth` is set.

    Use it in a `with` statement or `close` it: a node that leaves hands over the objects that only it holds. A node
    that is open when the process ends leaves then, within the setting `leave_timeout`. So it does when SIGTERM or
    SIGHUP ends the process, if the main thread created a node and the program has no handler of that signal. A second
    signal ends the process immediately. A handler of the program should end it by `sys.exit`.

    An argument that is None is read from the environment or the settings file; docs/settings.md lists them.

    Args:
        listen: address and TCP port for other nodes, as "10.0.0.1:7420" or "[::1]:7420", or a network interface and a
            port, as "eth0:7420". Port 0 selects a free port. If clustering is configured, the default is a free port
            of the interface that leads to the nodes to join, or of loopback if there are none.
        join: addresses of nodes of the cluster; one that replies is enough. The node's own address is ignored. Without
            it the node starts a new cluster.
        capacity: size limit of the store, in bytes or as text such as "8GiB". The default is 30 % of the memory of the
            host or cgroup.
        spill: directory on a disk, for this node alone; created if missing. When memory runs short, objects that were
            put here and not used recently are written there, and read back on use. Without it, puts wait for memory.
        spill_limit: size limit of the files there, in bytes or as text. The default is 80 % of the space that is free
            at the start.
        spill_persistent: keep objects that no other node holds in the directory when this node ends. The next node
            that spills there, also with spill_persistent, starts with them.
        cluster: name of the cluster. Only nodes with the same name join. The default is "default".
        token: shared secret of the cluster, created by `hoplite.new_token()`. It is never sent. The default, on
            loopback, is a secret of this user: it admits nodes of the same user on the same host.
        token_file: file with the token (mode 0600). A second line adds a second accepted token, for rotation.
        certificate: PEM file with the certificate of this node, used instead of a token.
        key: PEM file with the private key of the certificate (mode 0600).
        ca: PEM file with the CA that issued the certificates of all nodes.
        crl: PEM file with the CA's revocation list. It is read again when it changes: within 5 s, nodes with revoked
            certificates are removed from the cluster.
        no_encryption: send to other nodes without encryption. All nodes of a cluster need the same value.
        no_auth: disable authentication: any node that can reach this one may join.
        require_capability: reject processes of this host that attach without a capability, which the token verifies.
            Clients from `client` belong to this process and need none.
        advertise: address that other nodes use, if it differs from the one listened on: in containers, or with
            0.0.0.0.
        rack: rack or zone of this host; hosts in one rack use the same name. Each object crosses between racks once,
            whatever the number of readers.
        topology: file with the location of each host, as `hoplite topology probe` writes it: nested groups, such as
            pods and racks. It replaces `rack`. The default is "measure": if no node has a location, four or more hosts
            measure, in bursts while they are idle, which of them share a link. "off" disables that.
        topology_host: name of this host in that file. The default is the host with the address on which the node
            listens, or which it advertises.
        detection_timeout: seconds after which an unresponsive node is declared dead, at least 0.5; the default is 3. A
            node whose process ended is detected immediately.
        socket: path of the Unix socket for processes of this host. The default is this user's socket, where
            `hoplite.init()` looks, or a socket of this node alone if another node serves that.
        http: port of the live page and the metrics, on loopback, or address and port, as "10.0.0.1:7480". Port 0
            selects a free port; the attribute `http` has the URL. Requires the extra `http`. docs/operations.md
            describes it.
        http_key_file: file with the key for viewers (mode 0600), instead of that of `hoplite token viewer`.
        config: TOML file of settings.

    Raises:
        AddressInUse: another process uses a port or the socket.
        HopliteError: this process has no file descriptors left, or another user can read this user's secret.
        InvalidArgument: an argument is not valid, a certificate file or the spill directory is not usable, the
            topology is not readable or does not list this host, or other hosts can reach the node and it has neither a
            token nor a certificate.
        JoinError: no node of the cluster replied, or its cluster name, token, CA or protocol version differs.

    Examples:
        >>> with hoplite.Node(capacity="64MiB") as node, node.client() as client:
        ...     bytes(client.get(client.put(b"weights")))
        b'weights'
    """

    def __init__(
        self,
        *,
        listen: str | None = None,
        join: Iterable[str] | None = None,
        capacity: int | str | None = None,
        spill: str | os.PathLike[str] | None = None,
        spill_limit: int | str | None = None,
        spill_persistent: bool | None = None,
        cluster: str | None = None,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        ca: str | os.PathLike[str] | None = None,
        crl: str | os.PathLike[str] | None = None,
        no_encryption: bool | None = None,
        no_auth: bool | None = None,
        require_capability: bool | None = None,
        advertise: str | None = None,
        rack: str | None = None,
        topology: str | os.PathLike[str] | None = None,
        topology_host: str | None = None,
        detection_timeout: float | None = None,
        socket: str | os.PathLike[str] | None = None,
        http: str | int | None = None,
        http_key_file: str | os.PathLike[str] | None = None,
        config: str | os.PathLike[str] | None = None,
    ) -> None:
        self._config = config
        self._start(settings.load_arguments(locals(), of_node=True))

    @classmethod
    def _embedded(cls, values: Values, usual: Path) -> Node:
        """Starts a node for `hoplite.init`. Without the setting `socket` it serves the path `usual` if that is free."""
        node = cls.__new__(cls)
        node._config = None
        node._start(values, usual)
        return node

    def _start(self, values: Values, usual: Path | None = None) -> None:
        log.start(values["log_level"], values["log_format"])
        _check_spill(values)
        with sockets.needs_descriptors("start a node"):
            # `init` compares it with its address.
            self._seeds = [_listening.resolve_scope("join", seed) for seed in values["join"]]
            listen = _listening.listening(values)
            options = {name: values[name] for name in values}
            options |= {"listen": listen, "join": self._seeds, "place": _places.place(values, listen)}
            options["surveys"] = values["topology"] in (None, _places.MEASURE)
            options |= _admission.admission(values, listen)._asdict()
            self._service = viewers.service(values)
            try:
                self._native = self._made(values, options, usual)
            except BaseException:
                if self._service is not None:
                    self._service.close()
                raise
        self._leave_timeout: float = values["leave_timeout"]
        _running.add(self)
        _ending.leave_first(_close_all)
        # A child made by fork inherits this object but not the node.
        self._pid = os.getpid()
        if self._service is not None:
            self._service.start(self._client(ClientOptions(allow_pickle=False)))

    def _made(self, values: Values, options: dict[str, object], usual: Path | None) -> _native.Node:
        """Starts the node at the socket of the settings, or else at the next free path."""
        wanted = values["socket"]
        for attempt in itertools.count(1):
            if wanted is not None:
                path = sockets.check_free(wanted)
            else:
                path = sockets.free_path(usual or sockets.default_socket())
            try:
                return _native.Node({**options, "socket": path})
            except AddressInUse:
                # Another process took the path meanwhile. Any other path works.
                if wanted is not None or attempt == ATTEMPTS:
                    raise
            except JoinError as error:
                raise JoinError(f"{error}{_admission.hint(values, str(error))}") from None
        raise AssertionError("the last attempt returns or raises")

    @property
    def address(self) -> str:
        """Address and port that other nodes join, such as "10.0.0.3:7420".

        Raises:
            JoinError: the node has no TCP port, so that no other node can join it.
        """
        address = self._native.address
        if address is None:
            raise JoinError(
                f"no node can join node {self.id}: it was started without a TCP port; start it with "
                f'listen="{_listening.LOOPBACK}" for nodes of this host, or with an address that other hosts can reach'
            )
        return address

    @property
    def _where(self) -> str:
        """Its address, or else its socket, for messages."""
        return self._native.address or f"{settings.UNIX}{self.socket}"

    @property
    def socket(self) -> str:
        """Path of the Unix socket that processes of this host attach to."""
        return self._native.socket

    @property
    def http(self) -> str | None:
        """URL of the live page, such as "http://127.0.0.1:7480"; None without the setting `http`."""
        return None if self._service is None else self._service.url

    @property
    def id(self) -> str:
        """Identity of the node in hex, new at each start."""
        return self._native.id

    @property
    def closed(self) -> bool:
        """Whether the node has left or failed."""
        return self._native.closed

    @property
    def failure(self) -> str | None:
        """Why the node failed, if one of its threads panicked; else None. The log has the same message."""
        return self._native.failure

    def client(
        self,
        *,
        job: str | None = None,
        allow_pickle: bool | Iterable[str] | None = None,
        digest: bool | None = None,
        default_timeout: float | None = None,
    ) -> Client:
        """Attaches a client. Several clients can be attached; each is closed on its own.

        Args:
            job: name that marks the objects of this client, as in `hoplite.init`; but HOPLITE_JOB has no effect.
            allow_pickle: as in `hoplite.init`.
            digest: as in `hoplite.init`.
            default_timeout: as in `hoplite.init`.

        Raises:
            InvalidArgument: `allow_pickle` is an empty list, or has a pattern that allows everything.
            NodeDown: the node is closed.
        """
        bound = check_default_timeout(default_timeout)
        values = settings.load(self._config, allow_pickle=allow_pickle, digest=digest, timeout=bound)
        limit = check_timeout(values["timeout"])
        options = ClientOptions(values["allow_pickle"], check_job(job), digest=values["digest"], timeout=limit)
        return self._client(options)

    def _client(self, options: ClientOptions) -> Client:
        if self.closed:
            raise NodeDown(f"node {self.id} is closed: create another with hoplite.Node()")
        # A node in this process is not replaced when it ends.
        return Client(self._native.client(), options._replace(reconnect=False), node=self, path=self.socket)

    def close(self, timeout: float | None = None) -> bool:
        """Leaves the cluster: hands over the objects that only this node holds, then frees its store.

        Calls that wait on this node raise `NodeDown`. A put in progress may still be sealed within one second. Folds
        for reduces of other nodes are completed first, even if an input has not arrived yet. Reduces of its own
        clients fail. Values that `get` returned stay valid. Closing a closed node does nothing.

        Args:
            timeout: seconds for all of that; None means 60.

        Returns:
            True if other nodes hold every object that only this one held, or if no other node remains. Objects that
            did not fit elsewhere are lost: the log names them, and calls that wait for them raise `ObjectLost`.
        """
        limit = check_timeout(timeout)
        if self._service is not None and os.getpid() == self._pid:
            self._service.close()
        return self._native.close(limit) if os.getpid() == self._pid else True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<hoplite.Node {self.id} at {self._where}{', closed' if self.closed else ''}>"


def _check_spill(values: Values) -> None:
    """Rejects settings of the spill directory when there is none."""
    if values["spill"] is None:
        for name in ("spill_limit", "spill_persistent"):
            if values[name]:
                raise InvalidArgument(
                    f"{name} ({values.origin(name)}) has no effect without a spill directory: set spill"
                )


def silence_daemons() -> None:
    """Suppresses tracebacks of daemon threads that fail because the node has left at the end of the process."""
    report = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        is_daemon = arguments.thread is not None and arguments.thread.daemon
        if not (is_daemon and isinstance(arguments.exc_value, (ClientClosed, NodeDown))):
            report(arguments)

    threading.excepthook = hook


def _close_all() -> None:
    """Closes every node that is still open when the process ends."""
    nodes = [node for node in _running if not node.closed and node._pid == os.getpid()]
    if nodes:
        silence_daemons()
    for node in nodes:
        node.close(node._leave_timeout)


# Handlers run in reverse order of registration: `hoplite.session` closes the nodes of `init` first.
atexit.register(_close_all)
