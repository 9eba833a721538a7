"""Weights by name with bad input: every error names the tensor or version, and nothing is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytestmark = pytest.mark.torch

torch: Any = pytest.importorskip("torch", reason="needs PyTorch")

import hoplite  # noqa: E402 - torch must be there
import hoplite.torch as ht  # noqa: E402
from torch_weights import SOON, Model  # noqa: E402

if TYPE_CHECKING:
    from hoplite import Client


class Sharded(torch.Tensor):  # type: ignore[misc]
    """As a DTensor looks."""

    def full_tensor(self) -> Any:
        """Not called."""
        raise AssertionError


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions.*:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_values_that_are_not_dense_tensors_are_refused(client: Client) -> None:
    for value, message in [
        ([1.0], "w is a list, not a tensor"),
        (torch.empty(3, device="meta"), "w is on device meta"),
        (torch.eye(3).to_sparse(), r"w is not dense \(torch.sparse_coo\)"),
        (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), r"w is quantized \(torch.qint8\)"),
        (torch.ones(3).as_subclass(Sharded), "w is a DTensor"),
    ]:
        with pytest.raises(hoplite.UnsupportedDtype, match=message):
            ht.publish({"w": value}, "bad/1", client=client)
    assert client.directory() == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (torch.ones(3), "expected a module, a mapping or pairs"),
        (5, "expected a module, a mapping or pairs"),
        ([torch.ones(3)], "expected pairs of a name and a tensor"),
        ([("w", torch.ones(3)), ("w", torch.ones(3))], "tensor 'w' is there twice"),
        ({3: torch.ones(3)}, "the tensor name '3' is not text"),
        ({"n" * 5000: torch.ones(3)}, "is not text of up to 4096 characters"),
    ],
)
def test_sources_that_are_not_tensors_by_name(client: Client, source: Any, message: str) -> None:
    with pytest.raises(hoplite.InvalidArgument, match=message):
        ht.publish(source, "bad/1", client=client)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("policy", {}, 'does not end in "/" and a number'),
        ("policy/", {}, 'does not end in "/" and a number'),
        ("policy/007", {}, "policy/007 has leading zeros: write policy/7"),
        ("policy/1", {"retain": 0}, "retain is 0"),
        ("policy/1", {"replicas": 0}, "replicas is 0"),
        ("policy/1", {"bucket": "16 bananas"}, "bucket '16 bananas' is not a size"),
        ("policy/1", {"bucket": 0}, "bucket is 0 bytes"),
        ("policy/1", {"timeout": -1}, "timeout is -1"),
        ("policy/1", {"timeout": "5"}, "timeout is '5'"),
    ],
)
def test_arguments_of_publish(client: Client, name: str, options: Any, message: str) -> None:
    with pytest.raises(hoplite.InvalidArgument, match=message):
        ht.publish({"w": torch.ones(3)}, name, client=client, **options)
    assert client.directory() == []


def test_dtypes_that_are_not_floats_are_refused(client: Client) -> None:
    for dtype in (torch.int8, "bfloat17", 3):
        with pytest.raises(hoplite.UnsupportedDtype, match="pass a floating dtype"):
            ht.publish({"w": torch.ones(3)}, "bad/1", client=client, dtype=dtype)


def test_a_version_does_not_go_back(client: Client) -> None:
    ht.publish({"w": torch.ones(3)}, "policy/5", client=client)
    with pytest.raises(hoplite.NameTaken, match="policy/5 exists already: publish a higher version"):
        ht.publish({"w": torch.zeros(3)}, "policy/5", client=client)
    with pytest.raises(hoplite.InvalidArgument, match="policy/4 would go back: policy/5 exists"):
        ht.publish({"w": torch.zeros(3)}, "policy/4", client=client)
    got = ht.fetch("policy/", client=client, timeout=SOON)
    assert (got.version, got["w"].tolist()) == (5, [1, 1, 1])
    with pytest.raises(hoplite.Timeout, match=r"no version of policy/ above 5 was available within 0.1 s"):
        ht.fetch("policy/", after=5, client=client, timeout=0.1)


def test_a_changed_model_is_an_error_that_names_the_tensor(clients: list[Client]) -> None:
    ht.publish(Model(1), "policy/1", client=clients[0])
    for change, error, message in [
        ({"extra": torch.ones(1)}, hoplite.InvalidArgument, "into does not fit policy/1 .*1 unknown, such as 'extra'"),
        ({"norm.bias": None}, hoplite.InvalidArgument, "into does not fit policy/1 .*1 missing, such as 'norm.bias'"),
        (
            {"norm.bias": torch.ones(63)},
            hoplite.ShapeMismatch,
            r"norm.bias is float32 \[64\] in policy/1, but .*\[63\]",
        ),
        ({"norm.bias": torch.ones(64).double()}, hoplite.ShapeMismatch, r"but float64 \[64\] .*, or dtype= to convert"),
        ({"norm.bias": torch.ones(64, device="meta")}, hoplite.UnsupportedDtype, "norm.bias is on device meta"),
    ]:
        into = {**Model(0).state_dict(), **change}
        with pytest.raises(error, match=message):
            ht.fetch(
                "policy/",
                into={name: tensor for name, tensor in into.items() if tensor is not None},
                client=clients[1],
                timeout=SOON,
            )
        assert into["norm.weight"].sum() == 0


def test_arguments_of_fetch(client: Client) -> None:
    ht.publish({"w": torch.ones(3)}, "policy/5", client=client)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"stage": True}, "stage=True needs the tensors to switch"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"after": -2}, "after is -2"),
        ({"into": 3}, "expected a module, a mapping or pairs"),
    ]
    for options, message in wrong:
        with pytest.raises(hoplite.InvalidArgument, match=message):
            ht.fetch("policy/", client=client, **options)
    with pytest.raises(hoplite.InvalidArgument, match='after works with a prefix, not with policy/5: write "policy/"'):
        ht.fetch("policy/5", after=3, client=client)


def test_a_closed_client_raises_its_own_error(node: hoplite.Node) -> None:
    client = node.client()
    client.close()
    with pytest.raises(hoplite.ClientClosed):
        ht.publish({"w": torch.ones(3)}, "policy/5", client=client)
    with pytest.raises(hoplite.ClientClosed):
        ht.fetch("policy/", client=client, timeout=SOON)
