"""The table of settings: name, type, default and help text of each. Does not know their values."""

from __future__ import annotations

from typing import Any, NamedTuple

from hoplite._arguments import a_type
from hoplite.errors import InvalidArgument
from hoplite.settings.kinds import (
    ADDRESS,
    ADDRESSES,
    ADVERTISE,
    ALLOWED,
    DETECTION,
    FLAG,
    FORMAT,
    HTTP,
    LEVEL,
    LEVELS,
    LIMIT,
    LOG_MODULES,
    PLACE,
    RACK,
    SECONDS,
    SIZE,
    TEXT,
    TOKEN,
    Kind,
    path_kind,
)

PREFIX = "HOPLITE_"
CONFIG_VARIABLE = "HOPLITE_CONFIG"


class Setting(NamedTuple):
    """One row of the table.

    Attributes:
        name: name of the argument, and of the key in the settings file.
        kind: type of its values.
        default: the value if none is set.
        default_text: the default in words, if the value does not show it.
        of_node: whether it configures a node; else it configures a client.
        help: one to three sentences for help texts and docs/settings.md.
        is_secret: whether messages must not contain the value, and command lines, which other users can read, neither.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    default_text: str = ""
    of_node: bool = True
    is_secret: bool = False

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.upper()

    @property
    def option(self) -> str:
        """The option of the command line."""
        return "--" + self.name.replace("_", "-")

    def from_text(self, text: str) -> Any:  # noqa: ANN401 - each setting has a type of its own
        """Parses the text of a variable or an option.

        Raises:
            InvalidArgument: the text is not a valid value.
        """
        try:
            value = self.kind.parse(text)
        except ValueError:
            raise InvalidArgument(f"{self.name} {text!r} is not valid: write {self.kind.in_file}") from None
        return self.kind.check(self.name, value)

    def from_file(self, value: object) -> Any:  # noqa: ANN401 - each setting has a type of its own
        """Checks the value of a key in a TOML file.

        Raises:
            InvalidArgument: the value is of the wrong type, or out of range.
        """
        # In Python, but not in TOML, a bool is an int.
        if not isinstance(value, self.kind.types) or (isinstance(value, bool) and bool not in self.kind.types):
            shown = a_type(value) if self.is_secret else repr(value)
            raise InvalidArgument(f"{self.name} is {shown}: write {self.kind.in_file}")
        return self.kind.check(self.name, value)


SETTINGS = (
    Setting(
        "listen",
        ADDRESS,
        None,
        "Address and TCP port for other nodes: an address, host name or interface of this host, such as eth0:7420. "
        "Port 0 selects a free port.",
        default_text="a free port of the interface that leads to the nodes to join. Without `join`: 127.0.0.1:7420 for "
        "the command; none for an embedded node, or a free port of loopback if another setting configures clustering",
    ),
    Setting(
        "advertise",
        ADVERTISE,
        None,
        "Address that other nodes use, if it differs from `listen`: in containers, or with 0.0.0.0.",
        default_text="the address of `listen`",
    ),
    Setting(
        "rack",
        RACK,
        None,
        "Rack or zone of this host; hosts in one rack use the same name. Each object crosses between racks once. So "
        "does each partial sum, if a reduce runs as a chain.",
        default_text="none: all hosts are equally near",
    ),
    Setting(
        "topology",
        path_kind("/etc/hoplite/topology.json", other='; or "off"'),
        None,
        "File that `hoplite topology probe` writes, with the groups of each host, such as pod and rack, and the "
        "capacity of their links. It replaces `rack`. If neither is set, four or more hosts measure which of them "
        "share a link, in bursts while they are idle; `off` disables that.",
        default_text="`measure`",
    ),
    Setting(
        "topology_host",
        TEXT,
        None,
        "Name of this host in the `topology` file.",
        default_text="the host whose address the node listens on",
    ),
    Setting(
        "join",
        ADDRESSES,
        (),
        "Addresses of nodes of the cluster to join; one that replies is enough. A name can be that of several nodes. "
        "The node's own address is ignored.",
        default_text="none: start a new cluster",
    ),
    Setting("cluster", TEXT, "default", "Name of the cluster. Only nodes with the same name join."),
    Setting(
        "token",
        TOKEN,
        None,
        "Shared secret of the cluster. It is never sent. It must be generated: a text that a person chose is rejected.",
        default_text="a secret of this user, if the node listens on loopback. On other addresses the node starts only "
        "with a token, a certificate or `no_auth`",
        is_secret=True,
    ),
    Setting(
        "token_file",
        path_kind("/etc/hoplite.token"),
        None,
        "File with the cluster token (mode 0600), instead of `token`. A second line adds a second accepted token, for "
        "rotation.",
        default_text="none",
    ),
    Setting(
        "certificate",
        path_kind("/etc/hoplite/host1.crt"),
        None,
        "PEM file with the certificate of this node, used instead of a token; requires `key` and `ca`.",
        default_text="none",
    ),
    Setting(
        "key",
        path_kind("/etc/hoplite/host1.key"),
        None,
        "PEM file with the private key of the certificate (mode 0600).",
        default_text="none",
    ),
    Setting(
        "ca",
        path_kind("/etc/hoplite/ca.crt"),
        None,
        "PEM file with the CA that issued the certificates of all nodes, or with several CAs.",
        default_text="none",
    ),
    Setting(
        "crl",
        path_kind("/etc/hoplite/crl.pem"),
        None,
        "PEM file with the CA's revocation list. It is read again when it changes; nodes with revoked certificates are "
        "removed from the cluster.",
        default_text="none: no certificate is revoked",
    ),
    Setting(
        "no_encryption",
        FLAG,
        False,
        "Disable encryption between nodes, for networks that already encrypt. All nodes of a cluster need the same "
        "value.",
        default_text="false",
    ),
    Setting(
        "no_auth",
        FLAG,
        False,
        "Disable authentication: any node that can reach this one may join, and read, put and delete all objects.",
        default_text="false",
    ),
    Setting(
        "require_capability",
        FLAG,
        False,
        "Reject processes of this host that attach without a capability (`hoplite token grant`). Requires a token.",
        default_text="false",
    ),
    Setting(
        "capacity",
        SIZE,
        None,
        "Size limit of the store, at least 1 MiB.",
        default_text="30 % of the memory of the host or cgroup",
    ),
    Setting(
        "spill",
        path_kind("/var/lib/hoplite"),
        None,
        "Directory on a disk, for this node alone. When memory runs short, the node writes there the objects that its "
        "clients put and did not use recently. It reads them back on use.",
        default_text="none: puts wait for memory",
    ),
    Setting(
        "spill_limit",
        LIMIT,
        None,
        "Size limit of the files in `spill`.",
        default_text="80 % of the free space in `spill` when the node starts",
    ),
    Setting(
        "spill_persistent",
        FLAG,
        False,
        "When this node ends, keep on disk the objects that no other node holds. The next node with this setting and "
        "the same `spill` directory starts with them.",
        default_text="false",
    ),
    Setting(
        "socket",
        path_kind("/run/hoplite/node.sock"),
        None,
        "Unix socket for the processes of this host: the node serves it, and clients attach to it.",
        default_text="this user's socket; in a Slurm job, the job's",
    ),
    Setting(
        "detection_timeout",
        DETECTION,
        3.0,
        "Time after which an unresponsive node is declared dead. A node whose process ended is detected immediately.",
        default_text="3",
    ),
    Setting(
        "leave_timeout",
        SECONDS,
        30.0,
        "Time limit for a leaving node to hand over the objects that only it holds, and to finish its part in reduces "
        "of other nodes. `hoplite node` leaves on a signal, an embedded node before its process ends.",
        default_text="30",
    ),
    Setting(
        "http",
        HTTP,
        None,
        "Port of the live page and the metrics, on loopback; or address and port, such as 10.0.0.1:7480. Port 0 "
        "selects a free port. Viewers need the key that `hoplite token viewer` prints. Requires the extra `http`.",
        default_text="none: no HTTP",
    ),
    Setting(
        "http_key_file",
        path_kind("/etc/hoplite.key"),
        None,
        "File with the key for viewers (mode 0600), instead of the one derived from the cluster token.",
        default_text="none. Without a token, viewers on loopback need a key of this user, or with `no_auth` no key. On "
        "other addresses, the node then starts only with this file",
    ),
    Setting(
        "log_level",
        LEVEL,
        None,
        f"Lowest level of the messages that a node logs to stderr: {', '.join(LEVELS)}. `info,transfer=debug` sets "
        f"another level for one module: {', '.join(LOG_MODULES)}.",
        default_text="info for the command, off for an embedded node",
    ),
    Setting(
        "log_format",
        FORMAT,
        "text",
        "Format of these messages: `text`, or `json` for one JSON object per line.",
    ),
    Setting(
        "address",
        PLACE,
        None,
        "The node that `hoplite.init()` uses. `local` waits for this host's node, and `unix:/path` for the node that "
        "serves this socket. Addresses of a cluster start an embedded node that joins it.",
        default_text="this user's node on this host, or else an embedded node",
        of_node=False,
    ),
    Setting(
        "allow_pickle",
        ALLOWED,
        None,
        "Allow `put` and `get` of values that need pickle. Reading a pickle runs code chosen by the program that put "
        "it. If you do not trust all of these programs, set false, or list the classes and functions that pickles may "
        "use, by name or pattern.",
        default_text="false if the cluster has no authentication or no encryption, else true",
        of_node=False,
    ),
    Setting(
        "capability",
        path_kind("team-a.capability", other="; or the text of a capability"),
        None,
        "Capability that restricts this process, as the path of a file (mode 0600) or as text. `hoplite token grant` "
        "creates it.",
        default_text="none: no restriction",
        of_node=False,
    ),
    Setting(
        "digest",
        FLAG,
        False,
        "Announce the SHA-256 of each object that this process puts. Nodes that receive the object verify it.",
        default_text="false",
        of_node=False,
    ),
    Setting(
        "job",
        TEXT,
        None,
        "Name that marks the objects of this process. They are deleted 5 s after the last client of the job "
        "has closed or failed.",
        default_text="none: objects exist until they are deleted",
        of_node=False,
    ),
    Setting(
        "timeout",
        SECONDS,
        None,
        "Timeout of every call of this process that has no `timeout=`, such as `get` and `put`. `timeout=None` still "
        "waits without limit. The argument of `hoplite.init` is `default_timeout`.",
        default_text="none: such calls wait without limit",
        of_node=False,
    ),
)

TABLE = {setting.name: setting for setting in SETTINGS}
VARIABLES = {setting.variable for setting in SETTINGS} | {CONFIG_VARIABLE}
# Variables that other packages of the project read.
OF_PACKAGES = {"HOPLITE_PLAN"}
