"""The settings of nodes and clients: lookup of their values.

One table (`table`) serves `Node(...)`, `hoplite.init(...)`, the options of `hoplite node` and docs/settings.md. A value
is an argument (or option), else the variable HOPLITE_<NAME>, else a key of the TOML file in `config` or HOPLITE_CONFIG,
else the default. No other file is read. Does not know nodes.
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
from hoplite.settings.table import CONFIG_VARIABLE, OF_PACKAGES, PREFIX, SETTINGS, TABLE, VARIABLES, Setting

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

# Keys of the warnings that this process has issued: each is issued once.
_warned: set[str] = set()


class SettingsWarning(UserWarning):
    """A setting probably does not do what its author meant, such as a variable that nothing reads."""


class Values:
    """Values of settings, and the origin of each."""

    def __init__(self, found: Mapping[str, tuple[Any, str]]) -> None:
        self._found = found

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - each setting has a type of its own
        return self._found[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def replaced(self, changed: Mapping[str, object]) -> Values:
        """Returns these values with some replaced, as if they were passed as arguments."""
        return Values({**self._found, **{name: (value, ARGUMENT) for name, value in changed.items()}})

    def origin(self, name: str) -> str:
        """Origin of a value: "argument", a variable, "FILE: key", or "default"."""
        return self._found[name][1]

    def is_set(self, name: str) -> bool:
        """Whether a value is set, that is, not the default."""
        return self.origin(name) != DEFAULT

    def is_clustered(self) -> bool:
        """Whether these settings configure clustering, so that the node needs a TCP port."""
        return any(self.is_set(name) and self[name] not in (False, []) for name in OF_CLUSTERS)

    def check_cluster(self, running: str, path: str, advice: str) -> None:
        """Rejects a running node of another cluster than the setting `cluster`, if that is set.

        Args:
            running: cluster of the node.
            path: path of the node's socket.
            advice: how to fix it, for the end of the error.

        Raises:
            InvalidArgument: the clusters differ.
        """
        if self.is_set("cluster") and running != self["cluster"]:
            raise InvalidArgument(
                f"the node at {UNIX}{path} belongs to cluster {running!r}, not to {self['cluster']!r} "
                f"({self.origin('cluster')}): {advice}"
            )

    def given(self) -> list[str]:
        """Names of the settings that the caller passed as arguments."""
        return [name for name in self if self.origin(name) == ARGUMENT]


def load(config: str | os.PathLike[str] | None = None, /, **arguments: object) -> Values:
    """Finds the values of settings.

    Args:
        config: path of a TOML file; None means the file in HOPLITE_CONFIG, if that is set.
        arguments: settings to find, by name. None means that the caller passed no value.

    Raises:
        InvalidArgument: a value is not valid, or the file is not readable or has an unknown key. The message names the
            variable, or the file and the key.
    """
    _warn_of_unknown_variables()
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
        arguments: settings by name, and optionally `config`. A missing setting was not passed.
        of_node: whether to find only the settings of nodes.

    Raises:
        InvalidArgument: as for `load`.
    """
    names = [setting.name for setting in SETTINGS if setting.of_node or not of_node]
    return load(arguments.get("config"), **{name: arguments.get(name) for name in names})


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a TOML file of settings. Each key is the name of a setting.

    Raises:
        InvalidArgument: the file is not readable or not TOML; a key is unknown or a value not valid; it contains a
            token and other users can read it; or every user can write it.
    """
    # Imported here: most programs have no settings file.
    import tomllib

    file = Path(check_text("config", path)).expanduser()
    try:
        with file.open("rb") as opened:
            facts = os.fstat(opened.fileno())
            content = tomllib.load(opened)
    except OSError as error:
        raise InvalidArgument(f"can't read the settings in {file}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{file} is not valid TOML: {error}") from None

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
    """Returns " (did you mean X?)" with the most similar word; empty if none is similar."""
    import difflib

    near = difflib.get_close_matches(word, list(words), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _unknown(key: str, value: object) -> str:
    if isinstance(value, dict):
        return f"[{key}] is a section: write settings at the top of the file, without sections"
    return f"unknown setting {key}{closest(key, TABLE)}: use {', '.join(TABLE)}"


def _warn_of_unknown_variables() -> None:
    for variable in os.environ:
        if variable.startswith(PREFIX) and variable not in VARIABLES | OF_PACKAGES:
            near = closest(variable, VARIABLES)
            known = ", ".join(sorted(VARIABLES))
            warn(variable, f"{variable} is set, but there is no such setting{near}: unset it, or use one of {known}")


def warn(key: str, message: str) -> None:
    """Issues a warning, once in this process for each key."""
    if key not in _warned:
        _warned.add(key)
        # Approximately the user's call: skips `load` and the function of this package that called it.
        warnings.warn(message, SettingsWarning, stacklevel=4)
