"""Loaders of models: what they read of each tensor, and loading from the parts alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", minversion="2.1")

import hoplite.torch as ht  # noqa: E402
from hoplite import HopliteError, InvalidArgument  # noqa: E402
from torch_weights import SOON  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    import hoplite

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

WHOLE = {
    "qkv": torch.arange(12 * 8, dtype=torch.float32).view(12, 8),
    "up": torch.arange(8 * 6, dtype=torch.float32).view(8, 6) + 1000,
    "down": torch.arange(6 * 8, dtype=torch.float32).view(6, 8) + 2000,
    "experts": torch.arange(4 * 3 * 5, dtype=torch.float32).view(4, 3, 5) + 3000,
    "norm": torch.arange(8, dtype=torch.bfloat16),
    "scale": torch.tensor(7.0),
    "unused": torch.ones(100),
}


class Model:
    """Rank 1 of 2: rows, columns, a fused matrix, two experts of four, and tensors that are turned or converted."""

    def __init__(self) -> None:
        self.fused = torch.nn.Parameter(torch.zeros(10, 8))
        self.down = torch.nn.Parameter(torch.zeros(6, 4))
        self.experts = torch.nn.Parameter(torch.zeros(2, 5, 3), requires_grad=False)
        self.norm = torch.zeros(8)
        self.scale = torch.zeros(())

    def load_weights(self, pairs: Any) -> set[str]:
        loaded = set()
        with torch.no_grad():
            for name, tensor in pairs:
                if name == "qkv":
                    self.fused[:6].copy_(tensor.view(2, 6, 8)[1])
                elif name == "up":
                    self.fused.data[6:, :6] = tensor.chunk(2)[1]
                elif name == "down":
                    self.down.copy_(tensor.narrow(1, 4, 4))
                elif name == "experts":
                    for place, expert in enumerate((1, 2)):
                        self.experts[place].copy_(tensor[expert].t().contiguous())
                elif name == "norm":
                    self.norm.copy_(tensor.to(torch.float32))
                elif name == "scale":
                    self.scale.copy_(tensor)
                else:
                    continue
                loaded.add(name)
        return loaded

    def state(self) -> list[Any]:
        return [self.fused.data, self.down.data, self.experts, self.norm, self.scale]


def same(one: Model, other: Model) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state(), other.state(), strict=True))


def test_a_loader_is_recorded_and_loads_from_its_parts(node: hoplite.Node) -> None:
    expected = Model()
    expected.load_weights(WHOLE.items())
    with node.client() as client:
        ht.publish(WHOLE, "model/1", client=client)
        manifest = ht.fetch("model/1", layout={}, client=client, timeout=SOON).manifest
        model = Model()
        layout = ht.record(model.load_weights, manifest)
        assert same(model, Model())
        assert layout == {
            "qkv": (slice(6, 12), slice(0, 8)),
            "up": (slice(4, 8), slice(0, 6)),
            "down": (slice(0, 6), slice(4, 8)),
            "experts": (slice(1, 3), slice(0, 3), slice(0, 5)),
            "norm": (slice(0, 8),),
            "scale": (),
        }
        model.fused, model.scale = torch.nn.Parameter(model.fused.to("meta")), model.scale.to("meta")
        assert ht.record(model.load_weights, manifest) == layout
        # Also as what a publisher stores together.
        ht.publish(WHOLE, "model/2", layouts=[layout], client=client)
        for version in ("model/1", "model/2"):
            model = Model()
            got = ht.fetch(version, layout=layout, client=client, timeout=SOON)
            assert got.load(model.load_weights) == set(layout)
            assert same(model, expected)
        # Whole tensors work, too.
        model = Model()
        ht.fetch("model/1", client=client, timeout=SOON).load(model.load_weights)
        assert same(model, expected)


READS: list[Callable[[Any], Any]] = [
    lambda w: w[2],
    lambda w: w[1:3, 2:4],
    lambda w: w.view(-1)[3:17],
    lambda w: w.view(-1)[7],
    lambda w: w.reshape(2, 2, 3, 5)[1, :, 1],
    lambda w: w.permute(2, 0, 1)[1:3],
    lambda w: w[::2, :, 1::2],
    lambda w: w.flatten(1).t()[4:9],
    lambda w: torch.cat([w[0], w[2]]),
    lambda w: w.double().sum(0),
    lambda w: w[:, 1].unsqueeze(0).expand(3, 4, 5),
    lambda w: w.unbind(1)[2] + torch.ones(4, 5),
    lambda w: w.split([1, 3])[1].transpose(0, 2).reshape(5, 9)[2:],
    lambda w: w.to(torch.bfloat16, copy=True)[3],
    lambda w: w.as_strided((3, 5), (20, 1), 2),
]


@pytest.mark.parametrize("place", range(len(READS)))
def test_any_operation_reads_what_is_here(node: hoplite.Node, place: int) -> None:
    whole = torch.randn(4, 3, 5)
    expected = READS[place](whole)

    def load(pairs: Any) -> Any:
        ((_, tensor),) = pairs
        out = torch.full_like(expected, -1.0, device="cpu")
        out.copy_(READS[place](tensor))
        return out

    with node.client() as client:
        ht.publish({"w": whole}, "read/1", client=client)
        manifest = ht.fetch("read/1", layout={}, client=client, timeout=SOON).manifest
        layout = ht.record(load, manifest)
        got = ht.fetch("read/1", layout=layout, client=client, timeout=SOON)
        assert torch.equal(got.load(load), expected)


def published(client: Any, tensors: dict[str, Any]) -> Any:
    ht.publish(tensors, "odd/1", client=client)
    return ht.fetch("odd/1", layout={}, client=client, timeout=SOON).manifest


def test_views_of_other_dtypes_and_turned_in_place(node: hoplite.Node) -> None:
    whole = {"bits": torch.randn(4, 4), "turned": torch.randn(4, 4), "bytes": torch.randn(3).to(torch.float8_e4m3fn)}
    outs = [torch.zeros(2, 4, dtype=torch.int32), torch.zeros(4, 2), torch.zeros(3, dtype=torch.uint8)]

    def load(pairs: Any) -> None:
        given = dict(pairs)
        outs[0].copy_(given["bits"].view(torch.int32)[2:])
        outs[1].copy_(given["turned"].t_()[:, 1:3])
        torch._foreach_copy_([outs[2]], [given["bytes"].view(torch.uint8)])

    with node.client() as client:
        manifest = published(client, whole)
        layout = ht.record(load, manifest)
        assert layout["turned"] == (slice(1, 3), slice(0, 4))
        got = ht.fetch("odd/1", layout=layout, client=client, timeout=SOON)
        for inference in (False, True):
            with torch.inference_mode(inference):
                got.load(load)
        assert torch.equal(outs[0], whole["bits"].view(torch.int32)[2:])
        assert torch.equal(outs[1], whole["turned"].t()[:, 1:3])
        assert torch.equal(outs[2], whole["bytes"].view(torch.uint8))


def test_to_record_changes_nothing(node: hoplite.Node) -> None:
    table, other = torch.nn.Parameter(torch.ones(6, 4)), torch.full((4, 4), 5.0)

    def load(pairs: Any) -> None:
        ((_, tensor),) = pairs
        with torch.no_grad():
            table[:4].copy_(tensor)
            table[4:].fill_(0)
            made = torch.zeros(4, 4)
            made[:2] = tensor[2:]
            made[2:] = 3
            other.zero_()
            other.add_(made)
            other.copy_(made + other)

    with node.client() as client:
        manifest = published(client, {"w": torch.arange(16.0).view(4, 4)})
        layout = ht.record(load, manifest)
        assert layout == {"w": (slice(0, 4), slice(0, 4))}
        assert table.eq(1).all()
        assert other.eq(5).all()
        ht.fetch("odd/1", layout=layout, client=client, timeout=SOON).load(load)
        assert table[:4].flatten().tolist() == list(range(16))
        assert not table[4:].any()
        assert other[:2].flatten().tolist() == [2.0 * value for value in range(8, 16)]


def test_weights_stay_what_they_are(node: hoplite.Node) -> None:
    with node.client() as client:
        manifest = published(client, {"w": torch.ones(4), "empty": torch.ones(0, 4)})
        got = ht.fetch("odd/1", client=client, timeout=SOON)

        def scales(pairs: Any) -> None:
            dict(pairs)["w"].mul_(2)

        def halves(pairs: Any) -> None:
            torch.zeros(2, dtype=torch.float64).copy_(dict(pairs)["w"].view(torch.float64))

        def nothing(pairs: Any) -> None:
            assert set(dict(pairs)) == {"w", "empty"}

        for run, problem in (
            (scales, r"the loader changes w in place \(aten::mul_\): let it change a clone"),
            (halves, r"the loader reads w, torch.float32, as torch.float64, of another size"),
        ):
            for call in (ht.record, lambda load, _: got.load(load)):
                with pytest.raises(InvalidArgument, match=problem):
                    call(run, manifest)
        with pytest.raises(InvalidArgument, match="the loader reads none of 2 tensors, such as w, in this thread"):
            ht.record(nothing, manifest)
        got.load(nothing)
        assert got["w"].tolist() == [1] * 4
        part = ht.fetch("odd/1", layout={"empty": ...}, client=client, timeout=SOON)
        with pytest.raises(HopliteError, match=r"the loader reads \[0:4\] of w, and nothing is here"):
            part.load(lambda pairs: torch.zeros(4).copy_(dict(pairs)["w"]))
        into = {"w": torch.zeros(4), "empty": torch.zeros(0, 4)}
        first = ht.fetch("odd/1", into=into, client=client, timeout=SOON)
        ht.publish({"w": torch.zeros(4), "empty": torch.zeros(0, 4)}, "odd/2", client=client)
        ht.fetch("odd/2", into=into, client=client, timeout=SOON)
        with pytest.raises(HopliteError, match="the tensors of odd/1 were filled with another version since"):
            first.load(nothing)


def test_what_is_not_here_is_named(node: hoplite.Node) -> None:
    rank = 0

    def load(pairs: Any) -> None:
        for _, tensor in pairs:
            torch.empty(2).copy_(tensor[2 * rank : 2 * rank + 2])

    def looks(pairs: Any) -> None:
        for _, tensor in pairs:
            if tensor[0] == 3:
                torch.empty(4).copy_(tensor)

    def makes(pairs: Any) -> None:
        for _, tensor in pairs:
            torch.empty(2).copy_(tensor[[1, 3]])

    with node.client() as client:
        ht.publish({"w": torch.arange(4.0)}, "read/1", client=client)
        manifest = ht.fetch("read/1", layout={}, client=client, timeout=SOON).manifest
        got = ht.fetch("read/1", layout=ht.record(load, manifest), client=client, timeout=SOON)
        got.load(load)
        rank = 1
        with pytest.raises(HopliteError, match=r"reads \[2:4\] of w, and \[0:2\] is here: record the loader again"):
            got.load(load)
        with pytest.raises(
            InvalidArgument, match="the loader looks at values of tensors: fetch without a recorded layout"
        ):
            ht.record(looks, manifest)
        for run in (lambda: ht.record(makes, manifest), lambda: got.load(makes)):
            with pytest.raises(InvalidArgument, match="the loader makes a tensor on the device of the weights"):
                run()
