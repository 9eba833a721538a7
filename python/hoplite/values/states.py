"""What a pickle may change by a list: objects that it makes, and never the classes, functions and modules it names.

These belong to the whole process: an attribute set on `Ref` would change every ref of the reader. Of the opcodes, BUILD
sets attributes; those for the items of lists, sets and dicts call methods of any other object.
"""

from __future__ import annotations

import enum
import sys
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from hoplite.errors import DecodeError

# Not made by the pickle, whichever way it got them. A member of an enumeration is one object for all.
_OF_THE_PROCESS = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, enum.Enum)
# APPEND, APPENDS and ADDITEMS call these of what is neither a list nor a set, SETITEM and SETITEMS `__setitem__`.
_ADD = ("append", "extend", "add")


def item_target(name: str, found: object) -> str:
    """Why a pickle must not name an object: the opcodes for items could change it, or call a method of it.

    Args:
        name: by which the pickle asks for it.
        found: what the name stands for; often a class or a function.

    Returns:
        The reason, of a dict, a module or a class with a class method `add` for instance; or else "".
    """
    if isinstance(found, ModuleType) or hasattr(type(found), "__setitem__") or any(_can(found, add) for add in _ADD):
        return (
            f"it takes {name}, which a pickle could change for the whole process by opcodes for items: put its "
            f"contents instead, or rename its class methods {', '.join(_ADD)}"
        )
    return ""


def _can(found: object, add: str) -> bool:
    if not isinstance(found, type):
        return hasattr(found, add)
    # The methods of instances need one, which these opcodes don't pass.
    own = next((vars(each)[add] for each in found.__mro__ if add in vars(each)), None)
    return hasattr(type(found), add) or isinstance(own, classmethod | staticmethod)


def check_target(target: object, *, is_shared: bool) -> None:
    """Checks that a pickle may set attributes of an object.

    Args:
        target: the object.
        is_shared: whether it is known not to be of the pickle's making.

    Raises:
        DecodeError: it is shared: a class, a function or a module, or a member of an enumeration.
    """
    if is_shared or isinstance(target, _OF_THE_PROCESS):
        raise DecodeError(
            f"the object can't be unpickled: it would change {target!r:.200}, which is shared by the whole process; "
            "delete the object if you don't know its putter"
        )


def build(target: Any, state: Any) -> None:  # noqa: ANN401 - values are anything
    """Gives an object its state, as the opcode BUILD does."""
    if (take := getattr(target, "__setstate__", None)) is not None:
        take(state)
        return
    slots = None
    if isinstance(state, tuple) and len(state) == 2:
        state, slots = state
    if state:
        attributes = target.__dict__
        for name, value in state.items():
            attributes[sys.intern(name) if type(name) is str else name] = value
    if slots:
        for name, value in slots.items():
            setattr(target, name, value)
