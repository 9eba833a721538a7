"""Objects that a pickle may modify if `allow_pickle` is a list: only those that it creates.

Classes, functions and modules that it refers to by name belong to the whole process: an attribute set on `Ref` would
change every ref of the reader. The opcode BUILD sets attributes. The opcodes for items of lists, sets and dicts call
methods of other objects.
"""

from __future__ import annotations

import enum
import sys
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from hoplite.errors import DecodeError

# Objects of these types are never created by the pickle. A member of an enumeration is one object for the process.
_OF_THE_PROCESS = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, enum.Enum)
# APPEND, APPENDS and ADDITEMS call these methods of objects other than lists and sets; SETITEM and SETITEMS call
# `__setitem__`.
_ADD = ("append", "extend", "add")


def item_target(name: str, found: object) -> str:
    """Returns why a pickle must not refer to an object by name: opcodes for items could modify it or call its methods.

    Args:
        name: name in the pickle.
        found: object of that name, usually a class or a function.

    Returns:
        The reason, for example for a dict, a module, or a class with a class method `add`; else "".
    """
    if isinstance(found, ModuleType) or hasattr(type(found), "__setitem__") or any(_can(found, add) for add in _ADD):
        return (
            f"it uses {name}, which the whole process shares and the pickle could change by adding items: put its "
            f"contents instead, or rename its class methods {', '.join(_ADD)}"
        )
    return ""


def _can(found: object, add: str) -> bool:
    if not isinstance(found, type):
        return hasattr(found, add)
    # Instance methods need an instance, which these opcodes do not pass.
    own = next((vars(each)[add] for each in found.__mro__ if add in vars(each)), None)
    return hasattr(type(found), add) or isinstance(own, classmethod | staticmethod)


def check_target(target: object, *, is_shared: bool) -> None:
    """Checks that a pickle may set attributes of an object.

    Args:
        target: the object.
        is_shared: whether the pickle found it by name.

    Raises:
        DecodeError: the object is shared: a class, a function, a module or a member of an enumeration.
    """
    if is_shared or isinstance(target, _OF_THE_PROCESS):
        raise DecodeError(
            f"the object can't be unpickled: it would change {target!r:.200}, which is shared by the whole process; "
            "delete the object if you do not know which program put it"
        )


def build(target: Any, state: Any) -> None:  # noqa: ANN401 - values are anything
    """Sets the state of an object, as the opcode BUILD does."""
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
