"""The classes and functions that a pickle may use: all, none, or those on a list.

An entry of the list is a name, such as "mypackage.points.Point", or a pattern of names, such as "mypackage.*". The
functions that restore arrays, tensors and refs are always allowed. Numbers, text and containers use none. Does not know
the pickle format.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterable

from hoplite.errors import InvalidArgument
from hoplite.values.kinds import DTYPES

# True for all, False for none, or a list.
Allowed = bool | tuple[str, ...]

# Functions that create only refs, and arrays, scalars and tensors of plain elements. Not NumPy's own `dtype` and
# `ndarray`: with a crafted description, these read memory outside the array.
ALWAYS = frozenset(
    {
        "hoplite.ref.Ref",
        "hoplite.values.arrays.restore_array",
        "hoplite.values.arrays.restore_locked",
        "hoplite.values.arrays.restore_scalar",
        "hoplite.values.tensors.restore_tensor",
        *(f"torch.{dtype}" for dtype in DTYPES),
    }
)

# A pattern that matches this function allows more than its author meant, because it runs any code.
ANYTHING = "builtins.eval"

_ENTRY = re.compile(r"[\w*?\[\]!-]+(\.[\w*?\[\]!-]+)+")


def check_allowed(what: str, value: bool | Iterable[str]) -> Allowed:
    """Checks the setting `allow_pickle`: true, false, or a list of names and patterns.

    Args:
        what: name of the argument, for the error.
        value: the value.

    Raises:
        InvalidArgument: the value is not valid.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidArgument(f'{what} must be true, false or a list of names such as ["mypackage.*"], not {value!r}')
    entries = tuple(value)
    for entry in entries:
        if not _is_entry(entry):
            raise InvalidArgument(f'{what} has {entry!r}: write "module.Class", or "package.*" for a whole package')
        if fnmatch.fnmatchcase(ANYTHING, entry):
            raise InvalidArgument(
                f"{what} has {entry!r}, which lets a pickle run any code: list single classes, or set true"
            )
    return entries


def _is_entry(entry: object) -> bool:
    return isinstance(entry, str) and _ENTRY.fullmatch(entry) is not None


def may_be_imported(allowed: tuple[str, ...], name: str) -> bool:
    """Whether a pickle may look up a class or function by this name, "module.qualified.name"."""
    return name in ALWAYS or _matches(allowed, name)


def is_allowed(allowed: tuple[str, ...], name: str, found: object) -> bool:
    """Whether a pickle may use the class or function that it found by a name.

    A pattern allows the definitions of a package, not its imports: "mypackage.*" must not allow `os.system` because a
    module of the package imports it. A pattern must therefore also match the name of the definition.

    Args:
        allowed: the list.
        name: name in the pickle.
        found: the class or function with that name.
    """
    if name in ALWAYS or name in allowed:
        return True
    return _matches(allowed, name) and _matches(allowed, defined_as(found))


def defined_as(found: object) -> str:
    """Returns the module and qualified name of a class or function; empty if it has none."""
    module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    return f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else ""


@functools.lru_cache(maxsize=1024)
def _matches(allowed: tuple[str, ...], name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, entry) for entry in allowed)
