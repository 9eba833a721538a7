"""The table of settings: the name of each, what it takes, its default and its help. Knows no values of any."""

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
    LEVEL,
    LIMIT,
    PATH,
    PLACE,
    RACK,
    SECONDS,
    SIZE,
    TEXT,
    TOKEN,
    Kind,
)

PREFIX = "HOPLITE_"
CONFIG_VARIABLE = "HOPLITE_CONFIG"


class Setting(NamedTuple):
    """One row of the table.

    Attributes:
        name: of the argument and of the key in the file.
        kind: what it takes.
        default: the value where none is said.
        default_text: the default in words, where the value does not say it.
        of_node: whether it is for those who run a node; else it is for those who use one.
        help: one or two sentences for help texts and the page of settings.
        option_text: the option of `hoplite node`, where it is not the name.
        is_secret: whether no message may tell the value, and no command line may have it, which others can see.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    default_text: str = ""
    of_node: bool = True
    option_text: str = ""
    is_secret: bool = False

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.upper()

    @property
    def option(self) -> str:
        """The option of the command line."""
        return self.option_text or "--" + self.name.replace("_", "-")

    def from_text(self, text: str) -> Any:  # noqa: ANN401 - each setting has a type of its own
        """Reads what a variable or an option says.

        Raises:
            InvalidArgument: it says nothing that this setting takes.
        """
        try:
            value = self.kind.parse(text)
        except ValueError:
            raise InvalidArgument(f"{self.name} {text!r} is not understood; write {self.kind.in_file}") from None
        return self.kind.check(self.name, value)

    def from_file(self, value: object) -> Any:  # noqa: ANN401 - each setting has a type of its own
        """Reads what TOML has made of a key's value.

        Raises:
            InvalidArgument: the value is of the wrong type, or out of range.
        """
        # A bool is an int to Python alone.
        if not isinstance(value, self.kind.types) or (isinstance(value, bool) and bool not in self.kind.types):
            said = a_type(value) if self.is_secret else repr(value)
            raise InvalidArgument(f"{self.name} is {said}; write {self.kind.in_file}")
        return self.kind.check(self.name, value)


SETTINGS = (
    Setting(
        "listen",
        ADDRESS,
        None,
        "Where other nodes reach this one, by TCP: an address, a name or an interface of this host, as eth0:7420; "
        "port 0 takes any free one.",
        default_text="127.0.0.1:7420 for the command; for an embedded node none, or any free port of the interface "
        "that leads to the cluster which it joins, or of loopback if another setting asks for a cluster",
    ),
    Setting(
        "advertise",
        ADVERTISE,
        None,
        "The address that others should use, where it is not the one listened on: in containers, or with 0.0.0.0.",
        default_text="the one listened on",
    ),
    Setting(
        "rack",
        RACK,
        None,
        "Where the host stands, by any name that its neighbours are told too: a rack, a zone. Objects go from rack to "
        "rack once, however many want them there, and so do the sums of a chain.",
        default_text="none: as near to all others",
    ),
    Setting(
        "topology",
        PATH,
        None,
        "A file of where hosts stand, as `hoplite topology probe` writes it: the groups of each, such as its pod and "
        "its rack, and what their links carry. It says more than `rack`. Four or more hosts that are told nothing "
        "find out, by bursts while they are idle, which of them share a link; the word `off` keeps them from it.",
        default_text="`measure`: find out",
    ),
    Setting(
        "topology_host",
        TEXT,
        None,
        "The name of this host in the file `topology`.",
        default_text="the host that has the address on which the node listens",
    ),
    Setting(
        "join",
        ADDRESSES,
        (),
        "Nodes of the cluster to join; one that answers is enough, and one's own address among them is ignored.",
        default_text="none: begin a new cluster",
    ),
    Setting("cluster", TEXT, "default", "The cluster's name; only nodes of one name join."),
    Setting(
        "token",
        TOKEN,
        None,
        "The cluster's secret, never sent. A text that a person made up is refused: others could guess it.",
        default_text="a secret of this user, where no other host can reach the node; elsewhere it does not start",
        is_secret=True,
    ),
    Setting(
        "token_file",
        PATH,
        None,
        "A file of the token, in place of `token`, which only its owner can read. A second line is a token that others "
        "may prove too, while one takes the place of another.",
        default_text="none",
    ),
    Setting(
        "certificate",
        PATH,
        None,
        "A PEM file of the node's certificate, which nodes show each other in place of a token; with `key` and `ca`.",
        default_text="none",
        option_text="--cert",
    ),
    Setting(
        "key", PATH, None, "A PEM file of the certificate's key, which only its owner can read.", default_text="none"
    ),
    Setting(
        "ca",
        PATH,
        None,
        "A PEM file of the CA that has issued the certificates of all nodes; several CAs are taken too.",
        default_text="none",
    ),
    Setting(
        "crl",
        PATH,
        None,
        "A PEM file of the certificates that the CA has revoked, read again when it changes: their nodes are lost.",
        default_text="none: no certificate is revoked",
    ),
    Setting(
        "plain",
        FLAG,
        False,
        "Send to other nodes without encryption, on a network that encrypts. All nodes of a cluster say the same.",
        default_text="false",
    ),
    Setting(
        "insecure",
        FLAG,
        False,
        "Disable authentication: any node that can reach this one may join, and read, put and delete all objects.",
        default_text="false",
    ),
    Setting(
        "confine",
        FLAG,
        False,
        "Take no process of this host without a capability (`hoplite token grant`), which the node's token verifies.",
        default_text="false",
    ),
    Setting(
        "capacity",
        SIZE,
        None,
        "Most memory that the store may take, at least 1 MiB.",
        default_text="30 % of the memory of the host or cgroup",
    ),
    Setting(
        "spill",
        PATH,
        None,
        "A folder on a disk, for this node alone: objects that were put here and not used for long go there when "
        "others need their memory, and are read back when they are used.",
        default_text="none: puts wait for room instead",
    ),
    Setting(
        "spill_limit",
        LIMIT,
        None,
        "Most bytes of files in the folder `spill`.",
        default_text="80 % of what is free there at the start",
    ),
    Setting(
        "spill_keep",
        FLAG,
        False,
        "Leave what no other node has in the folder `spill` when this node ends: the next node that spills there and "
        "says the same begins with it.",
        default_text="false",
    ),
    Setting(
        "socket",
        PATH,
        None,
        "Unix socket for the processes of this host: where a node serves them, and where they look for it.",
        default_text="this user's or, in a Slurm job, the job's",
    ),
    Setting(
        "detection_timeout",
        DETECTION,
        3.0,
        "How long another node may be silent, frozen or cut off, until it counts as dead. One whose process ended is "
        "noticed at once.",
        default_text="3",
    ),
    Setting(
        "leave_timeout",
        SECONDS,
        30.0,
        "How long a node may take to leave, for handing over what only it holds and for folding what others wait for: "
        "`hoplite node` on a signal, an embedded node at the end of its process.",
        default_text="30",
    ),
    Setting(
        "log",
        LEVEL,
        None,
        "What a node logs to stderr, from this level up.",
        default_text="info for the command; nothing from an embedded node",
        option_text="--log-level",
    ),
    Setting(
        "address",
        PLACE,
        None,
        "What `hoplite.init()` uses: `local` for the node of this host, which it waits for; the socket of a node; or a "
        "cluster that an embedded node joins.",
        default_text="this user's node on this host, or else an embedded one",
        of_node=False,
    ),
    Setting(
        "allow_pickle",
        ALLOWED,
        None,
        "Allow `put` and `get` of values that need pickle. A pickle runs code of its putter: set it to false where "
        "not all who may put are trusted, or to a list of the classes and functions that pickles may use, by name or "
        "by pattern.",
        default_text="false for clients of a node whose cluster is `plain` or has no authentication; true for others",
        of_node=False,
    ),
    Setting(
        "capability_file",
        PATH,
        None,
        "A file of a capability (`hoplite token grant`), which only its owner can read: what a process may do at its "
        "node. The argument is `capability`, of `init` and `connect`, and takes the text too.",
        default_text="none: everything",
        of_node=False,
    ),
    Setting(
        "job",
        TEXT,
        None,
        "What the objects are of that a process makes: they are deleted when the last client of the job is gone.",
        default_text="none: objects live until they are deleted",
        of_node=False,
    ),
)

TABLE = {setting.name: setting for setting in SETTINGS}
VARIABLES = {setting.variable for setting in SETTINGS} | {CONFIG_VARIABLE}
