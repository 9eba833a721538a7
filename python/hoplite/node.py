"""A node inside this process: the store of its host, and a member of a cluster."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import TYPE_CHECKING

from hoplite import _admission, _listening, _native, _places, log, settings, sockets
from hoplite._arguments import check_job, check_timeout
from hoplite._shared import ClientOptions
from hoplite.client import Client
from hoplite.errors import AddressInUse, InvalidArgument, JoinError, NodeDown

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Self

    from hoplite.settings import Values


# Nodes of this process that no part of it may drop before its end, such as a daemon thread: they are closed then.
_running: weakref.WeakSet[Node] = weakref.WeakSet()


class Node:
    """Starts a node in this process: one store of shared memory for the processes of this host, and for other nodes.

    It opens a TCP port only if there are to be other nodes: if one of `listen`, `advertise`, `join`, `cluster`,
    `token`, `token_file`, `plain` and `insecure` is said.

    Use it in a `with`, or `close` it: a node that leaves hands over what only it holds. One that is open at the end of
    the process leaves then, for as long as the setting leave_timeout says.

    An argument that is None is looked for in the environment and in a file, as docs/settings.md says.

    Args:
        listen: host and TCP port for other nodes, as "10.0.0.1:7420" or "[::1]:7420", or a network interface, as
            "eth0:7420"; port 0 takes any free one. The default is none or, if there are to be other nodes, any free
            port of loopback.
        join: addresses of nodes of the cluster, any of them will do; none begins a new cluster. The node's own address
            among them is ignored.
        capacity: most bytes the store may take, a number or text such as "8GiB"; the default is 30 % of the memory of
            the host or cgroup.
        spill: a folder on a disk, for this node alone, made if it is missing: objects that were put here and not used
            for long go there when others need their memory, and are read back when they are used. The default is none:
            puts wait for room instead.
        spill_limit: most bytes of files there, a number or text; the default is 80 % of what is free there now.
        spill_keep: leave what no other node has in the folder when this node ends; the next node that spills there and
            says the same begins with it.
        cluster: the cluster's name; only nodes of one name join. The default is "default".
        token: the cluster's secret, never sent, made by `hoplite.new_token()`. The default, on loopback, is a secret of
            this user: nodes of one user on one host are let in, those of other users are not.
        token_file: a file of the token, or of two, on a line each: the first is proved to others, both are taken.
        certificate: a PEM file of the node's certificate, which nodes show each other in place of a token.
        key: a PEM file of its key, which only its owner can read.
        ca: a PEM file of the CA that has issued the certificates of all nodes.
        crl: a PEM file of what the CA has revoked. It is read again when it changes: within 5 s the nodes of those
            certificates are members no more.
        plain: send to other nodes without encryption; all nodes of a cluster have to say the same.
        insecure: do without a token or certificates: let every node in that reaches this one.
        confine: take no process of this host without a capability, which the token verifies. Clients of `client` are of
            this process, and need none.
        advertise: the address that others should use, where it is not the one listened on: in containers, or with
            0.0.0.0.
        rack: where the host stands, by any name that its neighbours are told too: objects go from rack to rack once,
            however many want them there. The default is no rack.
        topology: a file of where hosts stand, as `hoplite topology probe` writes it: groups within groups, such as pods
            and racks. It takes the place of `rack`. The default is "measure": where no node is told anything, four or
            more hosts find out, in bursts while they are idle, which of them share a link. "off" keeps them from it.
        topology_host: the name of this host in that file; the default is the host that has the address on which the
            node listens, or which it advertises.
        detection_timeout: seconds that another node may be silent, frozen or cut off, until it counts as dead, at least
            0.5; the default is 3. One whose process ended is noticed at once.
        socket: path of the Unix socket for this host's processes; the default is this user's, at which
            `hoplite.init()` looks, or one of this node's own if another node serves that.
        config: a TOML file of settings.

    Raises:
        AddressInUse: another process has the port, or the socket.
        HopliteError: this process has no file descriptors left, or another user has this user's secret.
        InvalidArgument: an argument makes no sense, a file of certificates or the folder to spill to can't be used, the
            topology can't be read or does not have this host, or
            the node would be open to the network with no token and no certificate.
        JoinError: no node of the cluster answered, or with another cluster name, token, CA or protocol
            version.
    """

    def __init__(
        self,
        *,
        listen: str | None = None,
        join: Iterable[str] | None = None,
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
        plain: bool | None = None,
        insecure: bool | None = None,
        confine: bool | None = None,
        advertise: str | None = None,
        rack: str | None = None,
        topology: str | os.PathLike[str] | None = None,
        topology_host: str | None = None,
        detection_timeout: float | None = None,
        socket: str | os.PathLike[str] | None = None,
        config: str | os.PathLike[str] | None = None,
    ) -> None:
        self._start(settings.load_arguments(locals(), of_node=True))

    @classmethod
    def _embedded(cls, values: Values, usual: Path) -> Node:
        """Starts a node for `hoplite.init`. Without a setting `socket` it serves the usual path, if that is free."""
        node = cls.__new__(cls)
        node._start(values, usual)
        return node

    def _start(self, values: Values, usual: Path | None = None) -> None:
        log.start(values["log"])
        _check_spill(values)
        with sockets.needs_descriptors("start a node"):
            # What this node was told to join: `init` compares it.
            self._seeds = [_listening.resolve_scope("join", seed) for seed in values["join"]]
            listen = _listening.listening(values)
            options = {name: values[name] for name in values}
            options |= {"listen": listen, "join": self._seeds, "place": _places.place(values, listen)}
            options["surveys"] = values["topology"] in (None, _places.MEASURE)
            options |= _admission.admission(values, listen)._asdict()
            self._native = self._made(values, options, usual)
        self._leave_timeout: float = values["leave_timeout"]
        _running.add(self)
        # Where the node was made: a child made by fork inherits this object but not the node.
        self._pid = os.getpid()

    def _made(self, values: Values, options: dict[str, object], usual: Path | None) -> _native.Node:
        """Starts the node at its socket, or at the next path that is free if it need not have a certain one."""
        wanted = values["socket"]
        while True:
            if wanted is not None:
                path = sockets.check_free(wanted)
            else:
                path = sockets.free_path(usual or sockets.default_socket())
            try:
                return _native.Node({**options, "socket": path})
            except AddressInUse:
                # Another process took the path between our look and our listening: any other path will do.
                if wanted is not None or not sockets.is_served(path):
                    raise
            except JoinError as error:
                raise JoinError(f"{error}{_admission.hint(values, str(error))}") from None

    @property
    def address(self) -> str:
        """Host and port that other nodes join, such as "10.0.0.3:7420".

        Raises:
            JoinError: no other node can join this one, which has no TCP port.
        """
        address = self._native.address
        if address is None:
            raise JoinError(
                f"no node can join node {self.id}, which was started without a TCP port: start it with "
                f'listen="{settings.LOOPBACK}" for nodes of this host, or with an address of the host for all'
            )
        return address

    @property
    def _where(self) -> str:
        """What there is to say of where it is: its address, or else its socket."""
        return self._native.address or f"{settings.UNIX}{self.socket}"

    @property
    def socket(self) -> str:
        """Path of the Unix socket that processes of this host attach to."""
        return self._native.socket

    @property
    def id(self) -> str:
        """The node's identity, new at each start."""
        return self._native.id

    @property
    def closed(self) -> bool:
        """Whether the node has left, or has ended itself."""
        return self._native.closed

    @property
    def failure(self) -> str | None:
        """Why the node ended itself, if a thread or task of it met a bug: a panic, which is in the log too."""
        return self._native.failure

    def client(
        self, *, allow_pickle: bool | Iterable[str] | None = None, job: str | None = None, cleanup: bool = True
    ) -> Client:
        """Attaches a client; each can be closed alone.

        Args:
            allow_pickle: whether it may put and get values that need pickle, or the names of the classes and functions
                that pickles may use, as ["mypackage.*"]; the default is HOPLITE_ALLOW_PICKLE or, if that says nothing,
                whether all who may put have proved who they are; see `hoplite.init`.
            job: a name that objects of the client are of; see `hoplite.init`. The default is none.
            cleanup: whether they are deleted with the last client of the job; see `hoplite.init`.

        Raises:
            InvalidArgument: `allow_pickle` has no names, or a pattern that allows everything.
            NodeDown: the node is closed.
        """
        return self._client(ClientOptions(settings.may_pickle(allow_pickle), check_job(job), cleanup))

    def _client(self, options: ClientOptions) -> Client:
        if self.closed:
            raise NodeDown(f"node {self.id} is closed")
        # No other node takes the place of this one.
        return Client(self._native.client(), options._replace(reconnect=False), node=self, path=self.socket)

    def close(self, timeout: float | None = None) -> bool:
        """Leaves the cluster: hands over what only this node holds, then frees its store. Closing twice is fine.

        Calls that wait on this node raise `NodeDown`; only what is being put may still be sealed, within a second.
        What this node folds for the reduces of others it finishes before, also while they wait for an input. Reduces of
        its own clients fail. Values that `get` returned stay valid.

        Args:
            timeout: seconds this may take; None is 60.

        Returns:
            Whether other nodes have all that only this one held, or none stays that could. What they have no room for
            is lost: the log names it, and calls that wait for it raise `ObjectLost`.
        """
        limit = check_timeout(timeout)
        return self._native.close(limit) if os.getpid() == self._pid else True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<hoplite.Node {self.id} at {self._where}{', closed' if self.closed else ''}>"


def _check_spill(values: Values) -> None:
    """Refuses what is said of files in a folder that no setting names."""
    if values["spill"] is None:
        for name in ("spill_limit", "spill_keep"):
            if values[name]:
                raise InvalidArgument(
                    f"{name} ({values.origin(name)}) has no effect without a folder to spill to: set spill to one"
                )


def silence_daemons() -> None:
    """Keeps daemon threads, which the interpreter would have ended unheard, from reporting that the node left."""
    report = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        is_daemon = arguments.thread is not None and arguments.thread.daemon
        if not (is_daemon and isinstance(arguments.exc_value, NodeDown)):
            report(arguments)

    threading.excepthook = hook


def _close_all() -> None:
    """Leaves with every node that was not closed: what would drop it may be a thread that just ends."""
    nodes = [node for node in _running if not node.closed and node._pid == os.getpid()]
    if nodes:
        silence_daemons()
    for node in nodes:
        node.close(node._leave_timeout)


# `hoplite.session` closes what `init` started, and is asked first.
atexit.register(_close_all)
