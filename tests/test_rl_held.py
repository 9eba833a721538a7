"""Versions in the shared memory of a host: each tensor is as it was published, whatever objects its bytes are in."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import hoplite
from hoplite.errors import ObjectCorrupt, Timeout
from support import SOON, Later

if TYPE_CHECKING:
    from collections.abc import Iterator

torch = pytest.importorskip("torch")

import hoplite.torch as ht  # noqa: E402 - needs torch
from hoplite._held import Held  # noqa: E402

pytestmark = [pytest.mark.rl, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def _shared(node: hoplite.Node) -> Iterator[None]:  # noqa: ARG001 - the node of this user
    with hoplite.init():
        yield
    hoplite.shutdown()


@pytest.mark.parametrize("bucket", [None, 128, "1MiB"])
def test_every_tensor_arrives_as_it_was_published(bucket: int | str | None) -> None:
    tied = torch.arange(90, dtype=torch.float64).view(9, 10)
    weights = {
        "long": torch.arange(1000),
        "transposed": torch.arange(12, dtype=torch.bfloat16).view(3, 4).t(),
        "number": torch.tensor(7, dtype=torch.int8),
        "empty": torch.empty(0, 3),
        "flags": torch.tensor([True, False, True]),
        "small": torch.arange(5).to(torch.float8_e4m3fn),
        "tied": tied,
        "also": tied,
    }
    ht.publish(weights, "policy/1", bucket=bucket, timeout=SOON)
    found = dict(Held("policy/1", SOON).tensors("cpu"))
    assert list(found) == list(weights)
    for name, tensor in weights.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name].double(), tensor.double())
        # A loader may write into it.
        found[name].zero_()


def test_another_default_device_of_the_caller_is_not_used() -> None:
    ht.publish({"weight": torch.arange(12)}, "policy/1", timeout=SOON)
    with torch.device("meta"):
        found = dict(Held("policy/1", SOON).tensors("cpu"))
    assert found["weight"].tolist() == list(range(12))


def test_shards_are_joined() -> None:
    whole = torch.arange(24).view(4, 6)
    halves = [slice(0, 4), slice(4, 6)]
    others = [
        Later(
            ht.publish,
            {"joined": whole[:, columns]},
            "policy/1",
            shards=(rank, 2, {"joined": ((slice(None), columns), (4, 6))}),
            timeout=SOON,
        )
        for rank, columns in enumerate(halves)
    ]
    ((name, found),) = Held("policy/1", SOON).tensors("cpu")
    assert name == "joined"
    assert torch.equal(found, whole)
    for other in others:
        other.result(SOON)


def test_a_deleted_version_stays_while_it_is_held() -> None:
    module = torch.nn.Linear(100, 1000)
    for version in (1, 2):
        torch.nn.init.constant_(module.weight, version)
        ht.publish(module, f"policy/{version}", retain=1, timeout=SOON)
        if version == 1:
            held = Held("policy/1", SOON)
    assert dict(held.tensors("cpu"))["weight"].unique().tolist() == [1]
    assert dict(Held("policy/2", SOON).tensors("cpu"))["weight"].unique().tolist() == [2]


def test_failures_are_named() -> None:
    with pytest.raises(Timeout, match="policy/3"):
        Held("policy/3", 0)
    client = hoplite.client()
    ref = ht.publish({"w": torch.ones(100)}, "policy/4", digest=True, timeout=SOON).ref
    data = bytearray(client.get(ref, timeout=SOON))
    # The data of a small version is behind its manifest.
    data[-1] ^= 1
    client.delete(ref, timeout=SOON)
    client.put(data, name=ref, timeout=SOON)
    with pytest.raises(ObjectCorrupt, match="policy/4"):
        Held("policy/4", SOON)
    client.put(b"text", name="policy/5", timeout=SOON)
    with pytest.raises(ht.ManifestInvalid, match="policy/5"):
        Held("policy/5", SOON)


def test_a_version_arrives_in_a_loop_whose_executor_is_full() -> None:
    ht.publish({"w": torch.arange(1 << 18)}, "policy/6", digest=True, timeout=SOON)
    go_on = threading.Event()

    async def main() -> Held:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        full = loop.run_in_executor(None, go_on.wait, SOON)
        try:
            async with asyncio.timeout(SOON / 2):
                return await Held.arrived("policy/6", SOON / 2)
        finally:
            go_on.set()
            await full

    ((_, found),) = asyncio.run(main()).tensors("cpu")
    assert torch.equal(found, torch.arange(1 << 18))
