"""What values settings take: how each kind is written, read from text and judged. Knows no setting."""

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

# What the address of a node of this host begins with, before the path of its socket.
UNIX = "unix:"

# The address of the host's node, which is waited for: no process starts one of its own.
LOCAL = "local"

# A node that shares two busy processors with others may have to wait for its turn for half of it.
DETECTION_MIN_S = 0.5

# As long as a label's value in Kubernetes.
RACK_BYTES_MAX = 63

LEVELS = ("off", "error", "warn", "info", "debug", "trace")

YES = ("1", "true", "yes", "on")
NO = ("0", "false", "no", "off")


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


def _check_seeds(what: str, value: str | Iterable[str]) -> list[str]:
    if isinstance(value, str):
        value = _split(check_text(what, value))
    if not isinstance(value, Iterable):
        raise InvalidArgument(f"{what} is a list of addresses, not a {type(value).__name__}")
    return [check_address(what, seed) for seed in value]


def _check_place(what: str, value: str) -> str:
    text = check_text(what, value)
    if text == LOCAL:
        return text
    if text.startswith(UNIX):
        if text == UNIX:
            raise InvalidArgument(f'{what} "{UNIX}" has no path')
        return text
    for part in _split(text):
        try:
            check_address(what, part)
        except InvalidArgument as error:
            said = f'"{LOCAL}" is the node of this host, and "{UNIX}/path" the one that serves that socket'
            raise InvalidArgument(f"{error}; {said}") from None
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
ADDRESSES = Kind(
    "HOST:PORT",
    'a list, as ["10.0.0.1:7420", "10.0.0.2:7420"]; commas in a variable',
    (str, list),
    _split,
    _check_seeds,
)
PLACE = Kind("ADDRESS", '"local", "unix:/path" or "host:port,host:port"', (str,), str, _check_place)
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
