"""Weights by name when publishers are killed, versions are pruned under a reader, and nodes fail."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

pytestmark = pytest.mark.torch

torch: Any = pytest.importorskip("torch", reason="needs PyTorch")

import hoplite  # noqa: E402 - torch must be there
import hoplite.torch as ht  # noqa: E402
from hoplite import testing  # noqa: E402
from hoplite.torch.weights import transfer  # noqa: E402
from hoplite.torch.weights.choosing import Chooser  # noqa: E402
from hoplite.torch.weights.names import Deadline, Version  # noqa: E402
from hoplite.torch.weights.placing import Placement  # noqa: E402
from hoplite.torch.weights.sources import Sources, whole  # noqa: E402
from hoplite.torch.weights.writing import Writer  # noqa: E402
from torch_weights import SOON, Model, same  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite import Client, Node

# Publishes a version, and stops once some of its buckets are in the store.
STOPS_MIDWAY = """
import sys
import torch
import hoplite
import hoplite.torch as ht
from hoplite.torch.weights.sources import Sources, whole
socket, name, buckets = sys.argv[1:]
copy, left = Sources.copy, [int(buckets)]
def count(self, memory, first):
    if not left[0]:
        print("midway", flush=True)
        sys.stdin.read()
    left[0] -= 1
    copy(self, memory, first)
Sources.copy = count
ht.publish({"w": torch.full((1 << 20,), 2.0)}, name, client=hoplite.connect("unix:" + socket), bucket="256KiB")
"""


@contextlib.contextmanager
def process_midway(socket: str, name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has put 6 of the 16 buckets of a version."""
    command = [sys.executable, "-c", STOPS_MIDWAY, socket, name, "6"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "midway\n"
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def client_midway(socket: str, name: str) -> Iterator[Client]:
    """A client that has put 6 of the 16 buckets of a version. Closing it is what a node sees of a killed process."""
    with (
        ThreadPoolExecutor() as pool,
        pytest.MonkeyPatch.context() as patched,
        hoplite.connect(f"unix:{socket}") as client,
    ):
        write, buckets = Writer.write_object, itertools.count()
        is_midway, go = threading.Event(), threading.Event()

        def stopped(self: Writer, *args: Any, **options: Any) -> Any:
            if next(buckets) == 6:
                is_midway.set()
                assert go.wait(SOON)
                client.close()
            return write(self, *args, **options)

        patched.setattr(Writer, "write_object", stopped)
        publishing = pool.submit(ht.publish, weights(2), name, client=client, bucket="256KiB")
        assert is_midway.wait(SOON)
        try:
            yield client
        finally:
            go.set()
            assert isinstance(publishing.exception(SOON), hoplite.HopliteError)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released once for each fetch that has copied its first bytes."""
    semaphore, take = threading.Semaphore(0), Placement.take

    def taken(self: Placement, *args: Any, **options: Any) -> None:
        was_touched = self.is_touched
        take(self, *args, **options)
        if self.is_touched and not was_touched:
            semaphore.release()

    monkeypatch.setattr(Placement, "take", taken)
    return semaphore


def weights(value: float) -> dict[str, Any]:
    return {"w": torch.full((1 << 20,), float(value))}


@contextlib.contextmanager
def published_in_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Publications of this process wait before their second bucket: set when they do, and to be set to go on."""
    copy = Sources.copy
    waiting, go = threading.Event(), threading.Event()

    def stepped(self: Sources, memory: Any, first: int) -> None:
        if first:
            waiting.set()
            assert go.wait(SOON)
        copy(self, memory, first)

    with monkeypatch.context() as patched:
        patched.setattr(Sources, "copy", stepped)
        yield waiting, go


@pytest.mark.faults("a publisher ends midway")
def test_a_publisher_killed_midway_leaves_the_previous_version(nodes: list[Node], clients: list[Client]) -> None:
    ht.publish(weights(1), "policy/1", client=clients[1])
    into = weights(0)
    with ThreadPoolExecutor() as pool, process_midway(nodes[0].socket, "policy/2") as process:
        waiting = pool.submit(ht.fetch, "policy/", into=into, after=1, client=clients[1], timeout=SOON)
        any_version = weights(0)
        newest = pool.submit(ht.fetch, "policy/", into=any_version, client=clients[2], timeout=SOON)
        process.kill()
        assert newest.result(SOON).version == 1
        same(any_version, weights(1))
        # One that comes later gets it too, and copies it without a detour into its own tensors.
        assert ht.fetch("policy/", client=clients[0], timeout=SOON).version == 1
        ht.publish(weights(3), "policy/2", client=clients[2])
        assert waiting.result(SOON).version == 2
        same(into, weights(3))
    left = {row["ref"] for row in clients[0].directory() if row["ref"].startswith("@")}
    live = [ht.fetch(f"policy/{version}", client=clients[0], timeout=SOON).manifest for version in (1, 2)]
    assert left == {ref for each in live for ref in each.refs()}


@pytest.mark.faults("a publisher ends midway")
def test_a_version_that_failed_is_replaced_in_the_tensors_until_the_timeout(
    nodes: list[Node], clients: list[Client], begun: threading.Semaphore
) -> None:
    ht.publish(weights(1), "policy/1", client=clients[1])
    into = weights(0)
    with ThreadPoolExecutor() as pool, client_midway(nodes[0].socket, "policy/2") as publisher:
        waiting = pool.submit(ht.fetch, "policy/", into=into, after=1, client=clients[1], timeout=4)
        assert begun.acquire(timeout=SOON)
        publisher.close()
        with pytest.raises(
            hoplite.Timeout, match=r"above 1 was available within 4 s .* the tensors are those of policy/1 now"
        ):
            waiting.result(SOON)
    same(into, weights(1))


@pytest.mark.faults("a publisher ends midway")
def test_without_any_other_version_the_error_states_the_mix(
    nodes: list[Node], clients: list[Client], begun: threading.Semaphore
) -> None:
    into = weights(0)
    with ThreadPoolExecutor() as pool, client_midway(nodes[0].socket, "policy/2") as publisher:
        fetching = pool.submit(ht.fetch, "policy/", into=into, client=clients[1], timeout=SOON)
        assert begun.acquire(timeout=SOON)
        publisher.close()
        with pytest.raises(hoplite.ObjectLost, match="no other; the tensors are a mix of versions: fetch again"):
            fetching.result(SOON)
    assert into["w"].unique().tolist() == [0, 2]


@pytest.mark.faults("a publisher ends midway")
def test_a_killed_publisher_leaves_staged_and_new_tensors_alone(nodes: list[Node], clients: list[Client]) -> None:
    into = weights(0)
    with ThreadPoolExecutor() as pool, client_midway(nodes[0].socket, "policy/2") as publisher:
        staged = pool.submit(ht.fetch, "policy/", into=into, stage=True, client=clients[1], timeout=SOON)
        mapped = pool.submit(ht.fetch, "policy/", client=clients[2], timeout=SOON)
        publisher.close()
        ht.publish(weights(3), "policy/3", client=clients[0])
        same(mapped.result(SOON), weights(3))
        same(into, weights(0))
        assert staged.result(SOON).version == 3
        staged.result().switch()
    same(into, weights(3))


@pytest.mark.faults("a publisher ends midway")
def test_a_timeout_midway_states_the_mix(nodes: list[Node], clients: list[Client]) -> None:
    into = weights(0)
    with (
        client_midway(nodes[0].socket, "policy/2"),
        pytest.raises(hoplite.Timeout, match="the tensors are a mix of versions"),
    ):
        ht.fetch("policy/", into=into, client=clients[1], timeout=2)
    assert into["w"].unique().tolist() == [0, 2]


def test_a_late_receiver_joins_a_publication(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch, begun: threading.Semaphore
) -> None:
    with ThreadPoolExecutor() as pool, published_in_steps(monkeypatch) as (waiting, go):
        publishing = pool.submit(ht.publish, weights(1), "policy/1", client=clients[0], bucket="1MiB")
        assert waiting.wait(SOON)
        into = [weights(0), weights(0)]
        early = pool.submit(ht.fetch, "policy/", into=into[0], client=clients[1], timeout=SOON)
        assert begun.acquire(timeout=SOON)
        late = pool.submit(ht.fetch, "policy/", into=into[1], client=clients[2], timeout=SOON)
        assert begun.acquire(timeout=SOON)
        # Both have the first bucket, and the version does not exist.
        with pytest.raises(hoplite.Timeout):
            clients[2].get("policy/1", timeout=0)
        go.set()
        assert [each.result(SOON).version for each in (publishing, early, late)] == [1, 1, 1]
    for tensors in into:
        same(tensors, weights(1))


def pruning_reader(monkeypatch: pytest.MonkeyPatch, publish: Any) -> None:
    """Publishes once the first bytes of a fetch are in its tensors."""
    take, left = Placement.take, [publish]

    def taken(self: Placement, *args: Any, **options: Any) -> None:
        take(self, *args, **options)
        if left:
            left.pop()()

    monkeypatch.setattr(Placement, "take", taken)
    monkeypatch.setattr(transfer, "AHEAD_BYTES", 1)


def test_a_version_pruned_under_a_reader_is_replaced_by_the_newest(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    ht.publish(weights(1), "policy/1", client=clients[0], bucket="256KiB")
    pruning_reader(monkeypatch, lambda: ht.publish(weights(2), "policy/2", 1, client=clients[0]))
    into = weights(0)
    got = ht.fetch("policy/", into=into, client=clients[1], timeout=SOON)
    assert got.version == 2
    same(into, weights(2))


def test_an_exact_version_pruned_under_a_reader_raises_and_leaves_the_newest(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    ht.publish(weights(1), "policy/1", client=clients[0], bucket="256KiB")
    pruning_reader(monkeypatch, lambda: ht.publish(weights(2), "policy/2", 1, client=clients[0]))
    into = weights(0)
    with pytest.raises(hoplite.ObjectDeleted, match="the tensors are those of policy/2 now"):
        ht.fetch("policy/1", into=into, client=clients[1], timeout=SOON)
    same(into, weights(2))


def test_a_base_is_not_trusted_after_a_failure(clients: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    ht.publish(weights(1), "policy/1", client=clients[0], bucket="256KiB")
    into = weights(0)
    got = ht.fetch("policy/", into=into, client=clients[1], timeout=SOON)
    ht.publish(weights(2), "policy/2", client=clients[0], bucket="256KiB")
    with monkeypatch.context() as patched:

        def fail() -> None:
            raise KeyboardInterrupt

        pruning_reader(patched, fail)
        with pytest.raises(KeyboardInterrupt):
            ht.fetch("policy/", into=into, after=got, client=clients[1], timeout=SOON)
    assert into["w"].unique().tolist() == [1, 2]
    third = weights(1)
    ht.publish(third, "policy/3", client=clients[0], base="policy/2", bucket="256KiB")
    ht.fetch("policy/", into=into, after=got, client=clients[1], timeout=SOON)
    same(into, third)


@pytest.mark.faults("the trainer's node is killed")
def test_a_restarted_trainer_gets_its_weights_back_from_the_receivers() -> None:
    with testing.cluster(2) as nodes, contextlib.ExitStack() as stack:
        trainer = stack.enter_context(testing.node_process("--join", nodes[0].address))
        testing.wait_for_members(nodes, 3)
        model = Model(5, width=500)
        ht.publish(model, "policy/40", client=trainer.client(), timeout=SOON)
        receivers = [node.client() for node in nodes]
        for client in receivers:
            assert ht.fetch("policy/", client=client, timeout=SOON).version == 40
        trainer.process.kill()
        testing.wait_for_members(nodes, 2)
        restarted, client = Model(0, width=500), nodes[1].client()
        assert ht.fetch("policy/", into=restarted, client=client, timeout=SOON).version == 40
        assert restarted.values() == {5}
        ht.publish(restarted, "policy/41", client=client, timeout=SOON)
        assert ht.fetch("policy/", after=40, client=receivers[0], timeout=SOON).version == 41


@pytest.mark.faults("the trainer's node is killed")
def test_replicas_survive_the_trainer_without_any_receiver() -> None:
    with testing.cluster(2) as nodes, testing.node_process("--join", nodes[0].address) as trainer:
        testing.wait_for_members(nodes, 3)
        ht.publish(weights(4), "policy/1", client=trainer.client(), replicas=2, timeout=SOON)
        trainer.process.kill()
        testing.wait_for_members(nodes, 2)
        same(ht.fetch("policy/", client=nodes[0].client(), timeout=SOON), weights(4))


@pytest.mark.faults("the trainer's node is killed")
def test_a_node_killed_midway_leaves_the_previous_version(begun: threading.Semaphore) -> None:
    with testing.cluster(2) as nodes, testing.node_process("--join", nodes[0].address) as trainer:
        testing.wait_for_members(nodes, 3)
        client = nodes[0].client()
        ht.publish(weights(1), "policy/1", client=client)
        into = weights(0)
        with client_midway(trainer.socket, "policy/2"), ThreadPoolExecutor() as pool:
            fetching = pool.submit(ht.fetch, "policy/", into=into, client=client, timeout=SOON)
            assert begun.acquire(timeout=SOON)
            trainer.process.kill()
            assert fetching.result(SOON).version == 1
        same(into, weights(1))


def test_a_publication_that_fails_leaves_nothing(tmp_path: Any) -> None:
    with hoplite.Node(capacity="7MiB", socket=tmp_path / "small.sock") as node, node.client() as client:
        ht.publish(weights(1), "policy/1", client=client, bucket="1MiB")
        before = [row["ref"] for row in client.directory()]
        with pytest.raises(hoplite.StoreFull):
            ht.publish(weights(2), "policy/2", client=client, bucket="1MiB", timeout=0.2)
        assert [row["ref"] for row in client.directory()] == before
        same(ht.fetch("policy/", client=client, timeout=SOON), weights(1))


def test_a_canceled_fetch_ends_and_another_works(clients: list[Client]) -> None:
    async def main() -> Any:
        waiting = asyncio.ensure_future(ht.fetch_async("policy/", client=clients[1]))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(ht.publish, weights(1), "policy/1", client=clients[0])
        return await ht.fetch_async("policy/", client=clients[1], timeout=SOON)

    same(asyncio.run(main()), weights(1))


def test_an_announcement_that_was_pruned_before_it_is_read_is_passed_over(client: Client) -> None:
    chooser = Chooser(client, "policy/", None, Deadline(SOON))
    # As if the newest version had been pruned between the lookup of its number and the get of its announcement.
    ht.publish({"w": torch.ones(3)}, "policy/7", client=client, timeout=SOON)
    pruned = Version("policy/", 7)
    client.delete(pruned.announcement, timeout=SOON)
    assert asyncio.run(chooser._usable(pruned)) is None


@contextlib.contextmanager
def written(node: Node, tensors: dict[str, Any], name: str, base: str | None = None) -> Iterator[Writer]:
    """A publication whose data is complete, and whose version is not. At the end its client is closed."""
    with node.client() as client:
        sources = Sources(whole(tensors, None))
        writer = Writer(client, Version.of(name), sources, 0, 1, 1, Deadline(SOON))
        writer.write(8 << 20, digest=False, base=None if base is None else Version.of(base))
        yield writer


def test_a_version_that_failed_is_published_again_without_harm_to_others(nodes: list[Node]) -> None:
    tensors = {"w": torch.zeros(1 << 19), "v": torch.zeros(1 << 19)}
    with nodes[0].client() as first, nodes[1].client() as second:
        ht.publish(tensors, "again/1", client=first)
        tensors["w"][0] = 2
        ht.publish(tensors, "again/2", base="again/1", client=first)
        tensors["w"][0] = 3
        with written(nodes[0], tensors, "again/3", base="again/2"):
            pass
        ht.publish(tensors, "again/3", base="again/2", client=first)
        for version in (2, 3):
            got = ht.fetch(f"again/{version}", client=second, timeout=SOON)
            assert got["w"][0].item() == version
        assert ht.fetch("again/", client=second, timeout=SOON).version == 3


def test_a_second_publisher_of_a_version_is_refused_while_the_first_is_alive(nodes: list[Node]) -> None:
    tensors = {"w": torch.ones(1 << 19)}
    with nodes[1].client() as second, written(nodes[0], tensors, "one/1") as writer:
        with pytest.raises(hoplite.NameTaken, match="another publisher is putting one/1: publish a version on one"):
            ht.publish(tensors, "one/1", client=second)
        writer.commit(None)
        assert ht.fetch("one/", client=second, timeout=SOON).version == 1


def test_a_base_without_all_of_its_data_makes_a_whole_version(nodes: list[Node]) -> None:
    tensors = {"w": torch.ones(1 << 20)}
    with nodes[0].client() as client:
        ht.publish(tensors, "bare/1", client=client)
        client.delete(ht.fetch("bare/1", client=client).manifest.refs()[0])
        assert ht.publish(tensors, "bare/2", base="bare/1", client=client).sent == 4 << 20
        assert ht.fetch("bare/2", client=client, timeout=SOON)["w"].eq(1).all()
