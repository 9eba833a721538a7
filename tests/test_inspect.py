"""What `inspect` reports about a node: recent events, and what runs now."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from hoplite import testing
from hoplite.activity import Activity, Metrics
from programs import frozen
from support import SOON, Later, eventually
from typed import mismatches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hoplite import Client

MIB = 1 << 20


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of a node without other members."""
    with testing.cluster(1) as nodes, nodes[0].client() as client:
        yield client


def events(
    client: Client, *kinds: str, ref: hoplite.Ref | str | None = None, node: str | None = None
) -> list[dict[str, Any]]:
    """The events of some kinds, about one object or result."""
    every = client.inspect("activity", node=node, limit=2500, timeout=SOON)["events"]
    return [
        event
        for event in every
        if event["kind"] in kinds and (ref is None or str(ref) in (event.get("ref"), event.get("result")))
    ]


def test_a_put_and_its_deletion_are_recorded(client: Client) -> None:
    begun = time.time()
    small, large = client.put(b"x"), client.put(bytes(MIB), name="large")
    client.delete([small, large])
    (put,) = events(client, "put", ref=small)
    assert (put["bytes"], put["process"]) == (1, os.getpid())
    assert begun - 1 < put["time"] < time.time() + 1
    created = events(client, "create", "seal", "delete", ref="large")
    assert [event["kind"] for event in created] == ["create", "seal", "delete"]
    assert created[0]["bytes"] == MIB


def test_a_broadcast_gives_the_tree_of_its_sources() -> None:
    with (
        testing.cluster(3) as nodes,
        nodes[0].client() as first,
        nodes[1].client() as second,
        nodes[2].client() as third,
    ):
        ref = first.put(np.ones(MIB, "float32"))
        for reader in (second, third):
            reader.get(ref, timeout=SOON)
        for reader, node in ((second, nodes[1]), (third, nodes[2])):
            # Any member can be asked.
            source, fetch, fetched = events(first, "source", "fetch", "fetched", ref=ref, node=node.id)
            assert source["source"] == fetch["source"] == fetched["source"]
            assert source["source"] in {nodes[0].id, nodes[1].id} - {node.id}
            assert source["choice"] in {"only_holder", "idle_complete", "idle_relay", "least_loaded"}
            assert source["reason"]
            assert fetched["bytes"] == fetch["bytes"] == 4 * MIB
            assert not fetch["resumed"]
            assert fetched["seconds"] > 0
            (served,) = [
                event
                for other in nodes
                for event in events(first, "serve", ref=ref, node=other.id)
                if event["reader"] == node.id
            ]
            assert served["relayed"] == (source["source"] != nodes[0].id)
            (get,) = events(reader, "reply", ref=ref)
            assert get["verb"] == "get"
            assert get["error"] is None
            assert get["process"] == os.getpid()


def test_a_local_get_leaves_no_event(client: Client) -> None:
    ref = client.put(bytes(MIB))
    before = client.inspect("activity")["next"]
    for _ in range(10):
        client.get(ref)
    assert client.inspect("activity")["next"] == before


def test_an_arriving_object_is_a_transfer_and_its_get_waits() -> None:
    with testing.cluster(2) as nodes, nodes[0].client() as writer, nodes[1].client() as reader:
        with writer.create(4 * MIB, "uint8", name="growing") as buffer:
            get = Later(reader.get, "growing", timeout=SOON)

            def arrives() -> bool:
                return bool(reader.inspect("activity")["transfers"])

            eventually(arrives)
            activity = reader.inspect("activity")
            (transfer,) = activity["transfers"]
            assert (transfer["ref"], transfer["source"], transfer["bytes"]) == ("growing", nodes[0].id, 4 * MIB)
            assert transfer["received"] == 0
            assert transfer["since"] <= activity["time"]
            (wait,) = activity["waits"]
            assert (wait["verb"], wait["ref"], wait["process"]) == ("get", "growing", os.getpid())
            assert mismatches({**activity, "events": []}, Activity) == []
            del buffer
        get.result()
        activity = reader.inspect("activity")
        assert not activity["transfers"]
        assert not activity["waits"]


def test_the_version_that_a_process_read_is_known(client: Client) -> None:
    for version in (1, 2):
        client.put(b"x", name=f"policy/{version}")
        client.get(f"policy/{version}")
    client.get("policy/1")
    (read,) = client.inspect("activity")["reads"]
    assert (read["prefix"], read["version"], read["process"]) == ("policy", 2, os.getpid())


def test_unknown_arguments_are_refused(client: Client) -> None:
    with pytest.raises(hoplite.InvalidArgument, match='use "activity" or "metrics"'):
        client.inspect("events")  # type: ignore[call-overload]
    with pytest.raises(hoplite.InvalidArgument, match="is not a node id"):
        client.inspect("activity", node="x")
    with pytest.raises(hoplite.InvalidArgument, match="limit is -1"):
        client.inspect("activity", limit=-1)
    with pytest.raises(hoplite.NodeDown, match="is not a member"):
        client.inspect("activity", node="0" * 16)


def test_the_metrics_have_the_declared_fields(client: Client) -> None:
    client.put(b"x")
    metrics = client.inspect("metrics", timeout=SOON)
    assert mismatches(metrics, Metrics) == []
    assert metrics["totals"]["puts"] == 1
    assert metrics["pins"] == 1
    assert metrics["states"]["complete"] == {"objects": 1, "bytes": 1}
    assert metrics["version"] == hoplite.__version__


@pytest.mark.faults("a node is paused, and ended")
def test_a_member_that_is_silent_or_ends_is_reported() -> None:
    with (
        testing.node_process("--detection-timeout", "60") as node,
        testing.node_process("--detection-timeout", "60", "--join", node.address) as other,
        node.client() as client,
    ):
        with frozen(other.process):
            with pytest.raises(hoplite.Timeout, match="the report of node"):
                client.inspect("activity", node=other.id, timeout=0.2)
            asked = Later(client.inspect, "activity", node=other.id, timeout=SOON)
            other.process.kill()
        with pytest.raises(hoplite.NodeDown):
            asked.result()
        (joined, failed) = events(client, "member")
        assert (joined["node"], joined["state"]) == (other.id, "joined")
        assert (failed["node"], failed["state"]) == (other.id, "failed")
        assert failed["why"]


def test_pages_follow_each_other(client: Client) -> None:
    refs = [client.put(b"x", name=f"page/{number}") for number in range(5)]
    read: list[str] = []
    after = 0
    while events := client.inspect("activity", after=after, limit=2)["events"]:
        read += [event["ref"] for event in events]
        after = events[-1]["serial"] + 1
    assert read == [str(ref) for ref in refs]
    assert after == client.inspect("activity")["next"]


def test_a_reduce_has_its_shape_and_folds() -> None:
    with (
        testing.cluster(3) as nodes,
        nodes[0].client() as first,
        nodes[1].client() as second,
        nodes[2].client() as third,
    ):
        inputs = [other.put(np.ones(MIB, "float32")) for other in (second, third)]
        total = first.reduce(inputs, op="sum")
        assert first.get(total, timeout=SOON)[0] == 2
        (begin, degree, reduced) = events(first, "reduce_begin", "degree", "reduced", ref=total)
        assert (begin["inputs"], begin["count"], begin["op"]) == (2, 2, "sum")
        assert degree["degree"] in {"chain", "tree 2", "star"}
        assert reduced["error"] is None
        folds = [fold for node in nodes for fold in events(first, "fold", ref=total, node=node.id)]
        assert {ref for fold in folds for ref in fold["inputs"]} == {str(ref) for ref in inputs}
        children = [child for fold in folds for child in fold["children"]]
        assert sorted(children) == sorted([nodes[1].id, nodes[2].id])

        def ended() -> bool:
            return all(len(events(first, "folded", ref=total, node=node.id)) == 1 for node in nodes)

        eventually(ended)
        assert not first.inspect("activity")["reduces"]
        peers = first.inspect("metrics")["peers"]
        assert sum(peer["received"] for peer in peers.values()) >= 4 * MIB


def test_an_object_that_goes_to_disk_and_returns_is_recorded(tmp_path: Path) -> None:
    with hoplite.Node(socket=None, capacity="8MiB", spill=tmp_path) as node, node.client() as client:
        refs = [client.put(bytes(3 * MIB)) for _ in range(4)]
        client.get(refs[0], timeout=SOON)
        (spill, spilled) = events(client, "spill", "spilled", ref=refs[0])[:2]
        assert spill["bytes"] == 3 * MIB
        assert spilled["seconds"] >= 0
        assert events(client, "unspill", "unspilled", ref=refs[0])
        totals = client.inspect("metrics")["totals"]
        assert totals["spilled_bytes"] >= 3 * MIB
        assert totals["unspilled_bytes"] >= 3 * MIB


def test_an_evicted_copy_is_recorded() -> None:
    with hoplite.Node(listen="127.0.0.1:0", socket=None) as node, node.client() as writer:
        assert node.address
        refs = [writer.put(bytes(3 * MIB)) for _ in range(3)]
        small = hoplite.Node(listen="127.0.0.1:0", socket=None, join=node.address, capacity="8MiB")
        with small, small.client() as reader:
            for ref in refs:
                reader.get(ref, timeout=SOON)
            assert events(reader, "evicted")[0]["copies"] == 1
