"""Pickles by a list of what they may use: what is listed comes back, and no bytes reach anything else."""

# ruff: noqa: ANN401 - values are anything

from __future__ import annotations

import collections
import datetime as dt
import functools
import os
import pickle
import struct
import sys
import types
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
import programs
from hoplite import Ref, values
from hoplite.errors import DecodeError, InvalidArgument, UnsupportedDtype
from hoplite.values import check_allowed
from stored import joined, mapped, store
from support import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Again beside the oldest torch and NumPy that are supported.
pytestmark = pytest.mark.frameworks

SOURCE = """
import os
from os import system
import functools, subprocess

class Point:
    class Inner:
        pass

    def __init__(self, x=0):
        self.x = x

def make(x):
    return Point(x)

call = functools.partial(os.system)

@functools.wraps(os.system)
def checked(command):
    raise AssertionError("this is never called")
"""


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of a user: what it defines, and what it imports."""
    module = types.ModuleType("mypackage")
    exec(SOURCE, module.__dict__)
    monkeypatch.setitem(sys.modules, "mypackage", module)
    return module


def there_and_back(value: object, *allowed: str) -> Any:
    """Puts and gets a value where both sides have the list."""
    names = check_allowed("allow_pickle", allowed)
    return values.decode(store(values.encode(value, allow_pickle=names)), allow_pickle=names)


def calling(module: str, name: str, *arguments: object) -> Any:
    """An object whose pickle calls what a name stands for: bytes that any member of the cluster can put."""
    words = b"".join(b"\x8c" + bytes([len(word)]) + word.encode() for word in (module, name))
    # The arguments as another pickle has them, less its beginning and its end.
    stream = b"\x80\x04" + words + b"\x93" + pickle.dumps(arguments, 3)[2:-1] + b"R."
    magic = joined(values.encode(None))[:8]
    return mapped(magic + struct.pack("<QQ", len(stream), 0) + stream, form="pickle")


PLAIN: dict[str, Any] = {
    "containers": {"a": [1, 2.5, "x", b"y", None, True], "b": ({1, 2}, frozenset("z"), bytearray(b"w"))},
    "array": {"a": np.arange(6.0).reshape(2, 3)},
    "big-endian array": [np.arange(6, dtype=">i4")],
    "text": [np.array(["a", "bc"]), np.array([b"a"])],
    "time": [np.array(["2020-01-01"], "datetime64[ns]"), np.array([7], "timedelta64[25s]")],
    "longdouble": [np.arange(3, dtype=np.longdouble)],
    "empty array": [np.empty((0, 3), "int8"), np.empty((2, 0))],
    "scalars": {"loss": np.float32(0.5), "n": np.int64(7), "on": np.bool_(True), "z": np.complex64(1j)},
    "time scalars": [np.datetime64("2020-01-01T00:00", "m"), np.timedelta64(3, "D"), np.float64(2.0)],
    "ref": [Ref("policy/17")],
}


@pytest.mark.parametrize("value", PLAIN.values(), ids=PLAIN.keys())
def test_data_needs_no_name_on_the_list(value: Any) -> None:
    """Nor does a list without any: the dtypes and types are as they were."""
    got = there_and_back(value)
    flat, expected = ([*one.values()] if isinstance(one, dict) else one for one in (got, value))
    for a, b in zip(flat, expected, strict=True):
        assert type(a) is type(b)
        if isinstance(b, np.ndarray | np.generic):
            assert a.dtype == b.dtype
            assert a.dtype.byteorder == b.dtype.byteorder
            assert np.array_equal(a, b)
        else:
            assert a == b


def test_bfloat16_needs_no_name_on_the_list() -> None:
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    got = there_and_back([np.ones(3, bfloat16), np.ones(1, bfloat16)[0]])
    assert [one.dtype for one in got] == [bfloat16, bfloat16]
    assert got[0].tolist() == [1, 1, 1]
    assert got[1] == 1


@pytest.mark.parametrize("entry", ["mypackage.Point", "mypackage.*", "my*.P*"])
def test_a_class_on_the_list_comes_back(package: Any, entry: str) -> None:
    got = there_and_back({"points": [package.Point(1), package.Point(np.arange(3))]}, "datetime.date", entry)
    assert [type(point) for point in got["points"]] == [package.Point] * 2
    assert got["points"][1].x.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (dt.date(2020, 1, 1), "datetime.date"),
        ([Fraction(1, 2)], "fractions.Fraction"),
        (collections.OrderedDict(a=1), "collections.OrderedDict"),
        (1j, "builtins.complex"),
        (len, "builtins.len"),
        (Fraction, "fractions.Fraction"),
        (functools.partial(len), "functools.partial"),
        ({"a": np.array([None])}, "numpy._core.multiarray._reconstruct"),
        (np.zeros(3, [("a", "f4")]), "numpy.dtype"),
    ],
    ids=str,
)
def test_what_is_not_on_the_list_is_named_by_put_and_by_get(value: Any, name: str) -> None:
    name = name.replace("._core.", ".core.") if np.__version__ < "2" else name
    said = rf'it uses {name}, .*allow_pickle: add "{name}" there, or to HOPLITE_ALLOW_PICKLE'
    with pytest.raises(UnsupportedDtype, match=said):
        values.encode(value, allow_pickle=("mypackage.*",))
    with pytest.raises(DecodeError, match=said):
        values.decode(store(values.encode(value)), allow_pickle=("mypackage.*",))
    # With these it comes back.
    there_and_back(value, "numpy.*", "builtins.complex", "builtins.len", "*s.[FOp]*", "datetime.date")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("nt", "system"),
        ("importlib", "import_module"),
        # What a module of the package has imported, and what can be reached from what it defines.
        ("mypackage", "system"),
        ("mypackage", "os.system"),
        ("mypackage", "os"),
        ("mypackage", "subprocess.run"),
        ("mypackage", "call"),
        ("mypackage", "checked.__wrapped__"),
        ("mypackage", "make.__globals__"),
        ("mypackage", "make.__class__"),
        ("mypackage", "Point.__subclasses__"),
        ("mypackage", "Point.__init__.__globals__.get"),
        ("hoplite.values.arrays", "sys.modules.get"),
        ("hoplite.ref", "Ref.__class__"),
        # NumPy takes these at their word, over memory that is not its own.
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy._core.multiarray", "scalar"),
    ],
)
@pytest.mark.usefixtures("package")
def test_bytes_reach_nothing_else(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    ran: list[object] = []
    monkeypatch.setattr(os, "system", ran.append)
    with pytest.raises(DecodeError, match="which is not on the list of allow_pickle"):
        values.decode(calling(module, name, "true"), allow_pickle=("mypackage.*",))
    assert ran == []


def test_a_module_that_is_not_on_the_list_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs_when_imported.py").write_text("Thing = dict")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DecodeError, match=r"it uses runs_when_imported\.Thing"):
        values.decode(calling("runs_when_imported", "Thing"), allow_pickle=("mypackage.*",))
    assert "runs_when_imported" not in sys.modules


def test_what_is_on_the_list_under_its_own_name_is_called(package: Any) -> None:
    """Also what a pattern would not reach: its author has named it."""
    assert values.decode(calling("mypackage", "make", 7), allow_pickle=("mypackage.*",)).x == 7
    assert (
        type(values.decode(calling("mypackage", "Point.Inner"), allow_pickle=("mypackage.*",))) is package.Point.Inner
    )
    assert values.decode(calling("mypackage", "call", "true"), allow_pickle=("mypackage.call",)) == 0


@pytest.mark.parametrize(
    ("dtype", "data"),
    [("O", b"\x01" * 8), ("|O8", b"\x01" * 8), ("<f8,O", b"\x01" * 16), ("|V8", b"\x01" * 8), ("T", b"\x01" * 16)],
)
def test_a_dtype_of_pointers_or_parts_is_not_read_from_a_text(dtype: str, data: bytes) -> None:
    arguments = (data, dtype, (1,), "C")
    with pytest.raises(DecodeError, match="is not a dtype of plain elements"):
        values.decode(calling("hoplite.values.arrays", "restore_array", *arguments), allow_pickle=())


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (["*"], "has '\\*': write"),
        (["*.*"], r"which lets a pickle run any code: list single classes, or set true"),
        (["builtins.*"], r"which lets a pickle run any code"),
        (["builtins.e???"], r"which lets a pickle run any code"),
        (["Point"], r'write "module.Class", or "package.\*" for a whole package'),
        (["mypackage.Point", ""], r"has '': write"),
        (["my package.Point"], r"has 'my package.Point': write"),
        ([7], "has 7: write"),
        ("mypackage.*", "not 'mypackage"),
        (7, "not 7"),
        (1, "not 1"),
    ],
)
def test_a_list_that_makes_no_sense(entries: Any, said: str) -> None:
    for take in (lambda: check_allowed("allow_pickle", entries), lambda: hoplite.init(allow_pickle=entries)):
        with pytest.raises(InvalidArgument, match=f"^allow_pickle .*{said}"):
            take()


EMBEDDED: dict[str, Callable[..., hoplite.Client]] = {
    "node": lambda node, **options: node.client(**options),
    "socket": lambda node, **options: hoplite.connect(node.socket, **options),
}


@pytest.mark.parametrize("how", EMBEDDED)
def test_a_client_has_a_list_of_its_own(package: Any, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By argument or by variable, for what it puts and for what it gets."""
    attach = EMBEDDED[how]
    with hoplite.Node() as node, attach(node) as anything, attach(node, allow_pickle=["mypackage.*"]) as careful:
        anything.put({"when": dt.date(2020, 1, 1)}, name="when/1")
        anything.put(package.Point(7), name="point/1")
        assert careful.get("point/1").x == 7
        with pytest.raises(hoplite.DecodeError, match=r"datetime\.date, which is not on the list"):
            careful.get("when/1")
        with pytest.raises(hoplite.UnsupportedDtype, match=r"datetime\.date, which is not on the list"):
            careful.put([dt.date(2020, 1, 1)])
        monkeypatch.setenv("HOPLITE_ALLOW_PICKLE", "mypackage.Point, datetime.date")
        with attach(node) as other:
            assert other.get("when/1") == anything.get("when/1")
            assert other.get("point/1").x == 7
            with pytest.raises(hoplite.DecodeError, match=r"fractions\.Fraction"):
                other.get(anything.put(Fraction(1, 2)))


NO_AUTH = """
import os
import hoplite

def refuses(client):
    try:
        client.put({"a": 1})
    except hoplite.UnsupportedDtype:
        return True
    return False

hp = hoplite.init(node=hoplite.Node(no_auth=True))
assert refuses(hp)
assert refuses(hoplite.init())
# A child attaches to the node of its parent, and is as careful.
child = os.fork()
if child == 0:
    os._exit(0 if refuses(hp) and refuses(hoplite.client()) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert not refuses(hoplite.init(allow_pickle=True))
assert not refuses(hp.node.client(allow_pickle=True))
os.environ["HOPLITE_ALLOW_PICKLE"] = "1"
assert not refuses(hoplite.init())
"""


def test_by_default_a_node_that_lets_all_in_takes_no_pickle() -> None:
    """Every host that reaches it could run code in its clients; a token or a word of the user changes that."""
    with hoplite.Node(no_auth=True) as node, node.client() as client:
        with pytest.raises(hoplite.UnsupportedDtype, match="set allow_pickle=True"):
            client.put({"a": 1})
        with node.client(allow_pickle=True) as trusting:
            trusting.put({"a": 1}, name="a/1")
        with pytest.raises(hoplite.DecodeError, match="allow_pickle is False"):
            client.get("a/1")
    for options in ({}, {"token": hoplite.new_token()}, {"token": hoplite.new_token(), "no_auth": True}):
        with hoplite.Node(**options) as node, node.client() as client:
            assert client.get(client.put({"a": 1})) == {"a": 1}
    programs.run(NO_AUTH)


def test_an_attached_client_learns_whether_the_members_have_proved_anything() -> None:
    """By the greeting: in another process it can't know what the settings of the node say."""
    token = hoplite.new_token()
    proved: list[dict[str, Any]] = [{}, {"listen": "127.0.0.1:0"}, {"token": token}, {"token": token, "no_auth": True}]
    for options in proved:
        with hoplite.Node(**options) as node, hoplite.connect(node.socket) as client:
            assert client.get(client.put({"a": dt.date(2020, 1, 1)})) == {"a": dt.date(2020, 1, 1)}, options
    not_proved: list[dict[str, Any]] = [
        {"no_auth": True},
        {"token": token, "no_encryption": True},
        {"no_encryption": True},
    ]
    for options in not_proved:
        with hoplite.Node(**options) as node, hoplite.connect(node.socket) as client:
            with pytest.raises(hoplite.UnsupportedDtype, match=r"can't put a datetime\.date .*allow_pickle=True"):
                client.put(dt.date(2020, 1, 1))
            with hoplite.connect(node.socket, allow_pickle=True) as trusting:
                trusting.put(dt.date(2020, 1, 1), name="when/1")
            with pytest.raises(hoplite.DecodeError, match="allow_pickle is False, as by default in a cluster"):
                client.get("when/1")


def test_a_client_that_attaches_to_the_next_node_learns_it_anew(tmp_path: Path) -> None:
    """The next node that serves the path may let every other in."""
    path = tmp_path / "node.sock"
    with hoplite.Node(socket=path):
        client = hoplite.connect(str(path), reconnect=True)
        client.put({"a": 1})
    eventually(lambda: client._native.is_node_gone())
    refused = pytest.raises(hoplite.UnsupportedDtype, match="set allow_pickle=True")
    with client, hoplite.Node(socket=path, no_auth=True), refused:
        client.put({"a": 1})
