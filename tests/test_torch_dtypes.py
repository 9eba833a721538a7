"""PyTorch tensors of narrow and unsigned dtypes through a cluster: put, get, out, and the readers that use NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from hoplite import Client, Node, testing
from hoplite.values import NARROW_DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.torch

torch: Any = pytest.importorskip("torch", reason="tensors need PyTorch")

SOON = 30.0

# Those of NARROW_DTYPES that torch lacks are dtypes of ml_dtypes alone.
NARROW = [name for name in NARROW_DTYPES if hasattr(torch, name)]
UNSIGNED = ["uint16", "uint32", "uint64"]

# One object that is sent inside messages, and one in its own memory.
SIZES = pytest.mark.parametrize("shape", [(3, 5), (300, 512)], ids=["small", "large"])


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with testing.cluster(2, capacity="64MiB") as nodes:
        yield nodes


@pytest.fixture(scope="module")
def clients(nodes: list[Node]) -> list[Client]:
    """Clients that put and get no pickles."""
    return [node.client(allow_pickle=False) for node in nodes]


def patterns(shape: tuple[int, ...], dtype: str) -> Any:
    """Returns a tensor of all bit patterns of a byte in turn."""
    elements = torch.arange(int(np.prod(shape)))
    if dtype in NARROW_DTYPES:
        return elements.to(torch.uint8).view(getattr(torch, dtype)).reshape(shape)
    return elements.to(getattr(torch, dtype)).reshape(shape)


def raw(tensor: Any) -> bytes:
    return bytes(tensor.reshape(-1).view(torch.uint8).numpy())


def test_this_torch_has_the_dtypes_that_models_use() -> None:
    assert {"float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2", "int4", "uint4"} <= set(NARROW)


@pytest.mark.parametrize("dtype", [*NARROW, *UNSIGNED])
@SIZES
def test_a_tensor_is_returned_with_its_dtype_without_pickle(
    clients: list[Client], dtype: str, shape: tuple[int, ...]
) -> None:
    value = patterns(shape, dtype)
    ref = clients[0].put(value)
    for client in clients:
        for copy in (False, True):
            got = client.get(ref, copy=copy, timeout=SOON)
            assert (got.dtype, got.shape) == (value.dtype, value.shape)
            assert raw(got) == raw(value)
        out = torch.empty(shape, dtype=value.dtype)
        assert client.get(ref, out=out, timeout=SOON) is out
        assert raw(out) == raw(value)
    clients[0].delete(ref)


@SIZES
def test_numpy_readers_copy_a_tensor_into_an_array_of_ml_dtypes(clients: list[Client], shape: tuple[int, ...]) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in NARROW:
        value = patterns(shape, dtype)
        if not hasattr(ml_dtypes, dtype):
            assert dtype == "float4_e2m1fn_x2"
            continue
        ref = clients[0].put(value)
        out = np.zeros(shape, getattr(ml_dtypes, dtype))
        clients[1].get(ref, out=out, timeout=SOON)
        assert out.tobytes() == raw(value)
        # The values agree too, where torch converts them.
        if dtype.startswith("float8"):
            assert np.array_equal(out.astype("float32"), value.to(torch.float32).numpy(), equal_nan=True)
        clients[0].delete(ref)


@SIZES
def test_tensors_of_arrays_of_ml_dtypes(clients: list[Client], shape: tuple[int, ...]) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    value = patterns(shape, "uint8").numpy().view(ml_dtypes.float8_e4m3fn)
    ref, out = clients[0].put(value), torch.zeros(shape, dtype=torch.float8_e4m3fn)
    clients[1].get(ref, out=out, timeout=SOON)
    assert raw(out) == value.tobytes()
    assert clients[1].get(ref, timeout=SOON).dtype == value.dtype


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float4_e2m1fn_x2", "uint4"])
def test_an_object_can_be_created_by_its_torch_dtype(clients: list[Client], dtype: str) -> None:
    value = patterns((40, 50), dtype)
    with clients[0].create(value.shape, value.dtype) as buffer:
        assert buffer.dtype == dtype
        torch.from_numpy(buffer.array.view(np.uint8))[:] = value.view(torch.uint8)
    out = torch.empty((40, 50), dtype=value.dtype)
    clients[1].get(buffer.ref, out=out, timeout=SOON)
    assert raw(out) == raw(value)


def test_a_state_dict_of_narrow_tensors_needs_no_entry_of_the_allowlist(nodes: list[Node]) -> None:
    state = {dtype: patterns((3, 5), dtype) for dtype in NARROW}
    putter, getter = (node.client(allow_pickle=[]) for node in nodes)
    got = getter.get(putter.put(state), timeout=SOON)
    for dtype, value in state.items():
        assert got[dtype].dtype == value.dtype
        assert raw(got[dtype]) == raw(value)


def test_a_model_in_float8_is_returned_as_float8(clients: list[Client]) -> None:
    weight = torch.nn.Parameter(torch.ones(64, 64).to(torch.float8_e4m3fn), requires_grad=False)
    got = clients[1].get(clients[0].put(weight), timeout=SOON)
    assert got.dtype == torch.float8_e4m3fn
    assert torch.equal(got.to(torch.float32), torch.ones(64, 64))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float4_e2m1fn_x2", "int4"])
def test_a_reduce_of_narrow_tensors_is_rejected_with_the_reason(clients: list[Client], dtype: str) -> None:
    total = clients[0].reduce([client.put(patterns((3, 5), dtype)) for client in clients])
    with pytest.raises(hoplite.UnsupportedDtype, match=rf"{dtype}\[3, 5\]: no operation .*convert .*bfloat16"):
        clients[1].get(total, timeout=SOON)


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_a_reduce_of_unsigned_tensors(clients: list[Client], dtype: str) -> None:
    total = clients[0].reduce([client.put(patterns((300, 512), dtype)) for client in clients])
    got = clients[1].get(total, timeout=SOON)
    expected = patterns((300, 512), dtype).numpy() * 2
    assert got.dtype == getattr(torch, dtype)
    assert np.array_equal(got.numpy(), expected)


@pytest.mark.parametrize("dtype", ["int3", "uint7", "bits8"])
def test_a_dtype_that_the_store_lacks_is_named_and_pickled(
    nodes: list[Node], clients: list[Client], dtype: str
) -> None:
    value = torch.arange(4, dtype=torch.uint8).view(getattr(torch, dtype))
    with pytest.raises(hoplite.UnsupportedDtype, match=rf"dtype torch\.{dtype} without pickle"):
        clients[0].put(value)
    with pytest.raises(hoplite.UnsupportedDtype, match=rf"unknown dtype torch\.{dtype}"):
        clients[0].create(4, value.dtype)
    with pytest.raises(hoplite.UnsupportedDtype, match=rf"unknown dtype torch\.{dtype}"):
        clients[0].get(clients[0].put(np.zeros(4, np.uint8)), out=value, timeout=SOON)
    putter, getter = (node.client() for node in nodes)
    got = getter.get(putter.put(value), timeout=SOON)
    assert (got.dtype, got.shape, raw(got)) == (value.dtype, value.shape, raw(value))
