"""Types of settings: the syntax, parser and check of each. Does not know settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from hoplite._arguments import check_text, check_timeout
from hoplite.addresses import check_address, is_ip
from hoplite.errors import InvalidArgument
from hoplite.sizes import check_capacity, check_size
from hoplite.tokens import check_token
from hoplite.values import check_allowed

if TYPE_CHECKING:
    from collections.abc import Callable

# Prefix of an address that is the path of a Unix socket.
UNIX = "unix:"

# The address of this host's node: a process waits for it and starts none.
LOCAL = "local"

# Host of an HTTP port without a host.
LOOPBACK = "127.0.0.1"

# A node that shares two busy processors with others may wait half of this time to be scheduled.
DETECTION_MIN_S = 0.5

# Maximum length of a label value in Kubernetes.
RACK_BYTES_MAX = 63

LEVELS = ("off", "error", "warn", "info", "debug", "trace")

# Level of other modules, if a value names only modules.
DEFAULT_LEVEL = "info"

# Modules of a node that log: the files and folders of crates/node/src.
LOG_MODULES = ("disk", "engine", "local", "network", "node", "shell", "transfer")

LOG_FORMATS = ("text", "json")

YES = ("1", "true", "yes", "on")
NO = ("0", "false", "no", "off")


class Kind(NamedTuple):
    """The type of a setting.

    Attributes:
        metavar: placeholder in help texts.
        in_file: syntax in TOML, for messages.
        types: Python types of the value in TOML.
        parse: converts the text of a variable or option into the argument of `check`; raises ValueError.
        check: checks a value and returns it as the rest of the package uses it. Its first argument is the name of the
            setting, for errors.
    """

    metavar: str
    in_file: str
    types: tuple[type, ...]
    parse: Callable[[str], object]
    check: Callable[[str, Any], object]


def path_kind(example: str, *, other: str = "") -> Kind:
    """The type of a path.

    Args:
        example: a path that fits the setting.
        other: what the setting accepts instead of a path.
    """
    return Kind("PATH", f'a path, such as "{example}"{other}', (str,), str, check_text)


def _check_advertise(what: str, value: str) -> str:
    # An IP address without a port gets the port on which the node listens.
    text = check_text(what, value)
    return text if is_ip(text) else check_address(what, text)


def _check_http(what: str, value: str | int) -> str:
    # A port alone is one of loopback.
    text = str(value) if isinstance(value, int) else check_text(what, value)
    return check_address(what, f"{LOOPBACK}:{text}" if text.isascii() and text.isdigit() else text)


def _check_rack(what: str, value: str) -> str:
    text = check_text(what, value)
    if not text.isprintable():
        raise InvalidArgument(f"{what} {text!r} has unprintable characters: remove them")
    if len(text.encode()) > RACK_BYTES_MAX:
        raise InvalidArgument(
            f"{what} {text!r} has {len(text.encode())} bytes, which is too long: use at most {RACK_BYTES_MAX}"
        )
    return text


def _check_seeds(what: str, value: str | Iterable[str]) -> list[str]:
    if isinstance(value, str):
        value = _split(check_text(what, value))
    if not isinstance(value, Iterable):
        raise InvalidArgument(f"{what} must be a list of addresses, not a {type(value).__name__}")
    return [check_address(what, seed) for seed in value]


def _check_place(what: str, value: str) -> str:
    text = check_text(what, value)
    if text == LOCAL:
        return text
    if text.startswith(UNIX):
        if text == UNIX:
            raise InvalidArgument(f'{what} "{UNIX}" has no path: write "{UNIX}/path"')
        return text
    for part in _split(text):
        try:
            check_address(what, part)
        except InvalidArgument as error:
            others = f'or "{LOCAL}" for the node of this host, or "{UNIX}/path" for the node that serves that socket'
            raise InvalidArgument(f"{error}, {others}") from None
    return text


def _check_flag(what: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{what} must be true or false, not a {type(value).__name__}")
    return value


def _check_seconds(what: str, value: float) -> float:
    try:
        check_timeout(value)
    except InvalidArgument:
        raise InvalidArgument(f"{what} is {value!r}: set a number of seconds from 0 up") from None
    return float(value)


def _check_detection(what: str, value: float) -> float:
    seconds = _check_seconds(what, value)
    if seconds < DETECTION_MIN_S:
        raise InvalidArgument(
            f"{what} {value!r} is too short: a busy host would be declared dead. Set at least {DETECTION_MIN_S}"
        )
    return seconds


def _check_levels(what: str, value: str) -> str:
    parts = [part.replace("warning", "warn") for part in _split(check_text(what, value).lower())]
    for part in parts:
        module, is_module, level = part.rpartition("=")
        if is_module and module not in LOG_MODULES:
            raise InvalidArgument(f"{what} {value!r} names no module {module!r}: use {', '.join(LOG_MODULES)}")
        if level not in LEVELS:
            raise InvalidArgument(
                f"{what} {value!r} has no level {level!r}: write one of {', '.join(LEVELS)}, or MODULE=LEVEL"
            )
    named = [part.rpartition("=")[0] for part in parts]
    if len(set(named)) < len(named):
        raise InvalidArgument(f"{what} {value!r} sets a level twice: write one default, and each module once")
    return ",".join(parts if "" in named else [DEFAULT_LEVEL, *parts])


def _check_format(what: str, value: str) -> str:
    text = check_text(what, value).lower()
    if text not in LOG_FORMATS:
        raise InvalidArgument(f"{what} is {value!r}: set one of {', '.join(LOG_FORMATS)}")
    return text


def _parse_allowed(text: str) -> bool | list[str]:
    return _parse_flag(text) if text.lower() in YES + NO else _split(text)


def _parse_flag(text: str) -> bool:
    if text.lower() not in YES + NO:
        raise ValueError(text)
    return text.lower() in YES


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


TEXT = Kind("TEXT", 'a string, such as "mine"', (str,), str, check_text)
TOKEN = Kind("TOKEN", "the output of `hoplite token new`", (str,), str, check_token)
ADDRESS = Kind("HOST:PORT", '"host:port", such as "10.0.0.1:7420"', (str,), str, check_address)
HTTP = Kind("[HOST:]PORT", 'a port, or "host:port", such as "10.0.0.1:7480"', (str, int), str, _check_http)
ADVERTISE = Kind("HOST[:PORT]", '"host:port", or an IP address without a port', (str,), str, _check_advertise)
RACK = Kind("NAME", 'a name, such as "rack7"', (str,), str, _check_rack)
ADDRESSES = Kind(
    "HOST:PORT",
    'a list, such as ["10.0.0.1:7420", "10.0.0.2:7420"]; separated by commas in a variable',
    (str, list),
    _split,
    _check_seeds,
)
PLACE = Kind("ADDRESS", '"local", "unix:/path" or "host:port,host:port"', (str,), str, _check_place)
SIZE_SYNTAX = '"8GiB", "8G" (the same), "500MB" or a number of bytes'
SIZE = Kind("SIZE", SIZE_SYNTAX, (str, int), str, lambda _, value: check_capacity(value))
LIMIT = SIZE._replace(check=check_size)
SECONDS = Kind("SECONDS", "a number of seconds, such as 30", (int, float), float, _check_seconds)
DETECTION = Kind("SECONDS", "a number of seconds, such as 3", (int, float), float, _check_detection)
FLAG = Kind("BOOL", "true or false; also 1 or 0 in a variable", (bool,), _parse_flag, _check_flag)
ALLOWED = Kind(
    "BOOL|NAMES",
    'true, false or a list of names, such as ["mypackage.*", "datetime.datetime"]; separated by commas in a variable',
    (bool, list),
    _parse_allowed,
    check_allowed,
)
LEVEL = Kind("LEVELS", '"info", or "info,transfer=debug" with levels of modules', (str,), str, _check_levels)
FORMAT = Kind("FORMAT", f"one of {', '.join(LOG_FORMATS)}", (str,), str, _check_format)
