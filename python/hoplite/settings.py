"""The settings of a node and of its users: what each takes, and where its value comes from.

One table serves `Node(...)`, `hoplite.init(...)`, the options of `hoplite node` and docs/settings.md. A value is an
argument (or option), else the environment's HOPLITE_<NAME>, else a key of the TOML file that `config` or HOPLITE_CONFIG
names, else the default. No other file is looked for. Knows nothing of nodes and starts none.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hoplite._arguments import a_type, check_text, check_timeout
from hoplite.addresses import check_address, is_ip
from hoplite.errors import InvalidArgument
from hoplite.sizes import check_capacity, check_size
from hoplite.tokens import check_private, check_token
from hoplite.values import check_allowed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hoplite.values import Allowed

PREFIX = "HOPLITE_"
CONFIG_VARIABLE = "HOPLITE_CONFIG"

# What the address of a node of this host begins with, before the path of its socket.
UNIX = "unix:"

# A node that shares two busy processors with others may have to wait for its turn for half of it.
DETECTION_MIN_S = 0.5

# What says that there are to be other nodes: one that nothing says so of opens no port.
OF_CLUSTERS = (
    *("listen", "advertise", "join", "cluster", "token", "token_file", "certificate", "key", "ca", "crl"),
    *("plain", "insecure"),
)

# Where a node listens for others if nothing says where.
LOOPBACK = "127.0.0.1:0"

# As long as a label's value in Kubernetes.
RACK_BYTES_MAX = 63

DEGREES = ("1", "2", "n")

LEVELS = ("off", "error", "warn", "info", "debug", "trace")

YES = ("1", "true", "yes", "on")
NO = ("0", "false", "no", "off")

ARGUMENT = "argument"
DEFAULT = "default"


class SettingsWarning(UserWarning):
    """A setting is probably not what its author meant: a variable that nothing reads."""


class Kind(NamedTuple):
    """What values a setting takes.

    Attributes:
        metavar: one word for it in help texts.
        in_file: how it is written in TOML.
        types: what TOML may have read.
        parse: turns the text of a variable or an option into what `check` takes; raises ValueError.
        check: judges a value, named by its first argument, and returns it as the rest of the package uses it.
    """

    metavar: str
    in_file: str
    types: tuple[type, ...]
    parse: Callable[[str], object]
    check: Callable[[str, Any], object]


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


def _check_advertise(what: str, value: str) -> str:
    # Alone it takes the port that the node listens on.
    text = check_text(what, value)
    return text if is_ip(text) else check_address(what, text)


def _check_rack(what: str, value: str) -> str:
    text = check_text(what, value)
    if not text.isprintable():
        raise InvalidArgument(f"{what} {text!r} has characters that can't be printed")
    if len(text.encode()) > RACK_BYTES_MAX:
        raise InvalidArgument(f"{what} {text!r} is too long: {len(text.encode())} bytes, at most {RACK_BYTES_MAX}")
    return text


def _check_degree(what: str, value: str | int) -> str:
    text = str(value) if isinstance(value, int) else check_text(what, value)
    if text not in DEGREES:
        raise InvalidArgument(f"{what} is {value!r}; it is one of {', '.join(DEGREES)}")
    return text


def _check_seeds(what: str, value: str | Iterable[str]) -> list[str]:
    if isinstance(value, str):
        value = _split(check_text(what, value))
    if not isinstance(value, Iterable):
        raise InvalidArgument(f"{what} is a list of addresses, not a {type(value).__name__}")
    return [check_address(what, seed) for seed in value]


def _check_place(what: str, value: str) -> str:
    text = check_text(what, value)
    if text.startswith(UNIX):
        if text == UNIX:
            raise InvalidArgument(f'{what} "{UNIX}" has no path')
        return text
    for part in _split(text):
        try:
            check_address(what, part)
        except InvalidArgument as error:
            raise InvalidArgument(f'{error}; "{UNIX}/path" is a node of this host') from None
    return text


def _check_flag(what: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{what} is true or false, not a {type(value).__name__}")
    return value


def _check_seconds(what: str, value: float) -> float:
    try:
        check_timeout(value)
    except InvalidArgument:
        raise InvalidArgument(f"{what} is {value!r}; it is a number of seconds from 0 up") from None
    return float(value)


def _check_detection(what: str, value: float) -> float:
    seconds = _check_seconds(what, value)
    if seconds < DETECTION_MIN_S:
        raise InvalidArgument(
            f"{what} is {value!r}; at least {DETECTION_MIN_S}: a busy host answers later, and would count as dead"
        )
    return seconds


def _check_level(what: str, value: str) -> str:
    text = check_text(what, value).lower()
    if text not in LEVELS:
        raise InvalidArgument(f"{what} is {value!r}; it is one of {', '.join(LEVELS)}")
    return text


def _parse_allowed(text: str) -> bool | list[str]:
    return _parse_flag(text) if text.lower() in YES + NO else _split(text)


def _parse_flag(text: str) -> bool:
    if text.lower() not in YES + NO:
        raise ValueError(text)
    return text.lower() in YES


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


TEXT = Kind("TEXT", 'text, as "mine"', (str,), str, check_text)
TOKEN = Kind("TOKEN", "what `hoplite token new` prints", (str,), str, check_token)
PATH = Kind("PATH", 'a path, as "/run/hoplite/node.sock"', (str,), str, check_text)
ADDRESS = Kind("HOST:PORT", '"host:port", as "10.0.0.1:7420"', (str,), str, check_address)
ADVERTISE = Kind("HOST[:PORT]", '"host:port", or an address alone', (str,), str, _check_advertise)
RACK = Kind("NAME", 'a name, as "rack7"', (str,), str, _check_rack)
DEGREE = Kind("1|2|n", '1 for a chain, 2 for a tree or "n" for a star', (str, int), str, _check_degree)
ADDRESSES = Kind(
    "HOST:PORT",
    'a list, as ["10.0.0.1:7420", "10.0.0.2:7420"]; commas in a variable',
    (str, list),
    _split,
    _check_seeds,
)
PLACE = Kind("ADDRESS", '"unix:/path" or "host:port,host:port"', (str,), str, _check_place)
SIZE = Kind("SIZE", '"8GiB", "500MB" or a number of bytes', (str, int), str, lambda _, value: check_capacity(value))
LIMIT = SIZE._replace(check=check_size)
SECONDS = Kind("SECONDS", "a number of seconds, as 30", (int, float), float, _check_seconds)
DETECTION = Kind("SECONDS", "a number of seconds, as 3", (int, float), float, _check_detection)
FLAG = Kind("BOOL", "true or false; also 1 or 0 in a variable", (bool,), _parse_flag, _check_flag)
ALLOWED = Kind(
    "BOOL|NAMES",
    'true, false or a list of names, as ["mypackage.*", "datetime.datetime"]; commas in a variable',
    (bool, list),
    _parse_allowed,
    check_allowed,
)
LEVEL = Kind("LEVEL", f"one of {', '.join(LEVELS)}", (str,), str, _check_level)

SETTINGS = (
    Setting(
        "listen",
        ADDRESS,
        None,
        "Where other nodes reach this one, by TCP; port 0 takes any free one.",
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
        "its rack, and what their links carry. It says more than `rack`. The word `measure` has four or more "
        "hosts that are told nothing find out, by bursts while they are idle, which of them share a link.",
        default_text="none",
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
        "Do without a token or certificates: every node that can reach this one may join, and read, put and delete all "
        "objects.",
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
        "degree",
        DEGREE,
        None,
        "Children of each position in the tree of every reduce that this node's clients begin: for measurements.",
        default_text="what is predicted to be fastest, for each reduce",
    ),
    Setting(
        "socket",
        PATH,
        None,
        "Unix socket for the processes of this host: where a node serves them, and where they look for it.",
        default_text="this user's",
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
        "What `hoplite.init()` uses: a node of this host to attach to, or a cluster that an embedded node joins.",
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
        default_text="false for clients of a node whose cluster is `plain` or has no token; true for others",
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

# Of this process: a warning at each call would say nothing new.
_warned: set[str] = set()


class Values:
    """The values of some settings, and where each comes from."""

    def __init__(self, found: Mapping[str, tuple[Any, str]]) -> None:
        self._found = found

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - each setting has a type of its own
        return self._found[name][0]

    def origin(self, name: str) -> str:
        """Where a value was said: "argument", a variable, "FILE: key", or "default"."""
        return self._found[name][1]

    def is_set(self, name: str) -> bool:
        """Whether a value was said."""
        return self.origin(name) != DEFAULT

    def listen_address(self) -> str | None:
        """Where a node listens; None if these settings ask for no other nodes, and so for no port."""
        if self["listen"] is not None:
            listen: str = self["listen"]
            return listen
        return LOOPBACK if any(self.is_set(name) and self[name] not in (False, []) for name in OF_CLUSTERS) else None

    def check_cluster(self, running: str, path: str, advice: str) -> None:
        """Refuses a running node that is of another cluster than these settings name, if they name one.

        Args:
            running: the cluster of the node.
            path: of the node's socket.
            advice: what to do about it; ends the error.

        Raises:
            InvalidArgument: the clusters differ.
        """
        if self.is_set("cluster") and running != self["cluster"]:
            raise InvalidArgument(
                f"the node at {UNIX}{path} is of cluster {running!r}, and {self['cluster']!r} was asked for "
                f"({self.origin('cluster')}): {advice}"
            )

    def given(self, *names: str) -> list[str]:
        """Those of some settings that the caller itself said."""
        return [name for name in names if self.origin(name) == ARGUMENT]


def load(config: str | os.PathLike[str] | None = None, /, **arguments: object) -> Values:
    """Finds the values of settings.

    Args:
        config: a TOML file; None means the one that HOPLITE_CONFIG names, if it is set.
        arguments: the settings to find, by name; None means that the caller said nothing.

    Raises:
        InvalidArgument: a value makes no sense, or the file can't be read or has a key that is none; names the
            variable, or the file and the key.
    """
    _warn_of_strange_variables()
    if config is None:
        config = os.environ.get(CONFIG_VARIABLE) or None
    in_file = read_file(config) if config is not None else {}
    found: dict[str, tuple[Any, str]] = {}
    for name, argument in arguments.items():
        setting = TABLE[name]
        text = os.environ.get(setting.variable)
        if argument is not None:
            found[name] = setting.kind.check(name, argument), ARGUMENT
        elif text:
            try:
                found[name] = setting.from_text(text), setting.variable
            except InvalidArgument as error:
                raise InvalidArgument(f"{setting.variable}: {error}") from None
        elif name in in_file:
            found[name] = in_file[name], f"{config}: {name}"
        else:
            found[name] = setting.default, DEFAULT
    return Values(found)


def may_pickle(allow_pickle: bool | Iterable[str] | None) -> Allowed | None:
    """Which values that need pickle a client may put and get: as its maker says, else as the settings say.

    Returns:
        None if neither says anything.

    Raises:
        InvalidArgument: `allow_pickle` is no bool and no list of names, here or in the settings.
    """
    allowed: Allowed | None = load(allow_pickle=allow_pickle)["allow_pickle"]
    return allowed


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a TOML file of settings, each key of which is the name of one.

    Raises:
        InvalidArgument: the file can't be read, is no TOML, has a key or a value that is none, or has a token that
            others can read.
    """
    # Here, since most programs name no file.
    import tomllib

    file = Path(check_text("config", path)).expanduser()
    try:
        with file.open("rb") as opened:
            facts = os.fstat(opened.fileno())
            content = tomllib.load(opened)
    except OSError as error:
        raise InvalidArgument(f"the settings in {file} can't be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{file} is not TOML: {error}") from None

    values = {}
    for key, value in content.items():
        if key not in TABLE:
            raise InvalidArgument(f"{file}: {_unknown(key, value)}")
        try:
            values[key] = TABLE[key].from_file(value)
        except InvalidArgument as error:
            raise InvalidArgument(f"{file}: {error}") from None
    if "token" in values:
        check_private(file, facts)
    return values


def closest(word: str, words: Iterable[str]) -> str:
    """Names the word that was probably meant, as " (did you mean X?)"; empty if none is near."""
    import difflib

    near = difflib.get_close_matches(word, list(words), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _unknown(key: str, value: object) -> str:
    if isinstance(value, dict):
        return f"[{key}] is a section; settings are written without any, at the top of the file"
    return f"{key} is no setting{closest(key, TABLE)}; there are {', '.join(TABLE)}"


def _warn_of_strange_variables() -> None:
    for variable in os.environ:
        if variable.startswith(PREFIX) and variable not in VARIABLES:
            near = closest(variable, VARIABLES)
            _warn(variable, f"{variable} is set, and nothing reads it{near}; known are {', '.join(sorted(VARIABLES))}")


def _warn(key: str, message: str) -> None:
    if key not in _warned:
        _warned.add(key)
        # To the call of a user, more or less: load, and the function of the package that called it.
        warnings.warn(message, SettingsWarning, stacklevel=4)
