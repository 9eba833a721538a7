"""Which classes and functions a pickle may use: all of them, none, or those on a list.

An entry of the list is a name, as "mypackage.points.Point", or a pattern of names, as "mypackage.*". What the arrays,
tensors and refs in a value are made by is always allowed; numbers, text and containers use none. Knows no pickle.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterable

from hoplite.errors import InvalidArgument
from hoplite.values.kinds import DTYPES

# All, none, or those on a list.
Allowed = bool | tuple[str, ...]

# Of refs, and of arrays, scalars and tensors whose elements are plain: they make these and nothing else. Not NumPy's
# own `dtype` and `ndarray`, which take a crafted description as it is, and then read memory that is not theirs.
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

# What a list must not let in by a pattern that says more than its author meant: it runs any code.
ANYTHING = "builtins.eval"

_ENTRY = re.compile(r"[\w*?\[\]!-]+(\.[\w*?\[\]!-]+)+")


def check_allowed(what: str, value: bool | Iterable[str]) -> Allowed:
    """Reads what pickles may use: true, false, or a list of names and patterns.

    Args:
        what: names the argument in the error.
        value: as its author wrote it.

    Raises:
        InvalidArgument: it is none of these; says what to write.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidArgument(f'{what} is true, false or a list of names, as ["mypackage.*"], not {value!r}')
    entries = tuple(value)
    for entry in entries:
        if not _is_entry(entry):
            raise InvalidArgument(f'{what} has {entry!r}; write "module.Class", or "package.*" for all of a package')
        if fnmatch.fnmatchcase(ANYTHING, entry):
            raise InvalidArgument(
                f"{what} has {entry!r}, by which a pickle runs any code: name single classes, or say true"
            )
    return entries


def _is_entry(entry: object) -> bool:
    return isinstance(entry, str) and _ENTRY.fullmatch(entry) is not None


def may_be_asked(allowed: tuple[str, ...], name: str) -> bool:
    """Whether a pickle may ask for a class or a function by this name, "module.qualified.name"."""
    return name in ALWAYS or _matches(allowed, name)


def is_allowed(allowed: tuple[str, ...], name: str, found: object) -> bool:
    """Whether a pickle may use what a name stands for.

    A pattern allows what a package defines, not what it imports: "mypackage.*" must not reach `os.system` because a
    module of the package has imported it. So a pattern must match the name under which the thing was defined too.

    Args:
        allowed: the list.
        name: by which the pickle asks for it.
        found: the class or the function.
    """
    if name in ALWAYS or name in allowed:
        return True
    return _matches(allowed, name) and _matches(allowed, defined_as(found))


def defined_as(found: object) -> str:
    """The module and the qualified name of a class or a function; empty for what has none."""
    module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    return f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else ""


@functools.lru_cache(maxsize=1024)
def _matches(allowed: tuple[str, ...], name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, entry) for entry in allowed)
