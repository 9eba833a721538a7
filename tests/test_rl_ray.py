"""Tensors of PyTorch on Ray: collective groups with the backend "hoplite", and the tensor transport between actors."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ray")

import ray  # noqa: E402 - after the check that Ray exists
import ray.util.collective  # noqa: E402
from ray.util.collective.types import ReduceOp  # noqa: E402

from rays import RAY_SOON, end, everywhere, members, on  # noqa: E402

pytestmark = [pytest.mark.rl, pytest.mark.timeout(180), pytest.mark.usefixtures("peaceful")]

SIZE = 100_000


def test_operations_of_a_group() -> None:
    def program(collective: Any, rank: int) -> dict[str, Any]:
        def tensor(value: float) -> Any:
            import torch

            return torch.full((SIZE,), float(value), dtype=torch.float32)

        results: dict[str, Any] = {}
        mine = tensor(rank + 1)
        collective.allreduce(mine, "three", ReduceOp.PRODUCT)
        results["allreduce"] = {float(each) for each in (mine[0], mine[SIZE - 1])}
        mine = tensor(rank)
        collective.broadcast(mine, 2, "three")
        results["broadcast"] = float(mine[0])
        mine = tensor(rank + 1)
        collective.reduce(mine, 1, "three", ReduceOp.MAX)
        results["reduce"] = float(mine[0])
        gathered = [tensor(0) for _ in range(3)]
        collective.allgather(gathered, tensor(rank), "three")
        results["allgather"] = [float(each[5]) for each in gathered]
        mine = tensor(0)
        collective.reducescatter(mine, [tensor(10 * rank + place) for place in range(3)], "three")
        results["reducescatter"] = float(mine[0])
        # Around a ring, twice, to check that the second of each pair is not confused with the first.
        for turn in range(2):
            collective.send(tensor(100 * turn + rank), (rank + 1) % 3, "three")
        got = []
        for _ in range(2):
            mine = tensor(0)
            collective.recv(mine, (rank - 1) % 3, "three")
            got.append(float(mine[0]))
        results["ring"] = got
        return results

    found = members(3)
    ray.util.collective.create_collective_group(found, 3, list(range(3)), backend="hoplite", group_name="three")
    for rank, results in enumerate(everywhere(found, program)):
        assert results == {
            "allreduce": {6.0},
            "broadcast": 2.0,
            "reduce": 3.0 if rank == 1 else rank + 1.0,
            "allgather": [0.0, 1.0, 2.0],
            "reducescatter": 30.0 + 3 * rank,
            "ring": [(rank - 1) % 3, 100.0 + (rank - 1) % 3],
        }
    end(found)
    ray.kill(ray.get_actor("info_three"))


def test_tensors_between_actors() -> None:
    @ray.remote
    class Source:
        @ray.method(tensor_transport="hoplite")
        def make(self) -> Any:
            import torch

            return {"weights": torch.arange(SIZE, dtype=torch.float32), "bias": torch.ones(3, dtype=torch.bfloat16)}

    @ray.remote
    class Sink:
        def take(self, value: Any) -> tuple[str, str, float]:
            # A private tensor, which can be written.
            value["weights"] += 1
            return type(value["weights"]).__name__, str(value["bias"].dtype), float(value["weights"][10])

    source, sink = Source.options(**on(1)).remote(), Sink.options(**on(2)).remote()
    ref = source.make.remote()
    for _ in range(2):
        assert ray.get(sink.take.remote(ref), timeout=RAY_SOON) == ("Tensor", "torch.bfloat16", 11.0)
    assert torch.equal(ray.get(ref)["weights"], torch.arange(SIZE, dtype=torch.float32))
    del ref
    for actor in (source, sink):
        ray.kill(actor)
