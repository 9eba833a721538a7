"""Plans on disk, one file for each environment and request: $XDG_CACHE_HOME/hoplite/select/KEY.json.

The results of failure checks are files of the same kind, under their own keys. A file that is broken, of another user
or of another environment is ignored with a warning, and replaced by the next plan. Files are written to a temporary
name first, so a reader never sees a part of one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hoplite.errors import HopliteError
from hoplite.files import take_lock
from hoplite_bench.select.plan import BadPlan, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Value = TypeVar("Value")

FORMAT = 1
# A plan with a hundred candidates has 30 KB.
BYTES_MAX = 4 << 20


class Busy(HopliteError):
    """Another selection measures on this machine."""


class NotWritable(HopliteError):
    """The folder of the cache can't be created; the message names it."""


def root() -> Path:
    """The folder of all caches of hoplite: $XDG_CACHE_HOME/hoplite, by default ~/.cache/hoplite."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hoplite"


def load(key: str, warn: Callable[[str], None]) -> Plan | None:
    """Reads the plan of an environment.

    Args:
        key: key of the environment and the request.
        warn: called with the reason if there is a file that can't be used.

    Returns:
        The plan, or None if there is no valid one.
    """

    def parse(value: object) -> Plan:
        plan = Plan.from_json(value)
        if plan.fingerprint != key:
            raise BadPlan("it was written for another environment")
        return dataclasses.replace(plan, cached=True)

    return _read(key, "plan", parse, warn)


def store(plan: Plan, environment: Mapping[str, Any], warn: Callable[[str], None]) -> None:
    """Writes a plan under its fingerprint, with a description of the environment for people.

    A plan that can't be written is valid anyway, so this warns instead of raising.
    """
    _write(plan.fingerprint, {"plan": plan.to_json(), "environment": environment}, warn)


def load_unsafe(key: str, warn: Callable[[str], None]) -> dict[str, str]:
    """Reads the results of failure checks: for each checked system why it is not safe, or an empty text."""

    def parse(value: object) -> dict[str, str]:
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
            raise BadPlan("it does not hold a reason for each system")
        return value

    return _read(key, "unsafe", parse, warn) or {}


def store_unsafe(key: str, found: Mapping[str, str], warn: Callable[[str], None]) -> None:
    """Writes the results of failure checks."""
    _write(key, {"unsafe": dict(found)}, warn)


@contextlib.contextmanager
def measuring(timeout_s: float, notify: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Excludes other selections of this user while one measures, because they would slow each other down.

    Args:
        timeout_s: seconds to wait for another one.
        notify: called with a message if there is another one.

    Raises:
        Busy: another one did not end within the timeout.
        NotWritable: the folder of the cache can't be created.
    """
    folder = root() / "select"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (folder / "lock").open("w")
    except OSError as error:
        raise NotWritable(
            f"can't create a lock in {folder}: {error.strerror}; set XDG_CACHE_HOME to a folder that you can write"
        ) from None
    with file:
        if not take_lock(file.fileno(), 0):
            notify("waiting for another selection of this user")
            if not take_lock(file.fileno(), timeout_s):
                raise Busy(
                    f"another selection of this user has been running for {timeout_s:.0f} s: wait for its end, or "
                    "set a longer timeout"
                )
        yield


def _read(key: str, field: str, parse: Callable[[object], Value], warn: Callable[[str], None]) -> Value | None:
    path = _path(key)
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                raise BadPlan("it belongs to another user")
            text = file.read(BYTES_MAX + 1)
        if len(text) > BYTES_MAX:
            raise BadPlan(f"it has more than {BYTES_MAX} bytes")
        entry = json.loads(text)
        if not isinstance(entry, dict) or entry.get("format") != FORMAT:
            raise BadPlan(f"it does not have format {FORMAT}")
        return parse(entry.get(field))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, BadPlan) as error:
        warn(f"ignoring {path}, which is not valid: {error}; it will be replaced")
        return None


def _write(key: str, content: Mapping[str, Any], warn: Callable[[str], None]) -> None:
    import tempfile

    path = _path(key)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps({"format": FORMAT, **content}, indent=1)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            try:
                file.write(text)
                file.close()
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        warn(f"can't write {path}: {error.strerror}; set XDG_CACHE_HOME to a folder with free space")


def _path(key: str) -> Path:
    return root() / "select" / f"{key}.json"
