"""`hoplite story`: on a fake cluster."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from fake_activity import FakeCluster
from fake_timeline import START
from hoplite.tools.cli.output import Failure
from hoplite.tools.cli.story import story
from hoplite.tools.observe.collect import Collector, Snapshot
from hoplite.tools.observe.story import tell

if TYPE_CHECKING:
    from click.testing import Result


def snapshot(cluster: FakeCluster, seconds: float) -> Snapshot:
    cluster.advance(seconds)
    client: Any = cluster.client()
    return asyncio.run(Collector(client, clock=lambda: cluster.now).collect())


def run(monkeypatch: pytest.MonkeyPatch, cluster: FakeCluster, *arguments: str) -> Result:
    """Runs the command at the fake cluster. Its clock differs from that of this process by months."""
    monkeypatch.setattr("hoplite.tools.cli.story.attach", lambda _: cluster.client())
    return CliRunner().invoke(story, arguments)


def test_a_broadcast_is_told_in_order() -> None:
    cluster = FakeCluster(6, skews={2: 3600.0})
    told = tell("weights/1", snapshot(cluster, 15))
    assert [event["time"] for event in told.events] == sorted(event["time"] for event in told.events)
    assert told.events[0]["text"] == "began to write 64.0 MiB"
    texts = [event["text"] for event in told.events if event["recorder"] == cluster.ids[3]]
    assert texts == [
        "get of process 203 waits",
        "chose 10.0.0.3:7420 as its source: relays the copy that still arrives",
        "began to receive 64.0 MiB from 10.0.0.3:7420",
        "lost the transfer from 10.0.0.3:7420 after 20.0 MiB of 64.0 MiB: the connection was closed",
        "changed the source from 10.0.0.3:7420 to 10.0.0.2:7420",
        "chose 10.0.0.2:7420 as its source: predicted to be the fastest",
        "began to receive 64.0 MiB from 10.0.0.2:7420, and continues an interrupted transfer",
        "received 64.0 MiB from 10.0.0.2:7420 in 0.48 s",
        "get of process 203 ended after 1.25 s",
    ]
    assert [tree.lines() for tree in told.trees] == [
        [
            "10.0.0.1:7420",
            "  10.0.0.2:7420",
            "    10.0.0.3:7420",
            "    10.0.0.4:7420",
            "      10.0.0.5:7420",
            "        10.0.0.6:7420",
        ]
    ]
    assert told.notes == []


def test_a_reduce_has_its_inputs_its_trees_and_its_restart() -> None:
    cluster = FakeCluster(4)
    told = tell("sums/1", snapshot(cluster, 19))
    texts = [event["text"] for event in told.events]
    assert [text for text in texts if text.startswith("input")] == [
        f"input grads/1/{number}: put 8.0 MiB" for number in range(4)
    ]
    assert "started epoch 2: the input grads/1/3 was lost" in texts
    assert [tree.title for tree in told.trees] == ["epoch 1", "epoch 2"]
    assert told.trees[1].lines() == ["10.0.0.1:7420", "  10.0.0.2:7420", "    10.0.0.4:7420", "  10.0.0.3:7420"]


def test_what_still_runs_is_at_the_end() -> None:
    told = tell("weights/0", snapshot(FakeCluster(4), 0.9))
    assert [event["text"] for event in told.events if event["kind"] == "receiving"] == [
        "still receives from 10.0.0.1:7420: 50.6 MiB of 64.0 MiB",
        "still receives from 10.0.0.2:7420: 49.9 MiB of 64.0 MiB",
        "still receives from 10.0.0.2:7420: 5.1 MiB of 64.0 MiB",
    ]
    assert "get of process 203 still waits, 0.85 s so far" in [event["text"] for event in told.events]


def test_repetitions_are_folded() -> None:
    cluster = FakeCluster(4)
    taken = snapshot(cluster, 55)
    texts = [event["text"] for event in tell("weights/never", taken).events]
    assert texts == [
        "get of process 201 waits (first of 5 times)",
        "get of process 201 ended after 3.00 s: weights/never did not appear within 3 s (first of 5 times)",
        "get of process 201 waits (last of 5 times)",
        "get of process 201 ended after 3.00 s: weights/never did not appear within 3 s (last of 5 times)",
    ]
    assert len(tell("weights/never", taken, everything=True).events) == 10


def test_all_has_what_the_sender_records() -> None:
    taken = snapshot(FakeCluster(4), 5)
    few, many = (
        {event["kind"] for event in tell("weights/0", taken, everything=all_).events} for all_ in (False, True)
    )
    assert many - few == {"serve", "served", "locate"}


def test_of_a_receiver_that_failed_the_sender_reports() -> None:
    cluster = FakeCluster(5, failed={4: 0.5})
    told = tell("weights/0", snapshot(cluster, 5))
    assert "began to send to 10.0.0.5:7420, and relays a copy" in [event["text"] for event in told.events]
    assert told.notes == ["10.0.0.5:7420 did not report: failed 4 s ago: closed"]


def test_a_ring_that_lacks_the_beginning_is_a_note() -> None:
    cluster = FakeCluster(4, ring=12)
    told = tell("grads/1/2", snapshot(cluster, 17))
    assert told.notes == []
    told = tell("weights/1", snapshot(cluster, 0))
    missed = len(cluster.events(0)) - 12
    assert f"10.0.0.1:7420 has overwritten its {missed} oldest events" in told.notes
    assert told.notes[-1] == "the beginning is missing: no node has recorded the put, or it was overwritten"


def test_a_deleted_object_has_a_story() -> None:
    told = tell("weights/0", snapshot(FakeCluster(4), 15))
    assert told.events[-1]["text"] == "deleted the object"


def test_the_command_prints_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(5, old=(4,))
    cluster.advance(5.0)
    result = run(monkeypatch, cluster, "weights/0")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].split() == ["time", "node", "event"]
    assert lines[1].split(maxsplit=2)[1:] == ["10.0.0.1:7420", "began to write 64.0 MiB"]
    assert "broadcast:" in lines
    assert f"note: 10.0.0.5:7420 did not report: node {cluster.ids[4]} does not support inspect" in lines


def test_json_has_all_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(4)
    cluster.advance(5.0)
    printed = json.loads(run(monkeypatch, cluster, "weights/0", "--json").output)
    assert printed["ref"] == "weights/0"
    assert printed["events"][0]["process"] == 100
    assert printed["events"][0]["text"] == "began to write 64.0 MiB"
    assert printed["trees"][0]["root"] == "10.0.0.1:7420"
    assert printed["nodes"][cluster.ids[1]] == "10.0.0.2:7420"


@pytest.mark.parametrize(
    ("ref", "ring", "message"),
    [
        ("weight/1", 4096, "no node has an object or events of weight/1 (did you mean weights/1?)"),
        ("grads/0/0", 20, "grads/0/0 exists, but the nodes have overwritten its events"),
        ("weights/0", 20, "no node has events of weights/0: weights/0 was deleted"),
    ],
)
def test_an_unknown_ref_is_an_error(monkeypatch: pytest.MonkeyPatch, ref: str, ring: int, message: str) -> None:
    cluster = FakeCluster(4, ring=ring)
    cluster.advance(25.0)
    error = run(monkeypatch, cluster, ref).exception
    assert isinstance(error, Failure)
    assert str(error).startswith(message)


def test_events_of_unknown_kinds_are_told() -> None:
    cluster = FakeCluster(4)
    taken = snapshot(cluster, 5)
    taken.reports[1].events.append(
        {"serial": 999, "time": START + 4, "kind": "warp", "ref": "weights/0", "recorder": cluster.ids[1]}
    )
    assert tell("weights/0", taken).events[-1]["text"] == "warp: ref weights/0"


def test_short_waits_are_left_out() -> None:
    cluster = FakeCluster(4)
    taken = snapshot(cluster, 5)
    request = {"verb": "get", "ref": "weights/0", "process": 900, "recorder": cluster.ids[2]}
    taken.reports[2].events += [
        {**request, "serial": 900, "time": START + 4, "kind": "wait"},
        {**request, "serial": 901, "time": START + 4.001, "kind": "reply", "seconds": 0.001, "error": None},
    ]
    texts = [event["text"] for event in tell("weights/0", taken).events]
    assert not any("process 900" in text for text in texts)
    assert any("process 202" in text for text in texts)
    assert any("process 900" in event["text"] for event in tell("weights/0", taken, everything=True).events)
