"""Observation of a cluster: clocks, snapshots and sentences, on a fake cluster."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from fake_activity import FakeCluster
from fake_timeline import START
from hoplite.errors import NodeDown
from hoplite.tools.observe.clocks import Clock
from hoplite.tools.observe.collect import Collector, Snapshot
from hoplite.tools.observe.folds import pairs
from hoplite.tools.observe.words import SENTENCES, sentence


def collector(cluster: FakeCluster, *, history: bool = True) -> Collector:
    client: Any = cluster.client()
    return Collector(client, clock=lambda: cluster.now, history=history)


def snapshot(cluster: FakeCluster) -> Snapshot:
    return asyncio.run(collector(cluster).collect())


def test_the_shortest_round_trip_gives_the_offset() -> None:
    clock = Clock()
    assert clock.offset(0) == (0, math.inf)
    clock.add(100.0, 102.0, 3700.3)
    assert clock.offset(102.0) == pytest.approx((3599.3, 1.0))
    # A request with a smaller error replaces it, one with a larger does not.
    clock.add(103.0, 103.01, 3703.005)
    clock.add(104.0, 106.0, 3704.2)
    assert clock.offset(103.01) == pytest.approx((3600.0, 0.005))


def test_an_old_sample_loses_to_a_new_one() -> None:
    clock = Clock()
    clock.add(0.0, 0.001, 5.0)
    clock.add(1000.0, 1000.01, 1005.5)
    assert clock.offset(1000.01).seconds == pytest.approx(5.495)


def test_a_clock_that_was_set_has_a_new_offset() -> None:
    clock = Clock()
    clock.add(0.0, 0.001, 10.0)
    clock.add(1.0, 1.1, 3601.0)
    assert clock.offset(1.1).seconds == pytest.approx(3599.95)


def test_clocks_that_may_be_equal_are_not_changed() -> None:
    clock = Clock()
    clock.add(0.0, 0.2, 0.15)
    assert clock.offset(0.2) == pytest.approx((0.0, 0.1))


def test_clocks_an_hour_apart_are_aligned() -> None:
    cluster = FakeCluster(5, skews={2: 3600.0, 3: -3600.0})
    cluster.advance(2.0)
    taken = snapshot(cluster)
    assert [report.offset.seconds for report in taken.reports] == pytest.approx([0, 0, 3600, -3600, 0])
    times = [event["time"] for event in taken.events()]
    assert times == sorted(times)
    assert START <= times[0] <= times[-1] <= cluster.now
    # The relay begins to receive before it begins to send.
    order = [(event["recorder"], event["kind"]) for event in taken.events() if event.get("ref") == "weights/0"]
    assert order.index((cluster.ids[2], "fetch")) < order.index((cluster.ids[2], "serve"))
    # Also what still runs.
    assert all(START <= row["since"] <= cluster.now for report in taken.reports for row in report.activity["waits"])


def test_each_event_is_read_once() -> None:
    cluster = FakeCluster()
    cluster.advance(5.0)
    reader = collector(cluster)

    async def twice() -> tuple[Snapshot, Snapshot]:
        first = await reader.collect()
        cluster.advance(5.0)
        return first, await reader.collect()

    first, second = asyncio.run(twice())
    # Pairs of node and serial.
    read = [(event["recorder"], event["serial"]) for taken in (first, second) for event in taken.events()]
    everything = [
        (node, event["serial"]) for number, node in enumerate(cluster.ids) for event in cluster.events(number)
    ]
    assert sorted(read) == sorted(everything)
    assert first.notes() == second.notes() == []


def test_many_events_are_read_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoplite.tools.observe.collect.PAGE", 10)
    cluster = FakeCluster(4)
    cluster.advance(30.0)
    reports = snapshot(cluster).reports
    assert len(reports[0].events) > 30
    assert [event["serial"] for event in reports[0].events] == list(range(len(cluster.events(0))))


def test_without_history_only_new_events_are_read() -> None:
    cluster = FakeCluster()
    cluster.advance(5.0)
    reader = collector(cluster, history=False)

    async def twice() -> tuple[Snapshot, Snapshot]:
        first = await reader.collect()
        cluster.advance(1.0)
        return first, await reader.collect()

    first, second = asyncio.run(twice())
    assert first.events() == []
    assert second.events()
    assert all(event["time"] > START + 5 for event in second.events())


def test_overwritten_events_are_counted() -> None:
    cluster = FakeCluster(ring=10)
    cluster.advance(30.0)
    report = snapshot(cluster).reports[0]
    assert report.missed == len(cluster.events(0)) - 10
    assert f"10.0.0.1:7420 has overwritten its {report.missed} oldest events" in snapshot(cluster).notes()
    assert snapshot(cluster).notes(since=cluster.now) == []


def test_a_failed_and_an_old_node_are_notes() -> None:
    cluster = FakeCluster(failed={4: 1.0}, old=(2,))
    cluster.advance(2.0)
    taken = snapshot(cluster)
    assert taken.notes() == [
        f"10.0.0.3:7420 did not report: node {cluster.ids[2]} does not support inspect",
        "10.0.0.5:7420 did not report: failed 1 s ago: closed",
    ]
    assert {event["recorder"] for event in taken.events()} == {cluster.ids[number] for number in (0, 1, 3, 5)}


def test_a_node_that_fails_while_it_is_read_is_a_note() -> None:
    cluster = FakeCluster(failed={1: 2.0})
    cluster.advance(1.0)
    client: Any = cluster.client()
    inspect = client.inspect

    def fail(what: str, **options: object) -> object:
        cluster.now = START + 2.0
        return inspect(what, **options)

    # The asynchronous form calls it.
    client.inspect = fail
    taken = asyncio.run(Collector(client, clock=lambda: cluster.now).collect())
    assert taken.notes() == [f"10.0.0.2:7420 did not report: node {cluster.ids[1]} has failed"]
    assert taken.reports[2].events


def test_a_failure_of_the_own_node_is_an_error() -> None:
    cluster = FakeCluster(failed={0: 1.0})
    cluster.advance(2.0)
    with pytest.raises(NodeDown):
        snapshot(cluster)


def test_every_event_has_a_sentence() -> None:
    cluster = FakeCluster()
    cluster.advance(25.0)
    taken = snapshot(cluster)
    told = {event["kind"]: sentence(event, taken.names) for event in taken.events()}
    assert told["fetched"].startswith("received 64.0 MiB from 10.0.0.")
    assert (
        told["fetch_failed"]
        == "lost the transfer from 10.0.0.3:7420 after 20.0 MiB of 64.0 MiB: the connection was closed"
    )
    assert told["member"] == "10.0.0.6:7420 replies again"
    assert told["limit"] == "rejected a request of process 203: limit requests"
    assert told["reduce_begin"] == "began to sum 6 of 6 inputs"
    assert told["restart"] == "started epoch 2: the input grads/1/5 was lost"
    assert "?" not in "".join(told.values())


@pytest.mark.parametrize("kind", SENTENCES)
def test_a_missing_field_is_no_error(kind: str) -> None:
    assert sentence({"kind": kind}, {})


def test_an_unknown_kind_is_written_with_its_fields() -> None:
    event = {"serial": 3, "time": 1.0, "kind": "warp_begun", "ref": "a", "speed": 9}
    assert sentence(event, {}) == "warp begun: ref a, speed 9"
    assert sentence({}, {}) == "None"


def test_a_node_without_a_name_is_written_by_its_id() -> None:
    assert sentence({"kind": "member", "state": "left", "node": "0123456789abcdef"}, {}) == "01234567 left"


def test_events_that_are_not_kept_are_read_but_not_retained() -> None:
    cluster = FakeCluster(ring=30)
    cluster.advance(20.0)
    client: Any = cluster.client()
    reader = Collector(client, keep=lambda event, at: event["kind"] == "put" and at > START, clock=lambda: cluster.now)
    taken = asyncio.run(reader.collect())
    assert {event["kind"] for event in taken.events()} == {"put"}
    assert taken.reports[0].oldest == cluster.events(0)[-30]["time"]


def test_folds_are_matched_by_their_children() -> None:
    def fold(node: str, position: int | None, *children: str) -> dict[str, Any]:
        return {"recorder": node, "result": "r", "epoch": 1, "position": position, "children": list(children)}

    # The caller's node has the top and a position.
    folds = [fold("a", None, "b"), fold("b", 0, "a", "c"), fold("a", 1), fold("c", 2, "a"), fold("a", 3)]
    found = [(child["recorder"], child["position"], parent["position"]) for child, parent in pairs(folds)]
    assert found == [("b", 0, None), ("a", 1, 0), ("c", 2, 0), ("a", 3, 2)]
