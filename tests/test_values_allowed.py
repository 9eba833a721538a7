"""Pickles restricted to an allowlist: listed classes round-trip, and no bytes reach anything else."""

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

# Also run with the oldest supported versions of torch and NumPy.
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
    """A user's module with its own definitions and imports."""
    module = types.ModuleType("mypackage")
    exec(SOURCE, module.__dict__)
    monkeypatch.setitem(sys.modules, "mypackage", module)
    return module


def there_and_back(value: object, *allowed: str) -> Any:
    """Encodes and decodes a value with the same allowlist on both sides."""
    names = check_allowed("allow_pickle", allowed)
    return values.decode(store(values.encode(value, allow_pickle=names)), allow_pickle=names)


def calling(module: str, name: str, *arguments: object) -> Any:
    """Returns an object whose pickle calls a named function: bytes that any member of the cluster can put."""
    words = b"".join(b"\x8c" + bytes([len(word)]) + word.encode() for word in (module, name))
    # The arguments from another pickle, without its header and its end.
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
def test_plain_data_needs_no_entry(value: Any) -> None:
    """An empty allowlist suffices; dtypes and types are preserved."""
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


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "uint4"])
def test_dtypes_of_ml_dtypes_need_no_entry(name: str) -> None:
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
    got = there_and_back([np.ones(3, dtype), np.ones(1, dtype)[0]])
    assert [one.dtype for one in got] == [dtype, dtype]
    assert got[0].tolist() == [1, 1, 1]
    assert got[1] == 1


@pytest.mark.parametrize("entry", ["mypackage.Point", "mypackage.*", "my*.P*"])
def test_a_listed_class_round_trips(package: Any, entry: str) -> None:
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
def test_put_and_get_name_an_unlisted_class(value: Any, name: str) -> None:
    name = name.replace("._core.", ".core.") if np.__version__ < "2" else name
    problem = rf'it uses {name}, .*allow_pickle: add "{name}" there, or to HOPLITE_ALLOW_PICKLE'
    with pytest.raises(UnsupportedDtype, match=problem):
        values.encode(value, allow_pickle=("mypackage.*",))
    with pytest.raises(DecodeError, match=problem):
        values.decode(store(values.encode(value)), allow_pickle=("mypackage.*",))
    # With these entries the value round-trips.
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
        # Names that the package's module has imported, and names reachable from its definitions.
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
        # NumPy trusts the arguments of these, and would access memory outside the object.
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy._core.multiarray", "scalar"),
    ],
)
@pytest.mark.usefixtures("package")
def test_bytes_can_not_call_unlisted_functions(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    ran: list[object] = []
    monkeypatch.setattr(os, "system", ran.append)
    with pytest.raises(DecodeError, match="which is not on the list of allow_pickle"):
        values.decode(calling(module, name, "true"), allow_pickle=("mypackage.*",))
    assert ran == []


def test_an_unlisted_module_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs_when_imported.py").write_text("Thing = dict")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DecodeError, match=r"it uses runs_when_imported\.Thing"):
        values.decode(calling("runs_when_imported", "Thing"), allow_pickle=("mypackage.*",))
    assert "runs_when_imported" not in sys.modules


def test_a_function_listed_by_name_is_called(package: Any) -> None:
    """Also a name that a pattern would not match, if the user lists it explicitly."""
    assert values.decode(calling("mypackage", "make", 7), allow_pickle=("mypackage.*",)).x == 7
    assert (
        type(values.decode(calling("mypackage", "Point.Inner"), allow_pickle=("mypackage.*",))) is package.Point.Inner
    )
    assert values.decode(calling("mypackage", "call", "true"), allow_pickle=("mypackage.call",)) == 0


@pytest.mark.parametrize(
    ("dtype", "data"),
    [("O", b"\x01" * 8), ("|O8", b"\x01" * 8), ("<f8,O", b"\x01" * 16), ("|V8", b"\x01" * 8), ("T", b"\x01" * 16)],
)
def test_a_dtype_text_with_pointers_or_fields_is_rejected(dtype: str, data: bytes) -> None:
    arguments = (data, dtype, (1,), "C")
    with pytest.raises(DecodeError, match="is not a dtype of plain elements"):
        values.decode(calling("hoplite.values.arrays", "restore_array", *arguments), allow_pickle=())


@pytest.mark.parametrize(
    ("entries", "problem"),
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
def test_an_invalid_list_is_rejected(entries: Any, problem: str) -> None:
    for take in (lambda: check_allowed("allow_pickle", entries), lambda: hoplite.init(allow_pickle=entries)):
        with pytest.raises(InvalidArgument, match=f"^allow_pickle .*{problem}"):
            take()


EMBEDDED: dict[str, Callable[..., hoplite.Client]] = {
    "node": lambda node, **options: node.client(**options),
    "socket": lambda node, **options: hoplite.connect(node.socket, **options),
}


@pytest.mark.parametrize("how", EMBEDDED)
def test_every_client_has_its_own_list(package: Any, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set by argument or variable, the list applies to puts and gets."""
    attach = EMBEDDED[how]
    with hoplite.Node() as node, attach(node) as anything, attach(node, allow_pickle=["mypackage.*"]) as restricted:
        anything.put({"when": dt.date(2020, 1, 1)}, name="when/1")
        anything.put(package.Point(7), name="point/1")
        assert restricted.get("point/1").x == 7
        with pytest.raises(hoplite.DecodeError, match=r"datetime\.date, which is not on the list"):
            restricted.get("when/1")
        with pytest.raises(hoplite.UnsupportedDtype, match=r"datetime\.date, which is not on the list"):
            restricted.put([dt.date(2020, 1, 1)])
        monkeypatch.setenv("HOPLITE_ALLOW_PICKLE", "mypackage.Point, datetime.date")
        with attach(node) as other:
            assert other.get("when/1") == anything.get("when/1")
            assert other.get("point/1").x == 7
            with pytest.raises(hoplite.DecodeError, match=r"fractions\.Fraction"):
                other.get(anything.put(Fraction(1, 2)))


NO_AUTH = """
import os
import hoplite

def rejects(client):
    try:
        client.put({"a": 1})
    except hoplite.UnsupportedDtype:
        return True
    return False

hp = hoplite.init(node=hoplite.Node(no_auth=True))
assert rejects(hp)
assert rejects(hoplite.init())
# A child attaches to the node of its parent, with the same restriction.
child = os.fork()
if child == 0:
    os._exit(0 if rejects(hp) and rejects(hoplite.client()) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert not rejects(hoplite.init(allow_pickle=True))
assert not rejects(hp.node.client(allow_pickle=True))
os.environ["HOPLITE_ALLOW_PICKLE"] = "1"
assert not rejects(hoplite.init())
"""


def test_a_node_without_authentication_allows_no_pickles_by_default() -> None:
    """Any host that reaches the node could run code in its clients. A token or an explicit setting enables pickles."""
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


def test_an_attached_client_detects_whether_members_are_authenticated() -> None:
    """The greeting of the node reports it: another process does not know the settings of the node."""
    token = hoplite.new_token()
    authenticated: list[dict[str, Any]] = [
        {},
        {"listen": "127.0.0.1:0"},
        {"token": token},
        {"token": token, "no_auth": True},
    ]
    for options in authenticated:
        with hoplite.Node(**options) as node, hoplite.connect(node.socket) as client:
            assert client.get(client.put({"a": dt.date(2020, 1, 1)})) == {"a": dt.date(2020, 1, 1)}, options
    not_authenticated: list[dict[str, Any]] = [
        {"no_auth": True},
        {"token": token, "no_encryption": True},
        {"no_encryption": True},
    ]
    for options in not_authenticated:
        with hoplite.Node(**options) as node, hoplite.connect(node.socket) as client:
            with pytest.raises(hoplite.UnsupportedDtype, match=r"can't put a datetime\.date .*allow_pickle=True"):
                client.put(dt.date(2020, 1, 1))
            with hoplite.connect(node.socket, allow_pickle=True) as trusting:
                trusting.put(dt.date(2020, 1, 1), name="when/1")
            with pytest.raises(hoplite.DecodeError, match="allow_pickle is False, the default in a cluster"):
                client.get("when/1")


def test_a_reconnected_client_detects_the_authentication_again(tmp_path: Path) -> None:
    """The next node with the same path may have no authentication."""
    path = tmp_path / "node.sock"
    with hoplite.Node(socket=path):
        client = hoplite.connect(str(path), reconnect=True)
        client.put({"a": 1})
    eventually(lambda: client._native.is_node_gone())
    refused = pytest.raises(hoplite.UnsupportedDtype, match="set allow_pickle=True")
    with client, hoplite.Node(socket=path, no_auth=True), refused:
        client.put({"a": 1})
