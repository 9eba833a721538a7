"""PyTorch tensors to bytes and back: encoded without a copy, decoded with a copy unless requested otherwise."""

# ruff: noqa: ANN401 - values are anything

from __future__ import annotations

import gc
import math
import pickle
import subprocess
import sys
import warnings
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from hoplite import values
from hoplite.errors import DecodeError, InvalidArgument, UnsupportedDtype
from hoplite.values import DTYPES, NARROW_DTYPES, tensors
from stored import address, joined, mapped, pinned, store, there_and_back

# Run with the newest and the oldest supported versions of torch and NumPy.
pytestmark = [pytest.mark.torch, pytest.mark.frameworks]

torch: Any = pytest.importorskip("torch", reason="tensors need PyTorch")

# Older versions lack uint16 to uint64, float8 and int4.
KINDS = [name for name in DTYPES if hasattr(torch, name)]

SHAPES: list[tuple[int, ...]] = [(), (0,), (3, 0, 2), (1,), (7,), (5, 3, 2), (1025,)]


def counting(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """Returns whole numbers from 0 to 99; of narrow dtypes, all bit patterns in turn."""
    if dtype in NARROW_DTYPES:
        return torch.arange(math.prod(shape)).to(torch.uint8).view(getattr(torch, dtype)).reshape(shape)
    return (torch.arange(math.prod(shape)) % 100).to(getattr(torch, dtype)).reshape(shape)


def same(got: Any, expected: Any) -> None:
    assert isinstance(got, torch.Tensor)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    got, expected = got.detach(), expected.detach()
    if str(got.dtype).removeprefix("torch.") in NARROW_DTYPES:
        # Some bit patterns are NaN, and torch does not compare all narrow dtypes.
        got, expected = got.view(torch.uint8), expected.view(torch.uint8)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", KINDS)
def test_every_shape_round_trips(dtype: str) -> None:
    for shape in SHAPES:
        value = counting(shape, dtype)
        encoded = values.encode(value, allow_pickle=False)
        assert (encoded.kind, encoded.shape, encoded.form) == (dtype, shape, "torch")
        assert encoded.nbytes == value.numel() * value.element_size()
        for copy in (False, True):
            same(values.decode(store(encoded), copy=copy, allow_pickle=False), value)


@pytest.mark.parametrize("dtype", KINDS)
def test_contiguous_tensors_are_encoded_without_a_copy(dtype: str) -> None:
    for shape in ((), (7,), (5, 3, 2)):
        value = counting(shape, dtype)
        (part,) = values.encode(value).parts
        assert address(part) == value.data_ptr()


def test_every_memory_layout_round_trips() -> None:
    base = counting((4, 6))
    complex_ = torch.tensor([1 + 2j, 3 - 4j])
    for value in (base.t(), base[::2], base[:, 1], base.expand(3, 4, 6), complex_.conj().imag, complex_.real):
        encoded = values.encode(value)
        assert encoded.form == "torch"
        same(values.decode(store(encoded)), value.contiguous())


@pytest.mark.parametrize("dtype", [name for name in KINDS if name in NARROW_DTYPES])
def test_narrow_tensors_of_every_memory_layout_round_trip(dtype: str) -> None:
    """Of some narrow dtypes, torch itself makes no contiguous copy."""
    base = counting((16, 16), dtype)
    same_bytes = base.view(torch.uint8)
    for arrange in (torch.t, lambda each: each[::2], lambda each: each[:, 1], lambda each: each.expand(3, 16, 16)):
        got = there_and_back(arrange(base))
        assert (got.dtype, got.is_contiguous()) == (base.dtype, True)
        assert torch.equal(got.view(torch.uint8), arrange(same_bytes))


def test_parts_keep_the_tensor_alive() -> None:
    value = counting((10_000,))
    encoded = values.encode(value)
    expected = value.clone()
    kept: Any = encoded.parts[0]
    gone = weakref.ref(kept.tensor)
    del value, kept
    gc.collect()
    assert gone() is not None
    same(values.decode(store(encoded)), expected)
    del encoded
    gc.collect()
    assert gone() is None


def test_a_tensor_that_requires_grad_is_put_without_its_graph() -> None:
    for value in (
        torch.ones(3, requires_grad=True),
        torch.ones(3, requires_grad=True) * 2,
        torch.nn.Parameter(torch.ones(3)),
    ):
        encoded = values.encode(value)
        assert encoded.form == "torch"
        got = values.decode(store(encoded))
        same(got, value)
        assert not got.requires_grad


def test_a_tensor_is_a_private_copy() -> None:
    for copy in (False, True):
        view = store(values.encode(counting((1000,))))
        got = values.decode(view, copy=copy)
        assert not pinned(view)
        got += 1
        same(got, counting((1000,)) + 1)


QUIET = """
import sys, warnings
sys.path.insert(0, {tests!r})
import torch
warnings.simplefilter("error")
from stored import there_and_back
for copy in (False, True):
    there_and_back(torch.ones(3), copy=copy)
    there_and_back([torch.ones(3)], copy=copy)
print(warnings.filters[0][0], "pyarrow" in sys.modules)
"""


def test_pytorchs_warning_about_read_only_memory_is_suppressed() -> None:
    source = QUIET.format(tests=str(__file__).rpartition("/")[0])
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert (done.stdout.strip(), done.stderr.strip()) == ("error False", "")


# Tensors that need a pickle.


class Marked(torch.Tensor):  # type: ignore[misc]
    pass


def marked() -> Any:
    value = torch.ones(3).as_subclass(Marked)
    value.unit = "m"  # PyTorch 1.13 can't unpickle a subclass without an attribute
    return value


PICKLED: dict[str, Any] = {
    "subclass": marked(),
}


@pytest.mark.parametrize("value", PICKLED.values(), ids=PICKLED.keys())
@pytest.mark.parametrize("copy", [False, True])
def test_a_tensor_of_another_dtype_is_pickled(value: Any, copy: bool) -> None:
    encoded = values.encode(value)
    assert encoded.form == "pickle"
    view = store(encoded)
    got = values.decode(view, copy=copy)
    assert type(got) is type(value)
    same(got, value)
    assert not pinned(view)
    with pytest.raises(UnsupportedDtype, match=rf"dtype {value.dtype} without pickle: set allow_pickle=True"):
        values.encode(value, allow_pickle=False)


def test_a_conjugate_is_resolved() -> None:
    value = torch.tensor([1 + 2j, 3]).conj()
    assert values.encode(value).kind == "complex64"
    same(there_and_back(value), torch.tensor([1 - 2j, 3]))


# Warnings of PyTorch 2.15 about its own quantized tensors and their pickles, once in a process.
QUANTIZED = pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor:UserWarning", "ignore:TypedStorage is deprecated:UserWarning"
)


@QUANTIZED
def test_sparse_and_quantised_tensors_are_pickled() -> None:
    sparse = torch.eye(3).to_sparse()
    same(there_and_back(sparse).to_dense(), torch.eye(3))
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8)
    same(there_and_back(quantised).dequantize(), torch.ones(3))


def test_tensors_in_an_object_are_private_copies() -> None:
    model = torch.nn.Linear(100, 50)
    state = {
        **model.state_dict(),
        "flag": torch.tensor(True),
        "half": counting((3, 5), "bfloat16").t(),
        "none": torch.empty(0),
    }
    for copy in (False, True):
        view = store(values.encode(state))
        got = values.decode(view, copy=copy)
        assert not pinned(view)
        assert list(got) == list(state)
        for name, tensor in got.items():
            same(tensor, state[name])
            tensor.zero_()


@pytest.mark.parametrize("dtype", KINDS)
def test_tensors_in_an_object_need_no_entry_of_the_allowlist(dtype: str) -> None:
    value = {"a": counting((3, 5), dtype), "b": counting((), dtype)}
    got = values.decode(store(values.encode(value, allow_pickle=())), allow_pickle=())
    for name, tensor in value.items():
        same(got[name], tensor)
    with pytest.raises(UnsupportedDtype, match=r"it uses torch\..*, which is not on the list of allow_pickle"):
        values.encode([torch.nn.Parameter(torch.ones(3))], allow_pickle=())


def test_tensors_in_an_object_are_encoded_without_a_copy() -> None:
    tensor = counting((10_000,))
    encoded = values.encode({"a": tensor})
    assert tensor.data_ptr() in {address(part) for part in encoded.parts}


def test_gradients_parameters_and_attributes_in_an_object_are_kept() -> None:
    wants = torch.ones(3, requires_grad=True)
    named = torch.ones(3)
    named.unit = "m"
    model = torch.nn.Linear(3, 2)
    got = there_and_back([wants, named, model])
    assert got[0].requires_grad
    # Only PyTorch 2.0 and later keep an attribute.
    assert hasattr(got[1], "unit") == hasattr(pickle.loads(pickle.dumps(named)), "unit")
    assert type(got[2].weight) is torch.nn.Parameter
    assert got[2].weight.requires_grad
    same(got[2].weight, model.weight)


def test_a_tensor_that_an_object_contains_twice_is_decoded_once() -> None:
    tensor = torch.ones(3)
    first, second = there_and_back([tensor, tensor])
    assert first is second


def test_corrupt_tensors_in_objects_raise_decode_error() -> None:
    data = joined(values.encode([counting((20,))]))
    shorter = data[:24] + (76).to_bytes(8, "little") + data[32:-4]
    with pytest.raises(DecodeError):
        values.decode(mapped(shorter, form="pickle"))


# Rejected tensors.


def test_a_tensor_without_memory_is_rejected() -> None:
    with pytest.raises(UnsupportedDtype, match="device meta"):
        values.encode(torch.ones(3, device="meta"))


def test_a_tensor_on_another_device_is_rejected_by_name() -> None:
    """No GPU is available; only the device of a tensor is checked."""
    for call in (tensors.encode_tensor, tensors.writable_tensor):
        with pytest.raises(UnsupportedDtype, match=r"device cuda:1.*try value\.cpu\(\)"):
            call(SimpleNamespace(device=torch.device("cuda:1")))


def test_a_dtype_that_this_version_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(__version__="0.1", float32=torch.float32)
    monkeypatch.setitem(sys.modules, "torch", old)
    with pytest.raises(UnsupportedDtype, match=r"tensor of uint16, which torch 0\.1 lacks"):
        values.decode(mapped(bytes(4), "uint16", (2,), "torch"))


def test_pytorch_dtypes_are_accepted() -> None:
    for name in KINDS:
        assert values.check_dtype(getattr(torch, name)) == name
    with pytest.raises(UnsupportedDtype, match=r"unknown dtype torch\.qint8"):
        values.check_dtype(torch.qint8)


# get(out=...)


@pytest.mark.parametrize("dtype", KINDS)
def test_a_tensor_can_be_an_out(dtype: str) -> None:
    for shape in SHAPES:
        value, out = counting(shape, dtype), torch.empty(shape, dtype=getattr(torch, dtype))
        encoded = values.encode(value)
        opened = values.writable(out)
        assert (opened.kind, opened.shape) == (encoded.kind, encoded.shape)
        assert (opened.data.format, opened.data.ndim, opened.data.readonly) == ("B", 1, False)
        opened.data[:] = joined(encoded)
        same(out, value)


def test_a_parameter_can_be_an_out() -> None:
    model = torch.nn.Linear(3, 2)
    opened = values.writable(model.weight)
    opened.data[:] = joined(values.encode(counting((2, 3))))
    same(model.weight, counting((2, 3)))


@QUANTIZED
def test_a_tensor_that_can_not_be_written_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match=r"try out\.contiguous"):
        values.writable(torch.ones(3, 2).t())
    with pytest.raises(InvalidArgument):
        values.writable(torch.eye(3).to_sparse())
    with pytest.raises(UnsupportedDtype, match=r"torch\.qint8"):
        values.writable(torch.quantize_per_tensor(torch.zeros(3), 0.5, 0, torch.qint8))
    with pytest.raises(UnsupportedDtype, match="device meta"):
        values.writable(torch.ones(3, device="meta"))


def test_decoding_a_tensor_causes_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values.decode(store(values.encode(counting((3,)))))
