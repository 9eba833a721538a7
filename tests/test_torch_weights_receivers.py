"""Weights by name in the tensors of a receiver: which are refused, and what a call that ended has left."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

pytestmark = pytest.mark.torch

torch: Any = pytest.importorskip("torch", reason="needs PyTorch")

import hoplite  # noqa: E402 - torch must be there
import hoplite.torch as ht  # noqa: E402
from hoplite.torch import checkpoint  # noqa: E402
from hoplite.torch.weights import placing  # noqa: E402
from hoplite.torch.weights.placing import Placement  # noqa: E402
from torch_weights import SOON, Model, counting, recorded, same  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hoplite import Client

MIX = "the tensors are a mix of versions"


def outs_like(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in tensors.items()}


def same_tensor() -> dict[str, Any]:
    one = torch.zeros(4, 6)
    return {"a": one, "b": one}


def fused_and_its_view() -> dict[str, Any]:
    fused = torch.zeros(12, 6)
    return {"a": fused[2:6], "b": fused[5:9]}


def columns_that_meet() -> dict[str, Any]:
    fused = torch.zeros(4, 11)
    return {"a": fused[:, :6], "b": fused[:, 5:]}


def transposed() -> dict[str, Any]:
    one = torch.zeros(6, 6)
    return {"a": one[:4], "b": one.t()[:4]}


@pytest.mark.parametrize("stage", [False, True])
@pytest.mark.parametrize("outs", [same_tensor, fused_and_its_view, columns_that_meet, transposed])
def test_outs_that_share_memory_are_refused_by_name(
    clients: list[Client], outs: Callable[[], dict[str, Any]], stage: bool
) -> None:
    ht.publish({"a": torch.ones(4, 6), "b": torch.full((4, 6), 2.0)}, "apart/1", client=clients[0])
    into = outs()
    with pytest.raises(hoplite.InvalidArgument, match=r"a and b share memory in into, .* two tensors in apart/1"):
        ht.fetch("apart/", into=into, stage=stage, client=clients[1], timeout=SOON)
    assert not any(tensor.any() for tensor in into.values())


@pytest.mark.parametrize("kind", [lambda module: module, lambda module: module.state_dict()])
def test_a_tied_module_receives_one_of_two_copies_with_a_layout(client: Client, kind: Any) -> None:
    tensors = {name: torch.ones_like(tensor) for name, tensor in Model(0).state_dict().items()}
    tensors["head.weight"] = torch.full_like(tensors["head.weight"], 2)
    ht.publish(tensors, "policy/1", client=client)
    module = Model(0)
    into = kind(module)
    with pytest.raises(
        hoplite.InvalidArgument, match=r"for all names but head\.weight, which a mapping in into leaves"
    ):
        ht.fetch("policy/", into=into, client=client, timeout=SOON)
    layout = {name: ... for name in tensors if name != "head.weight"}
    if into is not module:
        del into["head.weight"]
    got = ht.fetch("policy/", into=into, layout=layout, client=client, timeout=SOON)
    assert list(got) == list(layout)
    assert module.values() == {1}
    with pytest.raises(hoplite.InvalidArgument, match=r"1 unknown, such as 'haed\.weight'"):
        ht.fetch("policy/", into=into, layout={**layout, "haed.weight": ...}, client=client, timeout=SOON)


def test_a_fused_parameter_and_its_view_are_refused_by_name(clients: list[Client]) -> None:
    ht.publish({"qkv": torch.ones(6, 4), "q": torch.full((2, 4), 2.0)}, "fused/1", client=clients[0])
    qkv = torch.zeros(6, 4)
    with pytest.raises(hoplite.InvalidArgument, match="share memory in into"):
        ht.fetch("fused/", into={"qkv": qkv, "q": qkv[:2]}, client=clients[1], timeout=SOON)
    assert not qkv.any()
    ht.fetch("fused/", into={"qkv": qkv}, layout={"qkv": ...}, client=clients[1], timeout=SOON)
    assert qkv.all()


def test_tied_tensors_of_the_publication_may_be_one(clients: list[Client]) -> None:
    weight = counting((4, 6))
    ht.publish({"a": weight, "b": weight}, "tied/1", client=clients[0])
    into = same_tensor()
    ht.fetch("tied/", into=into, client=clients[1], timeout=SOON)
    same(into, {"a": weight, "b": weight})
    # The same rows of both, but not other rows.
    rows = torch.zeros(2, 6)
    layout = {"a": slice(2), "b": slice(2)}
    ht.fetch("tied/", into={"a": rows, "b": rows}, layout=layout, client=clients[1], timeout=SOON)
    assert torch.equal(rows, weight[:2])
    with pytest.raises(hoplite.InvalidArgument, match="a and b share memory"):
        ht.fetch(
            "tied/", into={"a": rows, "b": rows}, layout={**layout, "b": slice(2, 4)}, client=clients[1], timeout=SOON
        )


def test_views_without_a_common_element_are_no_shared_memory(clients: list[Client]) -> None:
    tensors = {"a": counting((8, 5)), "b": counting((8, 5), first=40), "c": counting((8, 5), first=80)}
    ht.publish(tensors, "columns/1", client=clients[0])
    columns, rows, steps = torch.zeros(8, 15), torch.zeros(24, 5), torch.zeros(8, 5, 3)
    for into in (
        {"a": columns[:, :5], "b": columns[:, 5:10], "c": columns[:, 10:]},
        {"a": rows[:8], "b": rows[8:16], "c": rows[16:]},
        {"a": steps[..., 0], "b": steps[..., 1], "c": steps[..., 2]},
    ):
        ht.fetch("columns/", into=into, client=clients[1], timeout=SOON)
        same(into, tensors)


def test_outs_that_cannot_be_written_are_refused_before_the_first_byte(clients: list[Client]) -> None:
    ht.publish({"first": torch.ones(4), "w": torch.ones(3, 4)}, "policy/1", client=clients[0])
    first = torch.zeros(4)
    for wrong in (torch.zeros(1, 4).expand(3, 4), torch.zeros(6).as_strided((3, 4), (1, 1))):
        with pytest.raises(hoplite.InvalidArgument, match="w has elements that share memory"):
            ht.fetch("policy/", into={"first": first, "w": wrong}, client=clients[1], timeout=SOON)
    lazy = torch.nn.LazyLinear(3)
    with pytest.raises(hoplite.UnsupportedDtype, match="weight is a UninitializedParameter without a shape"):
        ht.fetch("policy/", into=[("first", first), *lazy.named_parameters()], client=clients[1], timeout=SOON)
    assert not first.any()


def test_an_error_of_torch_midway_is_one_of_hoplite_and_states_the_mix(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    ht.publish({"w": torch.ones(1 << 18)}, "policy/1", bucket="256KiB", client=clients[0])
    take, calls = Placement._take, []

    def fail(*args: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of streams")
        take(*args)

    monkeypatch.setattr(Placement, "_take", fail)
    with pytest.raises(hoplite.HopliteError, match=f"RuntimeError: out of streams.*; {MIX}"):
        ht.fetch("policy/", into={"w": torch.zeros(1 << 18)}, client=clients[1], timeout=SOON)


def published_thrice(client: Client, into: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Fetches version 1, stages version 2, and publishes version 3; returns the first two and tensors of the last."""
    tensors = {"a": torch.zeros(1 << 18), "b": torch.zeros(1 << 18)}
    ht.publish(tensors, "policy/1", client=client)
    got = ht.fetch("policy/", into=into, client=client, timeout=SOON)
    tensors["a"][3] = 2
    ht.publish(tensors, "policy/2", base="policy/1", client=client)
    staged = ht.fetch("policy/", into=into, stage=True, after=got, client=client, timeout=SOON)
    tensors["a"][3] = tensors["b"][5] = 3
    ht.publish(tensors, "policy/3", base="policy/2", retain=3, client=client)
    return got, staged, tensors


@pytest.mark.parametrize("is_after", [False, True])
def test_a_staged_change_of_a_version_that_was_replaced_is_refused(client: Client, is_after: bool) -> None:
    into = {name: torch.ones(1 << 18) for name in "ab"}
    got, staged, tensors = published_thrice(client, into)
    got = ht.fetch("policy/", into=into, after=got if is_after else None, client=client, timeout=SOON)
    with pytest.raises(hoplite.InvalidArgument, match="policy/2 was staged as what changed since policy/1"):
        staged.switch()
    same(into, tensors)
    tensors["b"][6] = 4
    ht.publish(tensors, "policy/4", base="policy/3", client=client)
    got = ht.fetch("policy/", into=into, after=got, client=client, timeout=SOON)
    same(into, tensors)
    staged.discard()


@pytest.mark.parametrize("part", [slice(None), slice(100, 200)])
def test_a_switch_counts_as_a_change_of_what_was_fetched_into_its_memory(client: Client, part: slice) -> None:
    into = {name: torch.ones(1 << 18) for name in "ab"}
    got, _, tensors = published_thrice(client, into)
    other = {name: torch.full((1 << 18,), 9.0)[part] for name in "ab"}
    ht.publish(other, "other/1", client=client)
    staged = ht.fetch("other/", into={n: t[part] for n, t in into.items()}, stage=True, client=client, timeout=SOON)
    got = ht.fetch("policy/", into=into, after=got, client=client, timeout=SOON)
    staged.switch()
    assert into["b"][150] == 9
    tensors["b"][-1] = 4
    ht.publish(tensors, "policy/4", base="policy/3", client=client)
    got = ht.fetch("policy/", into=into, after=got, client=client, timeout=SOON)
    same(into, tensors)


def test_tensors_next_to_each_other_do_not_change_each_other(client: Client) -> None:
    flat = torch.ones(3, 1 << 18)
    got, staged, tensors = published_thrice(client, {"a": flat[0], "b": flat[2]})
    ht.publish({"c": torch.full((1 << 18,), 7.0)}, "other/1", client=client)
    ht.fetch("other/", into={"c": flat[1]}, client=client, timeout=SOON)
    staged.switch()
    assert (flat[0, 3], flat[2, 5], flat[1, 0]) == (2, 0, 7)
    assert staged.weights is not None
    got = ht.fetch("policy/", into={"a": flat[0], "b": flat[2]}, after=staged.weights, client=client, timeout=SOON)
    same(got, tensors)


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_parameter_with_other_memory_is_brought_whole(
    client: Client, monkeypatch: pytest.MonkeyPatch, is_waiting: bool
) -> None:
    into = {name: torch.nn.Parameter(torch.ones(1 << 18)) for name in "ab"}
    tensors = published_thrice(client, into)[2]
    got = ht.fetch("policy/", into=into, client=client, timeout=SOON)

    async def fetched() -> Any:
        fetching = ht.fetch_async("policy/", into=into, after=got, client=client, timeout=SOON)
        waiting = asyncio.create_task(fetching) if is_waiting else fetching
        await asyncio.sleep(0)
        into["a"].data = torch.full((1 << 18,), 9.0)
        tensors["b"][-1] = 4
        await asyncio.to_thread(ht.publish, tensors, "policy/4", base="policy/3", client=client)
        return await waiting

    got = asyncio.run(fetched())
    same(into, tensors)
    # What the new memory has is known now.
    tensors["b"][-2] = 5
    ht.publish(tensors, "policy/5", base="policy/4", client=client)
    with recorded(monkeypatch) as sizes:
        ht.fetch("policy/", into=into, after=got, client=client, timeout=SOON)
    assert sum(sizes) < 1 << 12
    same(into, tensors)


def test_a_staged_change_whose_switch_failed_is_refused_after_another_fetch(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = {name: torch.ones(1 << 18) for name in "ab"}
    got, staged, tensors = published_thrice(client, into)
    with monkeypatch.context() as patched:
        patched.setattr(placing, "copy_all", lambda *_, **__: torch.ones(2) @ torch.ones(3))
        with pytest.raises(hoplite.HopliteError):
            staged.switch()
    ht.fetch("policy/", into=into, after=got, client=client, timeout=SOON)
    with pytest.raises(hoplite.InvalidArgument, match="was staged as what changed since policy/1"):
        staged.switch()
    same(into, tensors)


def test_a_switch_that_failed_can_be_called_again(clients: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    ht.publish({"w": torch.ones(1 << 10)}, "policy/1", client=clients[0])
    into = {"w": torch.zeros(1 << 10)}
    staged = ht.fetch("policy/", into=into, stage=True, client=clients[1], timeout=SOON)
    with monkeypatch.context() as patch:
        patch.setattr(Placement, "_copy", lambda *_, **__: torch.ones(2) @ torch.ones(3))
        with pytest.raises(hoplite.HopliteError, match=f"{MIX}: call switch again"):
            staged.switch()
    staged.switch()
    assert into["w"].all()


@contextlib.contextmanager
def default_dtype(dtype: Any) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES: dict[str, Callable[[], Any]] = {
    "meta": lambda: torch.device("meta"),
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "double": lambda: default_dtype(torch.float64),
}


@pytest.mark.parametrize("in_loop", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_modes_of_the_caller_change_nothing(clients: list[Client], mode: str, in_loop: bool) -> None:
    tensors = {"large": counting((70_000,)), "rows": counting((60, 70)), "half": counting((5,), torch.bfloat16)}
    ht.publish(tensors, "policy/1", bucket="4KiB", client=clients[0])

    def fetch(**options: Any) -> Any:
        if in_loop:
            return asyncio.run(ht.fetch_async("policy/", client=clients[1], timeout=SOON, **options))
        return ht.fetch("policy/", client=clients[1], timeout=SOON, **options)

    with MODES[mode]():
        new = fetch()
    same(new, tensors)
    assert not any(tensor.is_inference() for tensor in new.values())
    for stage in (False, True):
        # Not in the order of the bytes: it is copied when all of its pieces are here.
        into = {**outs_like(tensors), "rows": torch.zeros(70, 60).t()}
        into["half"].requires_grad_()
        with MODES[mode]():
            got = fetch(into=into, stage=stage)
            if stage:
                got.switch()
        same(into, tensors)
        into["rows"].add_(1)


@pytest.mark.parametrize("in_loop", [False, True])
def test_inference_tensors_are_filled(clients: list[Client], in_loop: bool) -> None:
    tensors = {"large": counting((70_000,)), "small": counting((5,))}
    ht.publish(tensors, "policy/1", client=clients[0])
    with torch.inference_mode():
        into = outs_like(tensors)
    if in_loop:
        asyncio.run(ht.fetch_async("policy/", into=into, client=clients[1], timeout=SOON))
    else:
        ht.fetch("policy/", into=into, client=clients[1], timeout=SOON)
    same(into, tensors)


class Held:
    """Copies that wait, from the second one on.

    Attributes:
        begun: set when one waits.
        go_on: ends the wait.
        ended: the number of copies that have ended.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.ended = 0
        take = Placement._take

        def held(*args: Any) -> None:
            if self.ended:
                self.begun.set()
                assert self.go_on.wait(SOON)
            take(*args)
            self.ended += 1

        monkeypatch.setattr(Placement, "_take", held)


def test_a_canceled_fetch_has_ended_its_copies_when_it_raises(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    ht.publish({"w": torch.ones(1 << 18)}, "policy/1", bucket="256KiB", client=clients[0])
    into, held = {"w": torch.zeros(1 << 18)}, Held(monkeypatch)

    async def main() -> None:
        fetching = asyncio.ensure_future(ht.fetch_async("policy/", into=into, client=clients[1], timeout=SOON))
        await asyncio.to_thread(held.begun.wait, SOON)
        for _ in range(3):
            fetching.cancel()
            await asyncio.sleep(0)
        assert not fetching.done()
        held.go_on.set()
        with pytest.raises(asyncio.CancelledError) as canceled:
            await fetching
        assert held.ended == 2
        assert MIX in canceled.value.__notes__[0]

    asyncio.run(main())
    assert int(into["w"].sum()) == 2 << 16


@pytest.mark.parametrize("in_loop", [False, True])
def test_an_interrupted_fetch_has_ended_its_copies_when_it_raises(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch, in_loop: bool
) -> None:
    """In a running loop, as in a notebook, which does not handle the signal as `asyncio.run` does."""
    ht.publish({"w": torch.ones(1 << 18)}, "policy/1", bucket="256KiB", client=clients[0])
    into, held = {"w": torch.zeros(1 << 18)}, Held(monkeypatch)
    never = threading.Event()

    def interrupt() -> None:
        assert held.begun.wait(SOON)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        # A fetch that does not wait for the copy raises within this time.
        never.wait(0.2)
        held.go_on.set()

    async def main() -> None:
        ht.fetch("policy/", into=into, client=clients[1], timeout=SOON)

    def run() -> None:
        if not in_loop:
            ht.fetch("policy/", into=into, client=clients[1], timeout=SOON)
            return
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            loop.run_until_complete(main())

    with ThreadPoolExecutor(1) as pool:
        interrupting = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt) as raised:
            run()
        assert held.go_on.is_set()
        interrupting.result()
    assert held.ended == 2
    assert int(into["w"].sum()) == 2 << 16
    assert MIX in raised.value.__notes__[0]


def test_a_fetch_needs_no_thread_of_the_executor_of_the_loop(clients: list[Client]) -> None:
    ht.publish({"w": torch.ones(1 << 10)}, "policy/1", client=clients[0])
    go_on = threading.Event()

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1)
        loop.set_default_executor(executor)
        full = loop.run_in_executor(None, go_on.wait, SOON)
        try:
            async with asyncio.timeout(SOON / 2):
                return await ht.fetch_async("policy/", client=clients[1], timeout=SOON / 2)
        finally:
            go_on.set()
            await full

    assert asyncio.run(main())["w"].all()


def test_calls_without_a_timeout_take_that_of_their_client(node: hoplite.Node) -> None:
    with hoplite.connect(node.socket or "", default_timeout=0.2) as client:
        calls: list[Callable[[], Any]] = [
            lambda: ht.fetch("late/", client=client),
            lambda: asyncio.run(ht.fetch_async("late/", client=client)),
            # It waits for the other rank.
            lambda: ht.publish({"w": torch.ones(3)}, "late/1", shards=(0, 2), client=client),
            lambda: checkpoint.HopliteReader("late/", client=client).read_metadata(),
        ]
        for call in calls:
            with pytest.raises(hoplite.Timeout):
                call()
