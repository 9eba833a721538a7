"""The settings of a node and of its users: what each takes, and where its value comes from.

One table (`table`) serves `Node(...)`, `hoplite.init(...)`, the options of `hoplite node` and docs/settings.md. A value
is an argument (or option), else the environment's HOPLITE_<NAME>, else a key of the TOML file that `config` or
HOPLITE_CONFIG names, else the default. No other file is looked for. Knows nothing of nodes and starts none.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoplite._arguments import check_text
from hoplite.errors import InvalidArgument
from hoplite.files import check_private, check_trusted
from hoplite.settings.kinds import FLAG, LEVELS, LOCAL, UNIX
from hoplite.settings.table import CONFIG_VARIABLE, PREFIX, SETTINGS, TABLE, VARIABLES, Setting

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "CONFIG_VARIABLE", "FLAG", "LEVELS", "LOCAL", "SETTINGS", "TABLE", "UNIX", "VARIABLES", "Setting",
    "SettingsWarning", "Values", "closest", "load", "load_arguments", "read_file", "warn",
]  # fmt: skip

# Settings that configure clustering. An embedded node without any of them opens no TCP port.
OF_CLUSTERS = (
    *("listen", "advertise", "join", "cluster", "token", "token_file", "certificate", "key", "ca", "crl"),
    *("no_encryption", "no_auth"),
)

ARGUMENT = "argument"
DEFAULT = "default"

# Of this process: a warning at each call would say nothing new.
_warned: set[str] = set()


class SettingsWarning(UserWarning):
    """A setting is probably not what its author meant: a variable that nothing reads."""


class Values:
    """The values of some settings, and where each comes from."""

    def __init__(self, found: Mapping[str, tuple[Any, str]]) -> None:
        self._found = found

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - each setting has a type of its own
        return self._found[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def replaced(self, said: Mapping[str, object]) -> Values:
        """The same, but for some that are as if they were passed as arguments."""
        return Values({**self._found, **{name: (value, ARGUMENT) for name, value in said.items()}})

    def origin(self, name: str) -> str:
        """Where a value was said: "argument", a variable, "FILE: key", or "default"."""
        return self._found[name][1]

    def is_set(self, name: str) -> bool:
        """Whether a value was said."""
        return self.origin(name) != DEFAULT

    def is_clustered(self) -> bool:
        """Whether these settings configure clustering, so that the node needs a TCP port."""
        return any(self.is_set(name) and self[name] not in (False, []) for name in OF_CLUSTERS)

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

    def given(self) -> list[str]:
        """The settings that the caller passed as arguments."""
        return [name for name in self if self.origin(name) == ARGUMENT]


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


def load_arguments(arguments: Mapping[str, Any], *, of_node: bool = False) -> Values:
    """Finds the values of all settings for a function that takes settings as arguments.

    Args:
        arguments: settings by name, and optionally `config`; a missing setting was not passed.
        of_node: only the settings of a node.

    Raises:
        InvalidArgument: as `load`.
    """
    names = [setting.name for setting in SETTINGS if setting.of_node or not of_node]
    return load(arguments.get("config"), **{name: arguments.get(name) for name in names})


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a TOML file of settings, each key of which is the name of one.

    Raises:
        InvalidArgument: the file can't be read, is no TOML, has a key or a value that is none, or has a token that
            others can read; or every user can write it.
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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
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
    check_trusted(file, facts)
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
            warn(variable, f"{variable} is set, and nothing reads it{near}; known are {', '.join(sorted(VARIABLES))}")


def warn(key: str, message: str) -> None:
    """Warns once in this process of what has a certain key."""
    if key not in _warned:
        _warned.add(key)
        # To the call of a user, more or less: load, and the function of the package that called it.
        warnings.warn(message, SettingsWarning, stacklevel=4)
