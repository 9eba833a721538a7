"""Weights by name with tensors that have no memory of their own, and with modules that wrap others."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

import pytest

pytestmark = pytest.mark.torch

torch: Any = pytest.importorskip("torch", reason="needs PyTorch")

import hoplite  # noqa: E402 - torch must be there
import hoplite.torch as ht  # noqa: E402
from torch_weights import SOON, counting, same  # noqa: E402

if TYPE_CHECKING:
    from hoplite import Client

# Larger than what is copied by address.
SIDE = 512


class Quantized(torch.Tensor):  # type: ignore[misc]
    """A wrapper of two tensors, as torchao has them."""

    @staticmethod
    def __new__(cls: Any, qdata: Any, scale: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, qdata.shape, dtype=torch.float32, device=qdata.device)

    def __init__(self, qdata: Any, scale: Any) -> None:
        self.qdata = qdata
        self.scale = scale

    def __tensor_flatten__(self) -> Any:
        return ["qdata", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, shape: Any, stride: Any) -> Any:
        return cls(parts["qdata"], parts["scale"])

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation is torch.ops.aten.detach.default:
            # Some subclasses return copies here.
            return cls(args[0].qdata.clone(), args[0].scale.clone())
        raise NotImplementedError(operation)


def quantized(fill: int) -> Any:
    return Quantized(torch.full((SIDE, SIDE), fill, dtype=torch.int8), torch.full((SIDE,), fill / 2))


class Layer(torch.nn.Module):  # type: ignore[misc]
    """A module with a quantized weight."""

    def __init__(self, fill: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(quantized(fill), requires_grad=False)
        self.bias = torch.nn.Parameter(torch.full((SIDE,), float(fill)))


def freed() -> Any:
    tensor = torch.ones(SIDE, SIDE)
    tensor.untyped_storage().resize_(0)
    return tensor


def masked() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.masked.masked_tensor(torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE, dtype=torch.bool))


def fake() -> Any:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(SIDE, SIDE)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (fake, "w is a FakeTensor, a subclass without __tensor_flatten__"),
        (masked, "w is a MaskedTensor, a subclass without __tensor_flatten__"),
        (freed, "w is a Tensor that needs a storage of 1048576 bytes, and has one without memory"),
        (lambda: torch._efficientzerotensor(SIDE, SIDE), "w is a Tensor that needs .*, and has one without memory"),
        (lambda: torch.nn.LazyLinear(3).weight, "w is a UninitializedParameter without a shape"),
    ],
)
@pytest.mark.parametrize("is_mapping", [True, False])
def test_tensors_without_memory_are_refused(client: Client, make: Any, message: str, is_mapping: bool) -> None:
    tensors = {"v": torch.ones(3), "w": make()}
    with pytest.raises(hoplite.UnsupportedDtype, match=message):
        ht.publish(tensors if is_mapping else iter(tensors.items()), "bad/1", client=client)
    ht.publish({"v": torch.ones(3), "w": torch.ones(SIDE, SIDE)}, "good/1", client=client)
    with pytest.raises(hoplite.UnsupportedDtype, match=message):
        ht.fetch("good/", into=tensors, client=client, timeout=SOON)


def test_tensors_of_a_transformation_are_refused(client: Client) -> None:
    def inside(tensor: Any) -> Any:
        with pytest.raises(hoplite.UnsupportedDtype, match="w is a Tensor without a storage"):
            ht.publish({"w": tensor}, "bad/1", client=client)
        return tensor

    torch.func.vmap(inside)(torch.ones(2, 3))


def test_a_storage_that_was_shrunk_is_refused(client: Client) -> None:
    tensor = torch.ones(SIDE, SIDE)
    tensor.untyped_storage().resize_(64)
    message = "w is a Tensor that needs a storage of 1048576 bytes, and has one of 64 bytes"
    with pytest.raises(hoplite.UnsupportedDtype, match=message):
        ht.publish({"w": tensor}, "bad/1", client=client)


def test_subclasses_are_published_as_their_parts(clients: list[Client]) -> None:
    tensors = {"a": quantized(1), "b": quantized(2), "c": torch.ones(3)}
    ht.publish(tensors, "w/1", client=clients[0])
    got = ht.fetch("w/", client=clients[1], timeout=SOON)
    assert list(got) == ["a.qdata", "a.scale", "b.qdata", "b.scale", "c"]
    assert [got[f"{name}.qdata"].unique().tolist() for name in "ab"] == [[1], [2]]
    into = {"a": quantized(0), "b": quantized(0), "c": torch.zeros(3)}
    ht.fetch("w/", into=into, client=clients[2], timeout=SOON)
    assert [into[name].qdata.unique().tolist() for name in "ab"] == [[1], [2]]
    assert [into[name].scale.unique().tolist() for name in "ab"] == [[0.5], [1]]


@pytest.mark.parametrize("stage", [False, True])
def test_a_module_of_subclasses_receives_another(clients: list[Client], stage: bool) -> None:
    ht.publish(Layer(3), "w/1", client=clients[0])
    module = Layer(0)
    got = ht.fetch("w/", into=module, stage=stage, client=clients[1], timeout=SOON)
    if stage:
        got.switch()
    assert module.weight.qdata.unique().tolist() == [3]
    assert module.weight.scale.unique().tolist() == [1.5]
    assert module.bias.unique().tolist() == [3]


def test_a_part_has_the_name_of_no_other_tensor(client: Client) -> None:
    with pytest.raises(hoplite.InvalidArgument, match=r"tensor 'w\.scale' is there twice"):
        ht.publish({"w": quantized(1), "w.scale": torch.ones(3)}, "bad/1", client=client)


class Meddling(torch.Tensor):  # type: ignore[misc]
    """A subclass with memory of its own, whose functions do something else."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(function)


def test_a_subclass_with_memory_is_its_memory(clients: list[Client]) -> None:
    with torch._C.DisableTorchFunctionSubclass():
        made, into = counting((5, 5)).as_subclass(Meddling), torch.zeros(5, 5).as_subclass(Meddling)
        plain = into.as_subclass(torch.Tensor)
    ht.publish({"w": made}, "w/1", client=clients[0])
    ht.fetch("w/", into={"w": into}, client=clients[1], timeout=SOON)
    assert torch.equal(plain, counting((5, 5)))


@pytest.mark.parametrize(
    "source",
    [{}, [], torch.nn.ReLU(), {"a": torch.empty(0), "b": torch.empty(0, 4)}],
)
@pytest.mark.parametrize("is_iterator", [False, True])
def test_nothing_is_refused(client: Client, source: Any, is_iterator: bool) -> None:
    if is_iterator:
        source = iter(source.items() if isinstance(source, dict) else [])
    with pytest.raises(hoplite.InvalidArgument, match=r"(no tensors|2 tensors have no elements) to publish as w/1"):
        ht.publish(source, "w/1", client=client)
    assert client.directory() == []
    # The rank that has the weights can publish them.
    ht.publish({"a": torch.ones(3)}, "w/1", client=client)


def test_a_partitioned_parameter_is_refused(client: Client) -> None:
    module = torch.nn.Linear(4, 4)
    module.weight.data = torch.empty(0)
    module.weight.ds_shape = torch.Size([4, 4])
    with pytest.raises(hoplite.InvalidArgument, match=r"a parameter of \[4, 4\] has \[0\] here, as ZeRO-3 partitions"):
        ht.publish(module, "w/1", client=client)


class Outer(torch.nn.Module):  # type: ignore[misc]
    """A module with an attribute of the name that data parallelism uses."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.module = torch.nn.Linear(2, 2)
        with torch.no_grad():
            for tensor in self.parameters():
                tensor.fill_(fill)


@pytest.mark.parametrize(
    "wrap",
    [
        torch.compile,
        torch.nn.DataParallel,
        lambda module: torch.compile(torch.nn.DataParallel(module)),
        lambda module: torch.nn.DataParallel(torch.compile(module)),
    ],
)
def test_wrapped_modules_have_the_names_of_the_module(clients: list[Client], wrap: Any) -> None:
    ht.publish(wrap(Outer(1)), "w/1", client=clients[0])
    module, wrapped = Outer(0), Outer(0)
    got = ht.fetch("w/", into=module, client=clients[1], timeout=SOON)
    assert list(got) == ["module.weight", "module.bias"]
    ht.fetch("w/", into=wrap(wrapped), client=clients[1], timeout=SOON)
    assert wrapped.module.weight.detach().unique().tolist() == [1]


def test_a_compiled_part_has_the_names_of_the_module(clients: list[Client]) -> None:
    part = Outer(1)
    part.module = torch.compile(part.module)
    assert "module._orig_mod.weight" in part.state_dict()
    ht.publish(part, "w/1", client=clients[0])
    assert list(ht.fetch("w/", client=clients[1], timeout=SOON)) == ["module.weight", "module.bias"]


class Original(torch.nn.Linear):  # type: ignore[misc]
    """A layer with a part whose name is that of the module in a compiled one."""

    def __init__(self, value: int) -> None:
        super().__init__(2, 2)
        self._orig_mod = torch.nn.Linear(2, 2)
        for tensor in self.parameters():
            torch.nn.init.constant_(tensor, value)


@pytest.mark.parametrize("wrap", [lambda module: module, torch.compile])
def test_a_module_with_a_part_of_the_name_of_a_wrapper_is_published_whole(client: Client, wrap: Any) -> None:
    ht.publish(wrap(Original(1)), "w/1", client=client)
    got = ht.fetch("w/", into=wrap(module := Original(0)), client=client, timeout=SOON)
    assert set(got) == {"weight", "bias", "_orig_mod.weight", "_orig_mod.bias"}
    assert {value for tensor in module.parameters() for value in tensor.unique().tolist()} == {1}


@pytest.mark.parametrize("added", ["module", "_orig_mod", "_fsdp_wrapped_module"])
@pytest.mark.parametrize("is_into", [False, True])
def test_names_of_wrappers_get_a_hint(client: Client, added: str, is_into: bool) -> None:
    plain, prefixed = {"a.w": torch.zeros(3)}, {f"{added}.a.w": torch.zeros(3)}
    ht.publish(plain if is_into else prefixed, "w/1", client=client)
    with pytest.raises(hoplite.InvalidArgument, match=f'the names differ by "{added}.", which a wrapper adds'):
        ht.fetch("w/", into=prefixed if is_into else plain, client=client, timeout=SOON)
    with pytest.raises(hoplite.InvalidArgument) as other:
        ht.fetch("w/", into={"b.w": torch.zeros(3)}, client=client, timeout=SOON)
    assert "wrapper" not in str(other.value)


class Copies(torch.nn.Linear):  # type: ignore[misc]
    """A layer whose state is a copy of it, as with a hook of FSDP or of a quantized layer."""

    def state_dict(self, *args: Any, **options: Any) -> Any:
        return {name: tensor.clone() for name, tensor in super().state_dict(*args, **options).items()}


class Attribute(torch.nn.Linear):  # type: ignore[misc]
    """A layer with state in an attribute that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.packed = torch.zeros(3)

    def state_dict(self, *args: Any, **options: Any) -> Any:
        return {**super().state_dict(*args, **options), "packed": self.packed}


def test_a_module_whose_state_is_a_copy_is_published_and_not_filled(client: Client) -> None:
    module = Copies(2, 2)
    ht.publish(module, "w/1", client=client)
    with pytest.raises(hoplite.InvalidArgument, match="state_dict of Copies returns copies, such as weight"):
        ht.fetch("w/", into=module, client=client, timeout=SOON)
    other, into = Attribute(), Attribute()
    other.packed.fill_(5)
    ht.publish(other, "w/2", client=client)
    ht.fetch("w/", into=into, client=client, timeout=SOON)
    assert into.packed.tolist() == [5, 5, 5]


class Extra(torch.nn.Linear):  # type: ignore[misc]
    """A layer with extra state, as Transformer Engine has it."""

    def get_extra_state(self) -> Any:
        return {"amax": 1.0}

    def set_extra_state(self, state: Any) -> None:  # noqa: ARG002 - torch calls it
        raise AssertionError


def test_extra_state_is_left_out(clients: list[Client]) -> None:
    module, into = torch.nn.Sequential(Extra(2, 2)), torch.nn.Sequential(Extra(2, 2))
    ht.publish(module, "w/1", client=clients[0])
    assert list(ht.fetch("w/", into=into, client=clients[1], timeout=SOON)) == ["0.weight", "0.bias"]
    assert torch.equal(into[0].weight, module[0].weight)


def test_swapped_arguments_show_the_signature(client: Client) -> None:
    swapped: list[tuple[Any, Any]] = [
        ("policy/1", torch.nn.Linear(2, 2)),
        ("policy/1", {}),
        ({}, {}),
        (hoplite.Ref("a/1"), "a/1"),
    ]
    for source, name in swapped:
        with pytest.raises(hoplite.InvalidArgument, match=r"the signature is publish\(source, name, retain=2"):
            ht.publish(source, name, client=client)


def test_a_mapping_with_a_subclass_is_the_same_as_its_parts(clients: list[Client]) -> None:
    ht.publish({"w": quantized(4)}, "w/1", client=clients[0])
    parts = {"w.qdata": torch.zeros(SIDE, SIDE, dtype=torch.int8), "w.scale": torch.zeros(SIDE)}
    ht.fetch("w/", into=parts, client=clients[1], timeout=SOON)
    same(parts, {"w.qdata": torch.full((SIDE, SIDE), 4, dtype=torch.int8), "w.scale": torch.full((SIDE,), 2.0)})


def test_a_missing_base_and_missing_nodes_are_logged(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "hoplite.torch")
    published = ht.publish({"w": torch.ones(1 << 20)}, "w/5", base="w/3", replicas=4, client=client)
    assert published.sent == 4 << 20
    assert published.ref.replicas == 1
    assert [record.getMessage() for record in caplog.records] == [
        "base w/3 does not exist: all data is put",
        "w/5 has copies on 1 nodes, below replicas=4: start more nodes",
    ]
