"""Create and seal: an object that is written in place, and exists once it is sealed."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from hoplite import testing
from support import SOON, Later, eventually, numbers, same

if TYPE_CHECKING:
    from contract import Crew

pytest_plugins = ["contract"]

# Elements of float32: one object that is sent inside messages, and one in its own memory.
SMALL, LARGE = 100, 50_000
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])


def used(crew: Crew) -> int:
    return crew.putter.status()["store"]["used"]


@SIZES
def test_the_sealed_object_has_the_written_values(crew: Crew, size: int) -> None:
    buffer = crew.putter.create((size, 2), "int32")
    assert (buffer.shape, buffer.dtype, buffer.nbytes, len(buffer)) == ((size, 2), "int32", size * 8, size)
    buffer[...] = numbers((size, 2), "int32")
    buffer[0] = [7, 8]
    assert list(buffer[0]) == [7, 8]
    array = buffer.array
    array[1] = 9
    assert np.asarray(buffer)[1].tolist() == [9, 9]
    del array
    expected = numbers((size, 2), "int32")
    expected[0], expected[1] = [7, 8], 9
    same(crew.getter.get(buffer.seal(), timeout=SOON), expected)


def test_buffers_of_any_shape_and_dtype(crew: Crew) -> None:
    import ml_dtypes

    cases: list[tuple[Any, Any]] = [
        ((), "float64"),
        ((0, 3), "int8"),
        (5, np.uint16),
        ((300, 200), ml_dtypes.bfloat16),
        ((300, 200), ml_dtypes.float8_e5m2),
        (5, "float8_e8m0fnu"),
        ((2, 3), np.dtype(ml_dtypes.int4)),
    ]
    for shape, dtype in cases:
        expected = numbers(shape, np.dtype(dtype).name)
        buffer = crew.putter.create(shape, dtype)
        buffer[...] = expected
        same(crew.getter.get(buffer.seal(), timeout=SOON), expected)
    with crew.putter.create(()) as buffer, pytest.raises(TypeError, match="length"):
        len(buffer)


def test_a_buffer_of_packed_float4_is_filled_as_uint8(crew: Crew) -> None:
    """NumPy has no dtype for two elements in one byte."""
    buffer = crew.putter.create((2, 3), "float4_e2m1fn_x2")
    assert (buffer.dtype, buffer.nbytes) == ("float4_e2m1fn_x2", 6)
    buffer[...] = numbers((2, 3), "uint8")
    same(crew.getter.get(buffer.seal(), timeout=SOON), numbers((2, 3), "uint8"))


@pytest.mark.parametrize(
    "dtype",
    ["f4", "<f4", "float", "half", "?", "u1", "M8[25us]", "=i8", float, int, bool, complex, np.int16, np.dtype("f8")],
)
def test_every_spelling_of_a_dtype_that_numpy_accepts(plain: Crew, dtype: Any) -> None:  # noqa: ANN401
    buffer = plain.putter.create(3, dtype)
    assert buffer.array.dtype == np.dtype(dtype)
    assert buffer.dtype == np.dtype(dtype).name
    buffer.discard()


def test_another_byte_order_is_rejected_with_the_dtype_to_use(plain: Crew) -> None:
    with pytest.raises(hoplite.UnsupportedDtype, match=r"byte order of dtype '>f4' differs.*use 'float32'"):
        plain.putter.create(3, ">f4")


@SIZES
def test_bytes_are_filled_as_a_memoryview(crew: Crew, size: int) -> None:
    data = bytes(range(256)) * size
    with crew.putter.create(len(data), "bytes", name=crew.name()) as buffer:
        buffer[:] = data
        buffer[0:3] = b"abc"
    got = crew.getter.get(crew.name(), timeout=SOON)
    assert isinstance(got, memoryview)
    assert got == b"abc" + data[3:]


@SIZES
def test_a_with_block_seals_or_after_an_exception_discards(crew: Crew, size: int) -> None:
    with crew.putter.create(size, name=crew.name()) as buffer:
        buffer[...] = 1
    assert buffer.ref == hoplite.Ref(crew.name())
    same(crew.getter.get(buffer.ref, timeout=SOON), np.ones(size, "float32"))
    before = used(crew)
    with pytest.raises(KeyError), crew.putter.create(size, name=crew.name("other")) as buffer:
        raise KeyError
    eventually(lambda: used(crew) == before)
    crew.putter.put(b"free", name=crew.name("other"))
    # A block that seals or discards explicitly is left alone.
    with crew.putter.create(size) as buffer:
        buffer[...] = 2
        ref = buffer.seal()
    same(crew.getter.get(ref, timeout=SOON), np.full(size, 2, "float32"))
    with crew.putter.create(size) as buffer:
        buffer.discard()


@SIZES
def test_discard_frees_the_space(crew: Crew, size: int) -> None:
    before = used(crew)
    buffer = crew.putter.create(size, name=crew.name())
    buffer[...] = 1
    buffer.discard()
    buffer.discard()
    eventually(lambda: used(crew) == before)
    for use in (buffer.seal, lambda: buffer.array, lambda: buffer[0]):
        with pytest.raises(hoplite.InvalidArgument, match="discarded"):
            use()
    crew.putter.put(b"free", name=crew.name())


def test_a_discarded_space_is_freed_with_its_last_view(crew: Crew) -> None:
    """The buffer itself is still referenced."""
    buffer = crew.putter.create(LARGE)
    array = buffer.array
    buffer.discard()
    # The view can still be written.
    array[...] = 1
    assert used(crew) > 0
    del array
    eventually(lambda: used(crew) == 0)
    assert buffer.nbytes == 4 * LARGE


@SIZES
def test_a_buffer_is_sealed_once(crew: Crew, size: int) -> None:
    buffer = crew.putter.create(size)
    buffer[...] = 3
    ref = buffer.seal()
    for use in (buffer.seal, lambda: buffer.array):
        with pytest.raises(hoplite.InvalidArgument, match="sealed"):
            use()
    buffer.discard()
    same(crew.getter.get(ref, timeout=SOON), np.full(size, 3, "float32"))


@SIZES
def test_an_open_view_prevents_the_seal(crew: Crew, size: int) -> None:
    buffer = crew.putter.create(size)
    array = buffer.array
    with pytest.raises(hoplite.InvalidArgument, match="writable views"):
        buffer.seal()
    array[...] = 4
    part = array[1:3]
    del array
    with pytest.raises(hoplite.InvalidArgument, match="writable views"):
        buffer.seal()
    del part
    same(crew.getter.get(buffer.seal(), timeout=SOON), np.full(size, 4, "float32"))


@SIZES
def test_a_buffer_that_is_dropped_warns_and_leaves_nothing(crew: Crew, size: int) -> None:
    def create_and_drop() -> None:
        crew.putter.create(size, name=crew.name())[...] = 1
        gc.collect()

    before = used(crew)
    with pytest.warns(ResourceWarning, match="before seal"):
        create_and_drop()
    eventually(lambda: used(crew) == before)
    assert crew.putter.objects() == []
    crew.putter.put(b"free", name=crew.name())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with crew.putter.create(size) as sealed:
            sealed[...] = 1
        del sealed
        gc.collect()


def test_the_name_of_a_large_buffer_is_taken_at_create(crew: Crew) -> None:
    crew.putter.put(b"", name=crew.name("taken"))
    with pytest.raises(hoplite.NameTaken, match="taken"):
        crew.putter.create(LARGE, name=crew.name("taken"))
    before = used(crew)
    buffer = crew.putter.create(LARGE, name=crew.name("begun"))
    with pytest.raises(hoplite.NameTaken, match="begun"):
        crew.reducer.put(b"", name=crew.name("begun"))
    buffer.discard()
    eventually(lambda: used(crew) == before)

    def is_free() -> bool:
        # A third node owns the name and gets the deletion a moment later.
        try:
            crew.reducer.put(b"", name=crew.name("begun"))
        except hoplite.NameTaken:
            return False
        return True

    eventually(is_free)


def test_the_name_of_a_small_buffer_is_taken_at_the_seal(crew: Crew) -> None:
    buffer = crew.putter.create(SMALL, name=crew.name())
    crew.reducer.put(b"first", name=crew.name())
    buffer[...] = 1
    with pytest.raises(hoplite.NameTaken, match="object"):
        buffer.seal()
    assert crew.getter.get(crew.name(), timeout=SOON) == b"first"


@SIZES
def test_waiting_gets_receive_the_object_at_the_seal(crew: Crew, size: int) -> None:
    before = Later(crew.getter.get, crew.name(), timeout=SOON)
    buffer = crew.putter.create(size, name=crew.name())
    during = Later(crew.reducer.get, crew.name(), timeout=SOON)
    buffer[...] = numbers(size)
    with pytest.raises(hoplite.Timeout):
        crew.getter.get(crew.name(), timeout=0.05)
    assert not before.done()
    assert not during.done()
    buffer.seal()
    same(before.result(), numbers(size))
    same(during.result(), numbers(size))


@pytest.mark.faults("a buffer is discarded while it is fetched")
def test_a_get_of_a_discarded_name_waits_for_the_next_put(crew: Crew) -> None:
    get = Later(crew.getter.get, crew.name(), timeout=SOON)
    buffer = crew.putter.create(LARGE, name=crew.name())
    buffer[...] = 1
    buffer.discard()
    assert not get.done(within=0.05)
    eventually(lambda: used(crew) == 0)
    crew.putter.put(numbers(LARGE), name=crew.name())
    same(get.result(), numbers(LARGE))


def test_create_waits_for_capacity_until_its_timeout(crew: Crew) -> None:
    full = [crew.putter.create(40 << 20, "uint8") for _ in range(3)]
    with pytest.raises(hoplite.StoreFull):
        crew.putter.create(40 << 20, "uint8", timeout=0.05)
    with pytest.raises(hoplite.StoreFull):
        crew.putter.create(1 << 30, "uint8", timeout=SOON)
    late = Later(crew.putter.create, 40 << 20, "uint8", timeout=SOON)
    eventually(lambda: crew.putter.status()["waiting"] > 0)
    for buffer in full:
        buffer.discard()
    late.result().discard()


@pytest.mark.parametrize(
    ("shape", "dtype", "error"),
    [
        ((2, -1), "float32", hoplite.InvalidArgument),
        ("x", "float32", hoplite.InvalidArgument),
        (1.5, "float32", hoplite.InvalidArgument),
        ((2, 2), "bytes", hoplite.InvalidArgument),
        (2**62, "float32", hoplite.InvalidArgument),
        (3, "complex256", hoplite.UnsupportedDtype),
        (3, object, hoplite.UnsupportedDtype),
        (3, None, hoplite.UnsupportedDtype),
        (3, str, hoplite.UnsupportedDtype),
        (3, "3f4", hoplite.UnsupportedDtype),
        (3, "f4,i4", hoplite.UnsupportedDtype),
        (3, "no such", hoplite.UnsupportedDtype),
        (3, ">f4", hoplite.UnsupportedDtype),
        (3, np.dtype(">i2"), hoplite.UnsupportedDtype),
    ],
)
def test_invalid_shapes_and_dtypes_are_rejected(plain: Crew, shape: Any, dtype: object, error: type[Exception]) -> None:  # noqa: ANN401
    with pytest.raises(error):
        plain.putter.create(shape, dtype)


@SIZES
def test_a_seal_takes_a_timeout(plain: Crew, size: int) -> None:
    buffer = plain.putter.create(size)
    for timeout in (-1, "soon"):
        with pytest.raises(hoplite.InvalidArgument, match="timeout"):
            buffer.seal(timeout=timeout)  # type: ignore[arg-type]
    buffer[...] = 5
    same(plain.getter.get(buffer.seal(timeout=SOON), timeout=SOON), np.full(size, 5, "float32"))


@pytest.mark.parametrize("elements", [10, 100_000])
def test_an_unwritten_buffer_can_be_sealed(elements: int) -> None:
    with testing.cluster(1) as nodes, nodes[0].client() as client:
        assert client.get(client.create(elements, "uint8").seal()).shape == (elements,)


# Two threads at a time: one takes a view of the space, the other seals it. Prints whether there is a GIL.
RACE = """
import sys, threading
import hoplite
from hoplite import testing

SIZE = 50_000
sys.setswitchinterval(1e-6)
with testing.cluster(1) as nodes, nodes[0].client() as client:
    for turn in range(400):
        buffer = client.create(SIZE, "bytes")
        space = buffer._space
        start = threading.Barrier(2)
        views, refs = [], []

        def view():
            start.wait(30)
            try:
                views.append(memoryview(space))
            except BufferError:
                return

        def seal():
            start.wait(30)
            try:
                refs.append(space.seal(None).result())
            except hoplite.InvalidArgument:
                return

        threads = [threading.Thread(target=each) for each in ((view, seal) if turn % 2 else (seal, view))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert (len(views), len(refs)) in ((0, 1), (1, 0)), (turn, views, refs)
        for each in views:
            each[:] = bytes(SIZE)
            each.release()
            space.discard()
        buffer._open = False
print(getattr(sys, "_is_gil_enabled", lambda: True)())
"""


@pytest.mark.parametrize("interpreter", [sys.executable, "python3.13t", "python3.14t"])
def test_no_writable_view_outlives_the_seal_in_another_thread(interpreter: str) -> None:
    """With the GIL, the threads rarely overlap within a call; without it, they do."""
    if shutil.which(interpreter) is None:
        pytest.skip(f"{interpreter} is not installed")
    if subprocess.run([interpreter, "-c", "import hoplite"], capture_output=True, check=False, timeout=SOON).returncode:
        pytest.skip(f"hoplite is not built for {interpreter}")
    done = subprocess.run([interpreter, "-c", RACE], capture_output=True, text=True, timeout=SOON, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    if interpreter.endswith("t"):
        assert done.stdout == "False\n"
