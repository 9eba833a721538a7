"""A program for tests of weights that ranks share: runs steps, each with ranks of its own, as `checkpoint_ranks`.

Its argument is a list of steps in JSON: an action, the sockets of the nodes of its ranks, and the axes of their mesh.
All ranks make the same model from the same seed, so each can compute what a version is.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, zeros
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import hoplite
import hoplite.torch as ht
from checkpoint_ranks import run_steps
from torch_weights import SOON

VERSIONS = (1, 2, 3)


class Layer(torch.nn.Module):  # type: ignore[misc]
    """Sizes that two ranks share evenly; the norm has a buffer that no rank shards."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width)
        self.norm = torch.nn.BatchNorm1d(width)


def model(version: int, width: int = 192) -> Any:
    """The model of a version: each changes a few elements."""
    torch.manual_seed(5)
    found = torch.nn.Sequential(Layer(width), Layer(width), torch.nn.Linear(width, 7 * width + 3))
    for number in range(2, version + 1):
        with torch.no_grad():
            for tensor in found.parameters():
                tensor.view(-1)[number::997] += number
    return found


def sharded(version: int, mesh: Any, kind: str) -> Any:
    """The same, sharded by FSDP2, also over replicas or with tensor parallelism."""
    found = model(version)
    if kind == "tp":
        for layer in found[:2]:
            parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    data = mesh["data"] if kind == "tp" else mesh
    for layer in found:
        fully_shard(layer, mesh=data)
    return fully_shard(found, mesh=data)


def check(tensor: Any, whole: Any, name: str) -> None:
    """Checks what this rank has of a tensor."""
    found = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    assert torch.equal(found, whole), name


def publish(mesh: Any, client: hoplite.Client, kind: str) -> None:
    """Publishes versions, the later ones with a base."""
    for version in VERSIONS:
        base = None if version == 1 else f"run/{version - 1}"
        source = sharded(version, mesh, kind)
        ht.publish(source, f"run/{version}", base=base, retain=None, client=client, timeout=SOON)


def receive(mesh: Any, client: hoplite.Client, kind: str) -> None:
    """Brings two versions into a module that is sharded in another way, the second as what changed."""
    into = sharded(1, mesh, kind)
    for tensor in into.state_dict().values():
        tensor.zero_()
    got = ht.fetch("run/2", into=into, client=client, timeout=SOON)
    manifest = got.manifest
    for version in (2, 3):
        for name, whole in model(version).state_dict().items():
            check(into.state_dict()[name], whole, name)
        if version == 2:
            # All ranks agree on the version by its name, and bring what changed nevertheless.
            staged = ht.fetch("run/3", into=into, after=got, stage=True, client=client, timeout=SOON)
            assert staged.nbytes < manifest.nbytes / 10
            staged.switch()


def _without_node() -> hoplite.Client:
    raise hoplite.HopliteError("no node on this host")


def odd(mesh: Any, client: hoplite.Client, _: str) -> None:
    """Tensors that ranks share unevenly, that some ranks do not have, and that differ by rank."""
    rank, count = dist.get_rank(), dist.get_world_size()
    rows, cube = torch.arange(35).view(7, 5), torch.arange(1, 8 * 9 * 10 + 1).view(8, 9, 10)
    tensors = {
        "rows": distribute_tensor(rows, mesh, [Shard(0)] * mesh.ndim),
        "last": distribute_tensor(cube, mesh, [Shard(-1), Replicate()][: mesh.ndim]),
        "one": distribute_tensor(rows[:1].clone(), mesh, [Shard(0), Replicate()][: mesh.ndim]),
        "empty": distribute_tensor(torch.zeros(0, 3), mesh, [Shard(0)] * mesh.ndim),
        "scalar": distribute_tensor(torch.tensor(3.0), mesh, [Replicate()] * mesh.ndim),
        "plain": torch.full((50_000,), 7.0),
        f"expert.{rank}": torch.full((3,), float(rank)),
    }
    published = ht.publish(tensors, "odd/1", client=client, timeout=SOON)
    nbytes = torch.tensor([published.nbytes])
    dist.all_reduce(nbytes)
    # Each element once, and some alignment.
    assert nbytes.item() < 4 * 50_000 + rows.nbytes + cube.nbytes + 10_000
    whole = {
        "empty": torch.zeros(0, 3),
        "rows": rows,
        "last": cube,
        "one": rows[:1],
        "scalar": torch.tensor(3.0),
        "plain": torch.full((50_000,), 7.0),
    }
    got = ht.fetch("odd/1", client=client, timeout=SOON)
    assert set(got) == {*whole, *(f"expert.{other}" for other in range(count))}
    for name, tensor in whole.items():
        check(got[name], tensor, name)
    for other in range(count):
        assert got[f"expert.{other}"].tolist() == [other] * 3
    # Receivers that cut what the ranks share across.
    layouts: list[dict[str, Any]] = [
        {"rows": (slice(None), slice(0, 2))},
        {"rows": (slice(None), slice(2, 5)), "last": slice(3)},
    ]
    ht.publish(tensors, "cut/1", layouts=layouts, bucket=256, client=client, timeout=SOON)
    for layout in (dict.fromkeys(got, ...), *layouts):
        cut = ht.fetch("cut/1", layout=layout, client=client, timeout=SOON)
        for name in layout.keys() & whole.keys():
            assert torch.equal(cut[name], whole[name][layout[name]]), name
    columns = zeros(7, 5, dtype=torch.int64, device_mesh=mesh, placements=[Shard(1)] * mesh.ndim)
    into = {"rows": columns, "plain": torch.zeros(50_000)}
    ht.fetch("odd/1", into=into, layout={"plain": ..., "rows": ...}, client=client, timeout=SOON)
    check(into["rows"], rows, "rows")
    assert into["plain"].tolist() == [7] * 50_000
    partial = DTensor.from_local(torch.ones(4), mesh, [Partial(), *[Replicate()] * (mesh.ndim - 1)])
    with pytest.raises(hoplite.InvalidArgument, match="w is a DTensor of partial sums"):
        ht.publish({"w": partial}, "odd/2", client=client, timeout=SOON)
    # A failure of one rank is that of all, at once.
    broken = {"rows": tensors["rows"], **({"w": [1.0]} if rank == 1 else {})}
    with pytest.raises(hoplite.HopliteError, match="w is a list, not a tensor") as raised:
        ht.publish(broken, "odd/2", client=client, timeout=SOON)
    assert rank == 1 or str(raised.value).startswith("rank 1 can't publish its part of odd/2: ")
    # Nor is a rank waited for that has no node.
    mine = None if rank == 1 else client
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hoplite, "client", _without_node)
        with pytest.raises(hoplite.HopliteError, match="no node on this host"):
            ht.publish({"rows": tensors["rows"]}, "odd/2", client=mine, timeout=SOON)
    with pytest.raises(hoplite.InvalidArgument, match=r"rank [01] publishes odd/[23], and rank"):
        ht.publish({"rows": tensors["rows"]}, f"odd/{2 + (rank == 0)}", client=client, timeout=SOON)
    # Without DTensors, a group says that its ranks publish together.
    stage = {f"stage.{rank}": torch.full((4,), float(rank)), "plain": tensors["plain"]}
    ht.publish(stage, "odd/2", group=dist.group.WORLD, client=client, timeout=SOON)
    assert len(ht.fetch("odd/2", client=client, timeout=SOON)) == count + 1
    with pytest.raises(hoplite.InvalidArgument, match="group works with a module or a mapping, and without shards"):
        ht.publish(stage, "odd/3", group=dist.group.WORLD, shards=(rank, count), client=client)
    with pytest.raises(hoplite.UnsupportedDtype, match="rows is a DTensor, whose elements are on several ranks"):
        ht.publish(tensors, "odd/3", shards=(rank, count), client=client, timeout=SOON)
    # Not to be taken for a part of a larger tensor.
    small = {"rows": zeros(4, 5, dtype=torch.int64, device_mesh=mesh, placements=[Shard(0)] * mesh.ndim)}
    with pytest.raises(hoplite.ShapeMismatch, match=r"rows is \[7, 5\] in odd/1, but its DTensor in into is a part of"):
        ht.fetch("odd/1", into=small, layout={"rows": ...}, client=client, timeout=SOON)
    # Of one name, and no parts of one tensor: no version comes of it.
    with pytest.raises((ht.ManifestInvalid, hoplite.ObjectLost), match=r"w is float32|rank 0 gave up odd/3"):
        ht.publish({"w": torch.ones(3 + rank)}, "odd/3", group=dist.group.WORLD, client=client, timeout=SOON)
    with pytest.raises(hoplite.InvalidArgument, match="group=workers is no process group"):
        ht.publish({"w": torch.ones(3)}, "odd/3", group="workers", client=client, timeout=SOON)
    with pytest.raises(hoplite.InvalidArgument, match="rows is a DTensor, whose slices are known"):
        ht.fetch("odd/1", into=into, layout={"rows": slice(1), "plain": ...}, client=client, timeout=SOON)


ACTIONS = {"publish": publish, "receive": receive, "odd": odd}


def run(rank: int, step: int, action: str, sockets: list[str], axes: dict[str, int]) -> None:
    """Runs one rank of one step. Its group meets in a file of the current directory."""
    rendezvous = f"file://{os.getcwd()}/{step}"  # noqa: PTH109 - a URL
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=len(sockets))
    client = hoplite.connect(f"unix:{sockets[rank]}")
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    ACTIONS[action](mesh, client, "tp" if "tp" in axes else "fsdp")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Runs the steps; ends with an error if a rank fails."""
    run_steps(run, json.loads(sys.argv[1]))


if __name__ == "__main__":
    main()
