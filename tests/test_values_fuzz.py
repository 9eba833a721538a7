"""Objects with metadata and bytes of an attacker: `decode` returns a value or raises `DecodeError`.

`decode` runs no code of the attacker, and allocates no memory that the bytes do not need. The cases are deterministic,
except in `make fuzz`, which sets the number of cases per test (`FUZZ_EXAMPLES`).
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import hoplite
from hoplite import values

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite.values import Allowed

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
# Memory per value in addition to its bytes: overhead of Python and NumPy, and tables in them.
MEMORY_MAX = 1 << 20
# Names that the decoded pickles may use.
ALLOWED = ("datetime.*", "collections.OrderedDict")
# Audit events that Python raises before it runs code or changes the system.
RUNS_CODE = ("compile", "exec", "os.", "subprocess.", "open", "socket.", "ctypes.", "shutil.", "code.")

quick = settings(
    max_examples=EXAMPLES or 100,
    deadline=None,
    derandomize=not EXAMPLES,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class Watch:
    """Records audit events while a value is decoded. An audit hook can't be removed, so there is only one."""

    def __init__(self) -> None:
        self.is_on = False
        self.seen: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        # A search for a module that is not installed lists folders.
        if self.is_on and event.startswith(RUNS_CODE) and event != "os.listdir":
            self.seen.append(f"{event} {arguments!r:.200}")


WATCH = Watch()


@pytest.fixture(scope="module", autouse=True)
def _everything_is_imported() -> None:
    """The first import of a module runs code, which is not the attacker's."""
    for value in ({"a": [1, 2.5]}, pa.table({"a": [1]}), pa.array([1])):
        encoded = values.encode(value)
        values.decode(view(encoded.kind, encoded.shape, encoded.form, b"".join(encoded.parts)))
    values.empty("bfloat16", (1,), bytearray(2))


class Lent(bytes):
    """An object as `decode` gets it. Before Python 3.12 only a subclass of a buffer type can provide a buffer."""

    kind: str
    shape: tuple[int, ...]
    form: str
    nbytes: int


def view(kind: str, shape: tuple[int, ...], form: str, data: bytes) -> Lent:
    """Returns an object of an attacker."""
    lent = Lent(data)
    lent.kind, lent.shape, lent.form, lent.nbytes = kind, shape, form, len(data)
    return lent


def check(made: Lent, allow: Allowed, copy: bool) -> None:
    """Decodes an object, and checks events and memory."""
    tracemalloc.start()
    WATCH.seen.clear()
    WATCH.is_on = True
    try:
        value = values.decode(made, copy=copy, allow_pickle=allow)
        repr(type(value))
    except (hoplite.DecodeError, hoplite.UnsupportedDtype):
        pass
    finally:
        WATCH.is_on = False
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert WATCH.seen == []
    assert peak < MEMORY_MAX + 20 * made.nbytes


numbers = st.one_of(st.integers(0, 9), st.sampled_from([2**31, 2**32, 2**62, 2**63 - 1, 2**64 - 1]))
kinds = st.one_of(
    st.sampled_from([*values.DTYPES, "bytes", "datetime64[ns]", "timedelta64[25us]", "datetime64[99999999999s]"]),
    st.text(max_size=12),
)
shapes = st.lists(numbers, max_size=70).map(tuple)
forms = st.one_of(st.sampled_from(values.FORMS), st.text(max_size=8))
copies = st.booleans()
blobs = st.binary(max_size=200)


@quick
@given(kinds, shapes, forms, blobs, copies)
@example("float16", (0, 2**62), "plain", b"", False)
@example("float32", (2**64 - 1,), "plain", b"", False)
@example("int64", (1,) * 70, "plain", bytes(8), False)
def test_arbitrary_metadata_and_bytes(kind: str, shape: tuple[int, ...], form: str, data: bytes, copy: bool) -> None:
    check(view(kind, shape, form, data), False, copy)


@quick
@given(kinds, st.lists(st.integers(0, 5), max_size=4), copies, st.integers(-2, 2))
def test_shapes_that_nearly_fit(kind: str, shape: list[int], copy: bool, off: int) -> None:
    count = 1
    for length in shape:
        count *= length
    check(view(kind, tuple(shape), "plain", bytes(max(0, 8 * count + off))), False, copy)


def changed(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    """Replaces some bytes."""
    changing = bytearray(data)
    for place, byte in changes:
        changing[place % len(changing)] = byte
    return bytes(changing)


changes = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=6)


@quick
@given(changes, st.sampled_from(["table", "array", "batch"]), copies)
def test_arrow_streams_with_changed_bytes(where: list[tuple[int, int]], what: str, copy: bool) -> None:
    table = pa.table({"a": [1, 2, 3], "b": ["x", "yy", None]})
    value = {"table": table, "array": table.column("b").chunk(0), "batch": table.to_batches()[0]}[what]
    encoded = values.encode(value)
    data = b"".join(bytes(part) for part in encoded.parts)
    check(view(encoded.kind, encoded.shape, encoded.form, changed(data, where)), False, copy)


class Runs:
    """An object whose pickle makes a call, as an attacker would write it."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:  # noqa: ANN401 - anything
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, self.arguments


HEADER = struct.Struct("<8sQQ")
# Opcodes that import, call, build or allocate memory, with their arguments. The fuzzer concatenates them.
OPCODES = [
    b"cos\nsystem\n", b"cbuiltins\neval\n", b"cdatetime\ndate\n", b"ccollections\nOrderedDict\n",
    b"cdatetime\nsys.modules\n", b"cdatetime\n__builtins__\n", b"\x8c\x02os\x8c\x06system\x93",
    b"\x8c\x08datetime\x8c\x0esys.exit\x93", b"\x8c\x04true\x85R", b"(", b")", b"R", b"\x81", b"\x92", b"b", b"t", b"0",
    b"}", b"]", b"a", b"s", b"u", b"e", b"2", b"i" + b"os\nsystem\n", b"\x97", b"\x98", b"Q", b"P1\n", b"q\0", b"h\0",
    b"\x95" + struct.pack("<Q", 2**62), b"\x96" + struct.pack("<Q", 2**62), b"\x8e" + struct.pack("<Q", 2**62),
    b"r" + struct.pack("<I", 2**31), b"\x8b" + struct.pack("<i", 2**31 - 1), b"\x82\x01", b"K\x05", b"N", b"\x88",
]  # fmt: skip


def pickled(stream: bytes, buffers: int = 0, magic: bytes | None = None) -> bytes:
    """Returns an object that contains a pickle."""
    own = b"".join(bytes(part) for part in values.encode({1: 2}).parts)[:8]
    return HEADER.pack(magic or own, len(stream), buffers) + stream


@quick
@given(st.lists(st.one_of(st.sampled_from(OPCODES), st.binary(max_size=3)), max_size=12), copies)
@example([b"B" + struct.pack("<I", 2**28)], False)
@example([b"N", b"r" + struct.pack("<I", 2**24)], False)
@example([b"N", b"p16777216\n"], False)
def test_malicious_pickles(opcodes: list[bytes], copy: bool) -> None:
    data = pickled(b"\x80\x05" + b"".join(opcodes) + b".")
    check(view("bytes", (len(data),), "pickle", data), ALLOWED, copy)


@quick
@given(changes, copies)
def test_pickles_with_changed_bytes(where: list[tuple[int, int]], copy: bool) -> None:
    encoded = values.encode({"a": [1, 2.5, "x"], "b": b"yy" * 20})
    data = b"".join(bytes(part) for part in encoded.parts)
    check(view(encoded.kind, encoded.shape, encoded.form, changed(data, where)), ALLOWED, copy)


@pytest.mark.parametrize("call", [os.system, eval, exec, io.open, __import__, getattr, pickle.loads])
def test_no_system_function_is_called(call: Callable[..., Any]) -> None:
    data = pickled(pickle.dumps(Runs(call, "raise SystemExit"), protocol=5))
    made = view("bytes", (len(data),), "pickle", data)
    check(made, ALLOWED, False)
    check(made, False, False)
    with pytest.raises(hoplite.DecodeError, match="not on the list"):
        values.decode(made, allow_pickle=ALLOWED)
