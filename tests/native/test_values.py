"""Values across languages: what one side puts or creates, the other gets with its dtype, shape and form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from hoplite.values import Encoded
from support import ARRAY_DTYPES, SOON, Array, Later, eventually, numbers, same

if TYPE_CHECKING:
    from collections.abc import Sequence

    from native.clients import NativeClient
    from native.conftest import Pair

pytestmark = pytest.mark.native

# The last two dtypes with units, as programs use them.
DTYPES = (*ARRAY_DTYPES, "datetime64[ns]", "timedelta64[25us]")
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (3, 0, 2), (1,), (2, 3, 4))

# More than one block of a transfer.
LARGE_BYTES = 4 << 20

NAMES = ("plain", "policy/17", "with space", "größe/Ω", "政策/1", "🦀/7", 'quoted "\\"/1', "a" * 255)


def directions(pair: Pair) -> Sequence[tuple[Any, Any]]:
    return (pair.python, pair.native), (pair.native, pair.python)


def value(dtype: str, shape: int | tuple[int, ...]) -> Array:
    if "[" in dtype:
        return numbers(shape, "int64").astype(dtype)
    return numbers(shape, dtype)


def got(client: hoplite.Client | NativeClient, ref: object) -> Any:  # noqa: ANN401
    return client.get(str(ref), timeout=SOON)


def test_arrays_of_each_dtype_and_shape_arrive(pair: Pair) -> None:
    for writer, reader in directions(pair):
        for dtype in DTYPES:
            for shape in SHAPES:
                array = value(dtype, shape)
                ref = writer.put(array)
                same(got(reader, ref), array)
                same(got(writer, ref), array)
                assert str(got(reader, ref).dtype) == str(array.dtype)


def test_large_arrays_arrive(pair: Pair) -> None:
    """4 MiB, one dtype of each size of an element."""
    for writer, reader in directions(pair):
        for dtype in ("float32", "uint8", "bfloat16", "complex128", "datetime64[ns]"):
            array = value(dtype, LARGE_BYTES // np.dtype(numbers(1, dtype.partition("[")[0]).dtype).itemsize)
            ref = writer.put(array, name=f"large/{dtype}")
            same(got(reader, ref), array)
            reader.delete(ref)


def test_bytes_arrive(pair: Pair) -> None:
    for nbytes in (0, 1, 32 << 10, (32 << 10) + 1, LARGE_BYTES):
        data = np.random.default_rng(nbytes).bytes(nbytes)
        for writer, reader in directions(pair):
            assert bytes(got(reader, writer.put(data))) == data


def test_names_arrive(pair: Pair) -> None:
    """A name is UTF-8 on both sides; the object is found under it and under the ref that the put returned."""
    for number, (writer, reader) in enumerate(directions(pair)):
        for name in NAMES:
            ref = writer.put(name.encode(), name=f"{number}{name}")
            assert str(ref) == f"{number}{name}"
            assert bytes(got(reader, f"{number}{name}")) == name.encode()
            assert bytes(got(reader, ref)) == name.encode()


@pytest.mark.parametrize("shape", [(1 << 18,), ()], ids=str)
def test_native_buffers_arrive(pair: Pair, shape: tuple[int, ...]) -> None:
    """Small ones are put at the seal; large ones are filled in the store."""
    array = numbers(shape, "float64")
    buffer = pair.native.create(shape, "float64", name="made/1")
    waiting = Later(pair.python.get, "made/1", timeout=SOON)
    buffer.fill(array)
    assert buffer.seal() == "made/1"
    same(waiting.result(), array)
    same(pair.native.get("made/1", timeout=SOON), array)


def test_a_native_buffer_is_named_before_its_seal(pair: Pair) -> None:
    """Without a name too: another program can wait for the object under the ref of the buffer."""
    array = numbers(1 << 18, "int32")
    buffer = pair.native.create(array.shape, "int32")
    waiting = Later(pair.python.get, buffer.ref, timeout=SOON)
    buffer.fill(array)
    assert buffer.seal() == buffer.ref
    same(waiting.result(), array)


@pytest.mark.parametrize("shape", [(5,), (1 << 18,)], ids=str)
def test_python_buffers_arrive(pair: Pair, shape: tuple[int, ...]) -> None:
    array = numbers(shape, "float64")
    with pair.python.create(shape, "float64", name="made/1") as buffer:
        waiting = Later(pair.native.get, "made/1", timeout=SOON)
        buffer[...] = array
    same(waiting.result(), array)


def test_a_discarded_native_buffer_is_no_object(pair: Pair) -> None:
    """Its name is free once the owner has received that; the call does not wait for it."""
    buffer = pair.native.create((1 << 18,), "float32", name="made/1")
    with pytest.raises(hoplite.NameTaken):
        pair.python.put(b"another", name="made/1")
    buffer.discard()

    def is_free() -> bool:
        try:
            pair.python.put(b"another", name="made/1")
        except hoplite.NameTaken:
            return False
        return True

    eventually(is_free)
    assert pair.native.get("made/1", timeout=SOON) == b"another"


def test_parts_are_the_same_rows_and_bytes(pair: Pair) -> None:
    array = numbers((1 << 16, 3), "int16")
    for writer, reader in directions(pair):
        ref, text = writer.put(array), writer.put(b"0123456789")
        for part in (slice(0, 5), slice(100, -7), slice(-2, None), slice(None, 3), slice(7, 7), slice(1 << 40, None)):
            same(reader.get(ref, part=part, timeout=SOON), array[part])
            assert bytes(reader.get(text, part=part, timeout=SOON)) == b"0123456789"[part]


def test_get_into_copies_arrays(pair: Pair) -> None:
    for shape in ((3, 2), (1 << 20,), (0, 5), ()):
        array = numbers(shape, "float32")
        ref = pair.python.put(array)
        same(pair.native.get_into(ref, np.empty_like(array), timeout=SOON), array)
        own = pair.native.put(array)
        same(pair.python.get(own, out=np.empty_like(array), timeout=SOON), array)


def test_get_into_copies_while_the_object_arrives(pair: Pair) -> None:
    """The call starts before the buffer is filled."""
    array = numbers(1 << 20, "float32")
    buffer = pair.python.create(array.shape, "float32", name="made/1")
    into = Later(pair.native.get_into, "made/1", np.empty_like(array), timeout=SOON)
    buffer[...] = array
    buffer.seal()
    same(into.result(), array)


def test_get_into_rejects_another_dtype_shape_or_size(pair: Pair) -> None:
    ref = pair.python.put(numbers((2, 3), "float32"))
    for like in (np.empty((2, 3), "int32"), np.empty((3, 2), "float32"), np.empty(7, "float32")):
        with pytest.raises(hoplite.ShapeMismatch) as raised:
            pair.python.get(ref, out=like, timeout=SOON)
        with pytest.raises(hoplite.ShapeMismatch) as native:
            pair.native.get_into(ref, like, timeout=SOON)
        assert str(native.value) == str(raised.value)


def test_forms_that_only_python_decodes_are_bytes_with_their_form(pair: Pair) -> None:
    """A native program sees the stored bytes of pickles and Arrow data, and tensors as arrays."""
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"x": [1, 2, 3]})
    pickled = pair.native.look(pair.python.put({"step": 3}), timeout=SOON)
    assert (pickled.form, pickled.dtype, pickled.shape) == ("pickle", "bytes", ())
    assert b"step" in pickled.data
    arrow = pair.native.look(pair.python.put(table), timeout=SOON)
    assert (arrow.form, arrow.dtype) == ("arrow", "bytes")
    assert pyarrow.ipc.open_stream(arrow.data).read_all() == table
    plain = pair.native.look(pair.python.put(b"x"), timeout=SOON)
    assert (plain.form, plain.dtype, plain.shape) == ("plain", "bytes", ())


def test_a_tensor_is_an_array_with_the_form_of_torch(pair: Pair) -> None:
    """Put as `hoplite.values` encodes a tensor, since torch is not installed here."""
    data = np.ones((2, 3), "float32").tobytes()
    what = Encoded("float32", (2, 3), "torch", len(data), (data,))
    ref = pair.python._open().put(what, what.parts, None, None, SOON)
    assert pair.native.look(ref, timeout=SOON) == ("float32", (2, 3), "torch", data)


def test_asynchronous_calls_return_what_blocking_ones_do(pair: Pair) -> None:
    """Each verb, started and taken later, also from a queue that an event loop polls."""
    peer, native = pair.peer, pair.native

    def done(verb: str, **fields: object) -> dict[str, Any]:
        return peer.call("take", pending=native.call(verb, **{"async": True}, **fields)["pending"])

    array = numbers((300, 400), "float32")
    data = peer.file(array.tobytes())
    ref = done("put", data=data, dtype="float32", shape=array.shape, name="a/1")["ref"]
    same(pair.python.get(ref, timeout=SOON), array)
    buffer = done("create", dtype="float32", shape=array.shape, name="a/2")["buffer"]
    peer.call("fill", buffer=buffer, data=data)
    assert done("seal", buffer=buffer)["ref"] == "a/2"
    view = done("get", ref="a/2", timeout=SOON)
    assert (view["dtype"], tuple(view["shape"]), view["nbytes"]) == ("float32", array.shape, array.nbytes)
    assert view["sum"] == sum(array.tobytes())
    path = peer.file()
    done("get_into", ref="a/1", nbytes=array.nbytes, dtype="float32", shape=array.shape, to=path, timeout=SOON)
    assert path.read_bytes() == array.tobytes()
    assert sorted(done("wait", refs=["a/1", "a/2"], timeout=SOON)["ready"]) == [0, 1]
    total = done("reduce", refs=["a/1", "a/2"], op="sum", name="sum/1")["ref"]
    same(pair.python.get(total, timeout=SOON), array + array)
    assert sorted(done("inputs", ref="sum/1", timeout=SOON)["refs"]) == ["a/1", "a/2"]
    assert done("lost", ref="sum/1", timeout=SOON)["refs"] == []
    assert done("latest", prefix="a/", timeout=SOON)["ref"] == "a/2"
    assert done("reserve")["ref"].startswith("@")
    assert done("locations", ref="a/1")["locations"][0]["complete"]
    assert '"members"' in done("status")["text"]
    assert native.call("queue", ref="a/1", timeout=SOON) == {"code": 0, "empty": 1, "sum": sum(array.tobytes())}
    assert "lease" in done("lease", ref="a/1")
    done("delete", refs=["a/1", "a/2", "sum/1"])
    with pytest.raises(hoplite.Timeout):
        pair.python.get("a/1", timeout=0)
