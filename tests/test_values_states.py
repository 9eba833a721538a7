"""Pickles restricted by a list never change the reader's classes, functions and modules, whatever their bytes."""

from __future__ import annotations

import copyreg
import enum
import gc
import pickle
import struct
import sys
import types
from typing import Any

import numpy as np
import pytest

from hoplite import Ref, values
from hoplite.errors import DecodeError, UnsupportedDtype
from hoplite.values import arrays, check_allowed
from stored import joined, mapped, store

# Also run with the oldest supported versions of torch and NumPy.
pytestmark = pytest.mark.frameworks

ADDED: list[object] = []


class Point:
    """State in a dict."""

    def __init__(self, x: object) -> None:
        self.x = x


class Slotted:
    """State in slots and in a dict."""

    __slots__ = ("__dict__", "x")

    def __init__(self, x: object, y: object) -> None:
        self.x, self.y = x, y


class Careful:
    """State through __setstate__."""

    def __init__(self, x: object) -> None:
        self.x = x

    def __getstate__(self) -> object:
        return [self.x]

    def __setstate__(self, state: list[object]) -> None:
        (self.x,) = state


class Many(list[object]):
    """Items added by item opcodes, and state."""


class Color(enum.Enum):
    """Members are shared objects."""

    RED = 1


class Registry:
    """A class that item opcodes could change."""

    @classmethod
    def add(cls, item: object) -> None:
        ADDED.append(item)


def class_of(value: object) -> type:
    """A function that returns a shared object."""
    return type(value)


SETTINGS = {"a": 1}
DEFAULT = Point(1)
HERE = f"{__name__}.*"


def there_and_back(value: object, *allowed: str) -> Any:  # noqa: ANN401 - values are anything
    names = check_allowed("allow_pickle", allowed)
    return values.decode(store(values.encode(value, allow_pickle=names)), allow_pickle=names)


def read(stream: bytes, *allowed: str) -> Any:  # noqa: ANN401 - values are anything
    """Unpickles bytes that any member of the cluster can put."""
    magic = joined(values.encode(None))[:8]
    data = mapped(magic + struct.pack("<QQ", len(stream), 0) + stream, form="pickle")
    return values.decode(data, allow_pickle=check_allowed("allow_pickle", allowed))


def name(module: str, qualified: str) -> bytes:
    words = (word.encode() for word in (module, qualified))
    return b"".join(b"\x8c" + bytes([len(word)]) + word for word in words) + b"\x93"


def plain(value: object) -> bytes:
    """Returns the opcodes of plain data."""
    return pickle.dumps(value, 3)[2:-1]


REF = name("hoplite.ref", "Ref")
ARRAY = name("hoplite.values.arrays", "restore_array")
LOCKED = name("hoplite.values.arrays", "restore_locked")
DEFAULT_NAME = name(__name__, "DEFAULT")
SLOTS = plain((None, {"changed": "by a pickle"}))
DICT = plain({"changed": "by a pickle"})
MINE = plain("x")

CHANGES: dict[str, bytes] = {
    "class": REF + SLOTS + b"b",
    "class of protocol 0": b"choplite.ref\nRef\n" + SLOTS + b"b",
    "function": ARRAY + SLOTS + b"b",
    "dict of a function": ARRAY + DICT + b"b",
    "defaults of a function": ARRAY + plain((None, {"__defaults__": (1,)})) + b"b",
    "remembered class": REF + b"\x940h\x00" + SLOTS + b"b",
    "class in a frame": b"\x95" + struct.pack("<Q", len(REF + SLOTS) + 1) + REF + SLOTS + b"b",
    "function by the setter of arrays": LOCKED + ARRAY + b"(" + DICT + b"N" + plain(b"") + b"t\x86R",
    "instance by the setter of arrays": LOCKED
    + name(__name__, "DEFAULT")
    + b"("
    + DICT
    + b"N"
    + plain(b"")
    + b"t\x86R",
    "class by the setter of arrays": LOCKED + REF + b"(" + DICT + b"N" + plain(b"") + b"t\x86R",
    "setter of arrays": LOCKED + DICT + b"b",
    "class that a function returns": name(__name__, "class_of") + MINE + b"\x85R" + SLOTS + b"b",
    "method": name(__name__, "Point.__init__") + DICT + b"b",
    "member of an enumeration": name(__name__, "Color") + b"K\x01\x85R" + DICT + b"b",
    "instance": DEFAULT_NAME + DICT + b"b",
    "module": name(__name__, "np") + DICT + b"b",
    "item of a dict": name(__name__, "SETTINGS") + MINE + MINE + b"s",
    "items of a dict": name(__name__, "SETTINGS") + b"(" + MINE + MINE + b"u",
    "class method": name(__name__, "Registry") + b"(" + MINE + b"\x90",
    "class method, item": name(__name__, "Registry") + MINE + b"a",
}


@pytest.mark.parametrize("opcodes", CHANGES.values(), ids=CHANGES)
def test_bytes_can_not_change_the_process(opcodes: bytes) -> None:
    """All use names that the list allows, or names of Hoplite that every list allows."""
    allowed = (HERE, f"{__name__}.DEFAULT", f"{__name__}.SETTINGS", f"{__name__}.np")
    shared = (Ref, arrays.restore_array, Color.RED, Point.__init__, str, DEFAULT, np)
    before = [{**vars(each)} for each in shared]
    with pytest.raises(DecodeError, match="the whole process"):
        read(b"\x80\x05" + opcodes + b".", *allowed)
    for each, had in zip(shared, before, strict=True):
        assert {**vars(each)} == had
    assert arrays.restore_array.__defaults__ is None
    assert SETTINGS == {"a": 1}
    assert ADDED == []


@pytest.mark.parametrize("number", [7, 300, 70000])
def test_an_extension_number_is_rejected(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """An extension number that the process has used before would bypass the list."""
    module = types.ModuleType("registered")
    module.Thing = type("Thing", (), {"__module__": "registered"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "registered", module)
    copyreg.add_extension("registered", "Thing", number)
    try:
        stream = pickle.dumps(module.Thing, 5)
        assert pickle.loads(stream) is module.Thing
        with pytest.raises(DecodeError, match=r"opcode 0x8[234] at byte \d+ is not one that"):
            read(stream)
    finally:
        copyreg.remove_extension("registered", "Thing", number)


def test_a_persistent_id_is_rejected() -> None:
    """Hoplite uses BINPERSID internally for BUILD, so a pickle must not contain it."""
    with pytest.raises(DecodeError, match="opcode 0x51 at byte"):
        read(b"\x80\x05" + REF + SLOTS + b"\x86Q.")


def test_objects_keep_their_state() -> None:
    """Through every form of BUILD, with more bytes than a frame holds, and with nested objects."""
    many = Many([Point(each) for each in range(5000)])
    many.more = Careful(b"x" * 100_000)  # type: ignore[attr-defined]
    value = {"point": Point(Point(2)), "slots": Slotted(1, "y" * 70_000), "many": many, "array": Point(np.arange(3))}
    value["again"] = value["point"]
    got = there_and_back(value, HERE)
    assert got["point"].x.x == 2
    assert got["again"] is got["point"]
    assert (got["slots"].x, got["slots"].y) == (1, "y" * 70_000)
    assert [each.x for each in got["many"]] == list(range(5000))
    assert got["many"].more.x == b"x" * 100_000
    assert got["array"].x.tolist() == [0, 1, 2]
    # As pickle does, so that a million objects share one copy of each name.
    assert all(a is b for a, b in zip(vars(got["many"][0]), vars(got["many"][1]), strict=True))


def test_classes_functions_and_members_can_be_values() -> None:
    value: list[object] = [Point, class_of, Point]
    # Some releases of Python 3.11 pickle members with getattr, which could run any code.
    if Color.RED.__reduce_ex__(5)[0] is not getattr:
        value.append(Color.RED)
    assert there_and_back(value, HERE) == value


def test_a_class_that_items_could_change_is_named_by_put() -> None:
    with pytest.raises(UnsupportedDtype, match=r"Registry, which the whole process shares .*: put its contents"):
        there_and_back(Registry(), HERE)


def test_values_read_with_a_list_are_freed_without_the_garbage_collector() -> None:
    """It holds the memory of the object, which a full store needs."""
    gc.collect()
    gc.disable()
    try:
        value = there_and_back({"a": np.arange(10), "o": np.array(["text", None], dtype=object)}, "numpy.*")
        assert value["a"].sum() == 45
        del value
        assert not [each for each in gc.get_objects() if type(each).__name__ == "_CarefulUnpickler"]
    finally:
        gc.enable()
