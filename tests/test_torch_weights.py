"""Weights by name: what is published is what is fetched, into new tensors or those of a module."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

pytestmark = pytest.mark.torch

torch: Any = pytest.importorskip("torch", reason="needs PyTorch")

import hoplite  # noqa: E402 - torch must be there
import hoplite.torch as ht  # noqa: E402
from hoplite.torch.weights.memory import element_sizes  # noqa: E402
from support import eventually  # noqa: E402
from torch_weights import SOON, Model, as_bytes, counting, same  # noqa: E402

if TYPE_CHECKING:
    from hoplite import Client

KINDS = [name for name in element_sizes() if not name.startswith("b") or name in ("bfloat16", "bool")]


def of_bytes(dtype: str, count: int) -> Any:
    """Elements with all kinds of bytes."""
    nbytes = count * element_sizes()[dtype]
    limit = 2 if dtype == "bool" else 256
    return (torch.arange(nbytes) % limit).to(torch.uint8).view(getattr(torch, dtype))


def both(source: Any, clients: list[Client], name: str = "w/1", **options: Any) -> Any:
    """Publishes on one node and fetches on another."""
    ht.publish(source, name, client=clients[0], timeout=SOON, **options)
    return ht.fetch(name, client=clients[1], timeout=SOON)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_every_dtype_arrives_bit_by_bit(clients: list[Client]) -> None:
    tensors = {dtype: of_bytes(dtype, 67) for dtype in KINDS}
    got = both(tensors, clients)
    same(got, tensors)
    into = {
        dtype: torch.zeros(67 * element_sizes()[dtype], dtype=torch.uint8).view(getattr(torch, dtype))
        for dtype in KINDS
    }
    ht.fetch("w/1", into=into, client=clients[2], timeout=SOON)
    same(into, tensors)


@pytest.mark.parametrize(("width", "bucket"), [(1, None), (3000, "64KiB"), (3000, 1 << 30)])
def test_every_shape_arrives_in_any_bucket(clients: list[Client], width: int, bucket: Any) -> None:
    whole = counting((7, width))
    tensors = {
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0, 5),
        "rows": whole,
        "view": whole[2:5, : width - 1],
        "transposed": whole.t(),
        "strided": whole[::2],
        "expanded": torch.ones(1, dtype=torch.int64).expand(width, 9),
        "conjugate": counting((width,), torch.complex64).conj(),
        "negative": counting((width, 2), torch.complex64).conj().imag,
        "reversed": whole.permute(1, 0)[:, ::3],
    }
    same(both(tensors, clients, bucket=bucket), tensors)
    into = {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in tensors.items()}
    # Not contiguous either.
    into["rows"] = torch.zeros(width, 7).t()
    into["view"] = torch.zeros(3, 2 * width)[:, : 2 * (width - 1) : 2]
    ht.fetch("w/", into=into, client=clients[2], timeout=SOON)
    same(into, tensors)


def test_a_module_receives_another(clients: list[Client]) -> None:
    trained, served = Model(7), Model(0)
    published = ht.publish(trained, "policy/17", client=clients[0])
    assert (str(published.ref), published.version) == ("policy/17", 17)
    weight = served.embedding.weight
    got = ht.fetch("policy/", into=served, client=clients[1], timeout=SOON)
    assert (got.version, got.name) == (17, "policy/17")
    assert served.values() == {7}
    assert served.embedding.weight is weight
    assert weight.requires_grad
    assert got.manifest.shapes == {name: tuple(tensor.shape) for name, tensor in trained.state_dict().items()}
    assert got.manifest.dtypes["half.weight"] == "bfloat16"


def test_tied_tensors_are_stored_once_and_come_back_tied(clients: list[Client]) -> None:
    model = Model(1, width=512)
    published = ht.publish(model, "tied/1", client=clients[0])
    separate = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    assert published.nbytes < separate - 512 * 512 * 4 + 64 * len(model.state_dict())
    got = ht.fetch("tied/", client=clients[1], timeout=SOON)
    assert got["head.weight"] is got["embedding.weight"]
    assert got["head.weight"] is not got["norm.weight"]


def test_a_view_sends_its_own_bytes(clients: list[Client]) -> None:
    whole = torch.zeros(1 << 22)
    published = ht.publish({"view": whole[:16]}, "view/1", client=clients[0])
    assert published.nbytes == 64
    # Two views of one range with other shapes are two tensors.
    same(
        both({"rows": whole[:6].view(2, 3), "flat": whole[:6]}, clients),
        {"rows": torch.zeros(2, 3), "flat": torch.zeros(6)},
    )


def test_pairs_are_read_once_and_in_order(clients: list[Client]) -> None:
    got = both(((f"layer{number}", torch.full((3,), number)) for number in (2, 0, 1)), clients)
    assert {name: tensor.tolist() for name, tensor in got.items()} == {
        "layer2": [2] * 3,
        "layer0": [0] * 3,
        "layer1": [1] * 3,
    }


def test_dtype_converts_floats_on_either_side(clients: list[Client]) -> None:
    tensors = {"float": counting((5, 5)), "whole": counting((5,), torch.int64), "big": counting((400, 400))}
    half = both(tensors, clients, dtype=torch.float16)
    assert {name: tensor.dtype for name, tensor in half.items()} == {
        "float": torch.float16,
        "whole": torch.int64,
        "big": torch.float16,
    }
    assert torch.equal(half["big"].float(), tensors["big"])
    again = ht.fetch("w/", client=clients[1], dtype="float64", timeout=SOON)
    assert torch.equal(again["big"], tensors["big"].double())
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    with pytest.raises(hoplite.ShapeMismatch, match=r"float is float16 .* but float32"):
        ht.fetch("w/", into=into, client=clients[1], timeout=SOON)
    ht.fetch("w/", into=into, dtype=torch.float32, client=clients[1], timeout=SOON)
    same(into, tensors)


def test_stage_leaves_the_module_until_the_switch(clients: list[Client]) -> None:
    module = Model(1, width=700)
    ht.publish(Model(2, width=700), "staged/5", client=clients[0], bucket="1MiB")
    staged = ht.fetch("staged/", into=module, stage=True, client=clients[1], timeout=SOON)
    assert (staged.version, module.values()) == (5, {1})
    # The data is in host memory: nobody needs its objects any more.
    clients[0].delete([row["ref"] for row in clients[0].directory()])
    assert staged.switch() > 0
    assert module.values() == {2}
    assert staged.weights is not None
    with pytest.raises(hoplite.InvalidArgument, match="staged/5 was switched to"):
        staged.switch()


def test_a_receiver_that_waits_gets_the_next_version(clients: list[Client]) -> None:
    async def receive(client: Client) -> list[int]:
        versions: list[int] = []
        module, got = Model(0), None
        while len(versions) < 3:
            got = await ht.fetch_async("loop/", into=module, after=got, client=client, timeout=SOON)
            assert module.values() == {got.version}
            versions.append(got.version)
            arrived.release()
        return versions

    async def publish() -> None:
        for version in (1, 2, 3):
            await asyncio.to_thread(ht.publish, Model(version), f"loop/{version}", client=clients[0])
            for _ in range(2):
                await arrived.acquire()

    async def main() -> list[list[int]]:
        receivers = asyncio.gather(*(receive(client) for client in clients[1:]))
        await publish()
        return await receivers

    arrived = asyncio.Semaphore(0)
    assert asyncio.run(main()) == [[1, 2, 3]] * 2


def test_retain_deletes_versions_with_all_their_objects(clients: list[Client]) -> None:
    for version in range(1, 6):
        ht.publish(Model(version, width=300), f"many/{version}", retain=2, client=clients[0], bucket="128KiB")
    rows = [row["ref"] for row in clients[0].directory()]
    assert [ref for ref in rows if not ref.startswith("@")] == [
        "many/.announced/4",
        "many/.announced/5",
        "many/4",
        "many/5",
    ]
    manifests = [ht.fetch(f"many/{version}", client=clients[1], timeout=SOON).manifest for version in (4, 5)]
    assert {ref for ref in rows if ref.startswith("@")} == {ref for each in manifests for ref in each.refs()}
    with pytest.raises(hoplite.ObjectDeleted, match="many/3"):
        ht.fetch("many/3", client=clients[1], timeout=SOON)


def test_retain_deletes_the_data_of_versions_that_an_owner_still_lists(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lagging(self: Client, prefix: str, **options: Any) -> list[Any]:
        seen.update((row["ref"], row) for row in exact(self, prefix, **options))
        return list(seen.values())

    seen: dict[str, Any] = {}
    exact = hoplite.Client.directory
    with monkeypatch.context() as patched:
        patched.setattr(hoplite.Client, "directory", lagging)
        for version in range(1, 6):
            ht.publish(Model(version), f"late/{version}", retain=2, client=clients[0])
        announced = ["late/.announced/4", "late/.announced/5"]
        eventually(lambda: [row["ref"] for row in exact(clients[0], "late/.announced/")] == announced)
        # A version that another program deletes takes no place of those that the put retains.
        clients[0].delete("late/5")
        ht.publish(Model(6), "late/6", retain=2, client=clients[0])
    assert ht.fetch("late/4", into=Model(0), client=clients[1], timeout=SOON).version == 4


def test_retain_of_none_deletes_nothing(clients: list[Client]) -> None:
    for version in range(1, 5):
        ht.publish({"w": torch.full((3,), version)}, f"all/{version}", retain=None, client=clients[0])
    for version in range(1, 5):
        assert ht.fetch(f"all/{version}", client=clients[1], timeout=SOON)["w"].tolist() == [version] * 3


def test_fetch_works_in_a_running_loop(clients: list[Client]) -> None:
    async def main() -> Any:
        return ht.fetch("in/loop/1", client=clients[1], timeout=SOON)

    ht.publish({"w": torch.ones(2)}, "in/loop/1", client=clients[0])
    assert asyncio.run(main())["w"].tolist() == [1, 1]


def test_the_shared_client_is_the_default(node: hoplite.Node) -> None:
    hoplite.init(node=node)
    try:
        ht.publish({"w": torch.ones(2)}, "shared/1")
        assert ht.fetch("shared/", timeout=SOON)["w"].tolist() == [1, 1]
    finally:
        hoplite.shutdown()


@pytest.mark.parametrize("name", ["publishing", "fetching", "deleting"])
def test_the_examples_print_the_shown_output(node: hoplite.Node, name: str) -> None:
    hoplite.init(node=node)
    try:
        found = doctest.testmod(importlib.import_module(f"hoplite.torch.weights.{name}"))
    finally:
        hoplite.shutdown()
    assert (found.failed, found.attempted > 2) == (0, True)


def test_more_than_the_store_of_a_receiver_arrives(tmp_path: Any) -> None:
    with (
        hoplite.Node(listen="127.0.0.1:0", capacity="256MiB", socket=tmp_path / "big.sock", cluster="default") as big,
        hoplite.Node(
            join=[big.address],
            listen="127.0.0.1:0",
            capacity="40MiB",
            socket=tmp_path / "small.sock",
            cluster="default",
        ) as small,
    ):
        tensors = {"w": counting((20 << 20,), torch.int32)}
        ht.publish(tensors, "large/1", client=big.client())
        into = {"w": torch.zeros(20 << 20, dtype=torch.int32)}
        ht.fetch("large/", into=into, client=small.client(), timeout=SOON)
        same(into, tensors)
        with pytest.raises(hoplite.StoreFull, match="large/1 needs 83886080 bytes of the store until the switch"):
            ht.fetch("large/", into=into, stage=True, client=small.client())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_of_a_gpu_arrive_on_a_gpu(clients: list[Client]) -> None:
    model, module = Model(3, width=2000).cuda(), Model(0, width=2000).cuda()
    ht.publish(model, "gpu/1", client=clients[0])
    ht.fetch("gpu/", into=module, client=clients[1], timeout=SOON)
    assert module.values() == {3}
    ht.publish(Model(4, width=2000).cuda(), "gpu/2", client=clients[0])
    staged = ht.fetch("gpu/", into=module, stage=True, client=clients[1], timeout=SOON)
    assert module.values() == {3}
    staged.switch()
    assert module.values() == {4}
    assert as_bytes(ht.fetch("gpu/", client=clients[2], timeout=SOON)["head.weight"]).device.type == "cpu"


def test_a_missing_torch_names_the_extra() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\ntry: import hoplite.torch\nexcept ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SOON, check=True)
    assert "pip install 'numpy>=1.24' 'torch>=1.13'" in done.stdout


def test_an_old_torch_names_the_version() -> None:
    script = (
        "import sys, types; old = types.ModuleType('torch'); old.__version__ = '1.9.1'; sys.modules['torch'] = old\n"
        "try: import hoplite.torch\nexcept ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SOON, check=True)
    assert "needs torch 1.13 or later, and 1.9.1 is installed" in done.stdout
