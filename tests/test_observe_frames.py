"""Frames of the live page: computed from a fake cluster, without clocks, sockets or a browser."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import time
from typing import Any

import pytest

from fake_activity import FakeClient, FakeCluster
from fake_timeline import START
from hoplite.errors import Timeout
from hoplite.tools.observe.clocks import Offset
from hoplite.tools.observe.collect import Report, Snapshot
from hoplite.tools.observe.flows import STAY_S, Flows
from hoplite.tools.observe.frames import BUDGET, EVENTS_MAX, HISTORY_S, WINDOW_S, Model, Viewer
from hoplite.tools.observe.observer import INTERVAL_S, METRICS_PER_TICK, Observer, _in_turn
from hoplite.tools.observe.readers import Readers, lags, split

Row = dict[str, Any]


class Watched:
    """A fake cluster with an observer of node 0, and a viewer."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.observer = Observer(cluster.client(), now=lambda: cluster.now)  # type: ignore[arg-type] # a fake
        self.viewer = Viewer(self.observer.model)

    def tick(self, seconds: float = 1.0) -> Row:
        """Moves the time, observes and returns the frame."""
        self.cluster.advance(seconds)
        asyncio.run(self.observer.tick())
        return self.viewer.frame(self.cluster.now)


def report(node: str, *events: Row, **activity: Any) -> Report:  # noqa: ANN401 - rows of any list
    """Returns what a node reports."""
    return Report(node, node, Offset(0.0, 0.0), list(events), activity)


def transfer(ref: str, source: str, received: int, *, since: float = 0.0) -> Row:
    """Returns a running reception of 100 bytes."""
    return {"ref": ref, "instance": "i", "source": source, "bytes": 100, "received": received, "since": since}


def test_a_broadcast_is_drawn_as_the_tree_of_its_sources() -> None:
    watched = Watched(FakeCluster(6))
    # At 0.6 s of the round, nodes 1 to 5 receive through each other, and node 3 from node 2.
    tree = watched.tick(0.6)["trees"][0]
    ids = watched.cluster.ids
    assert (tree["ref"], tree["kind"], tree["root"]) == ("weights/0", "broadcast", ids[0])
    assert {(edge["from"], edge["to"]) for edge in tree["edges"]} == set(itertools.pairwise(ids))
    assert all(0 < edge["done"] < 1 and edge["rate"] > 0 for edge in tree["edges"])
    assert {edge["choice"] for edge in tree["edges"]} == {"only_holder", "idle_relay"}
    # Node 3 now receives from node 1. Two nodes have everything.
    tree = watched.tick(0.65)["trees"][0]
    done = {(edge["from"], edge["to"]): edge["done"] for edge in tree["edges"]}
    assert (ids[1], ids[3]) in done
    assert (ids[2], ids[3]) not in done
    assert done[ids[0], ids[1]] == done[ids[1], ids[2]] == 1


def test_a_tree_stays_for_some_seconds_and_then_goes() -> None:
    watched = Watched(FakeCluster(6))
    watched.tick(0.6)
    ended = watched.tick(1.2)
    assert all(edge["done"] == 1 and edge["rate"] == 0 for edge in ended["trees"][0]["edges"])
    assert ended["pairs"] == []
    later = watched.tick(7.0)
    assert "weights/0" not in [tree["ref"] for tree in later["trees"]]


def test_a_short_transfer_is_seen_although_it_ran_between_two_ticks() -> None:
    flows = Flows()
    chosen = {"kind": "source", "time": 9.0, "ref": "x", "source": "a", "choice": "only_holder", "reason": "alone"}
    fetched = {"kind": "fetched", "time": 9.5, "ref": "x", "source": "a", "bytes": 100, "seconds": 0.1}
    flows.update(10.0, report("b", chosen, fetched, time=10.0))
    (tree,) = flows.trees({})
    assert (tree["root"], tree["bytes"]) == ("a", 100)
    assert tree["edges"] == [
        {"from": "a", "to": "b", "done": 1.0, "rate": 0, "choice": "only_holder", "reason": "alone"}
    ]


def test_a_failed_transfer_leaves_the_tree() -> None:
    flows = Flows()
    flows.update(1.0, report("b", time=1.0, transfers=[transfer("x", "a", 10)]))
    flows.update(2.0, report("b", time=2.0, transfers=[]))
    assert flows.trees({}) == []


def test_rates_are_those_since_the_last_report_and_summed_by_pair() -> None:
    flows = Flows()
    for at, received in ((1.0, 10), (3.0, 50)):
        running = [transfer("x", "a", received), transfer("y", "a", received)]
        flows.update(at, report("b", time=at, transfers=running))
    assert flows.pairs() == [{"from": "a", "to": "b", "rate": 40, "transfers": 2}]


def test_a_reduce_is_drawn_from_its_folds() -> None:
    flows = Flows()
    plan = {"result": "r", "epoch": 2, "degree": "tree 2", "reason": "small inputs", "since": 1.0}
    fold = {"result": "r", "epoch": 2, "position": None, "inputs": [], "since": 1.0}
    flows.update(2.0, report("a", time=2.0, reduces=[plan], folds=[{**fold, "children": ["b", "a"]}]))
    flows.update(2.0, report("b", time=2.0, folds=[{**fold, "children": ["c"]}]))
    (tree,) = flows.trees({("b", "a"): 7.0})
    assert (tree["kind"], tree["root"], tree["epoch"], tree["degree"]) == ("reduce", "a", 2, "tree 2")
    assert {(edge["from"], edge["to"], edge["rate"]) for edge in tree["edges"]} == {("b", "a", 7), ("c", "b", 0)}
    flows.update(3.0, report("b", time=3.0, folds=[]))
    assert {edge["from"]: edge["done"] for edge in flows.trees({})[0]["edges"]} == {"b": 0.0, "c": 1.0}


def test_a_reduce_between_two_reports_is_drawn() -> None:
    flows = Flows()
    taken = report("a", time=2.0)
    taken.events = [
        {"kind": "reduce_begin", "result": "r", "time": 1.0},
        {"kind": "degree", "result": "r", "time": 1.1, "degree": "chain", "reason": "few"},
        {"kind": "fold", "result": "r", "time": 1.2, "children": ["b"]},
        {"kind": "folded", "result": "r", "time": 1.3},
    ]
    flows.update(2.0, taken)
    (tree,) = flows.trees({})
    assert (tree["root"], tree["degree"], tree["since"]) == ("a", "chain", 1.2)
    assert [(edge["from"], edge["to"], edge["done"]) for edge in tree["edges"]] == [("b", "a", 1.0)]


def test_a_ring_is_one_picture() -> None:
    flows = Flows()
    flows.update(9.0, report("a", {"kind": "ring", "result": "sum", "parts": 3, "time": 8.0}))
    for source, node in (("c", "a"), ("a", "b"), ("b", "c")):
        fold = {"kind": "fold", "result": "sum", "epoch": 0, "position": 1, "children": [source], "time": 8.0}
        flows.update(9.0, report(node, fold, transfers=[transfer("sum", source, 10)]))
    (tree,) = flows.trees({})
    assert (tree["kind"], tree["degree"], tree["root"], len(tree["edges"])) == ("ring", "ring of 3", "a", 3)


def test_waits_name_the_node_on_which_they_depend() -> None:
    frame = Watched(FakeCluster(6)).tick(0.6)
    ids = [node["id"] for node in frame["nodes"]]
    waits = {row["node"]: row for row in frame["waits"]}
    assert waits[ids[2]]["on"] == ids[1]
    assert "received" in waits[ids[2]]["reason"]
    assert waits[ids[2]]["seconds"] == pytest.approx(0.55, abs=0.1)
    alone = Model()
    nobody = {"verb": "get", "ref": "never", "process": 1, "since": 2.0}
    alone.update(10.0, Snapshot(10.0, {}, [report("a", time=10.0, waits=[nobody])]), {})
    assert (alone.waits[0]["on"], alone.waits[0]["reason"]) == (None, "no node has a copy yet")


def test_readers_lag_behind_the_newest_version() -> None:
    watched = Watched(FakeCluster(6))
    for _ in range(24):
        frame = watched.tick()
    lag = {row["node"]: (row["newest"], row["version"], row["lag"]) for row in frame["lags"]}
    assert lag[watched.cluster.ids[5]] == (2, 1, 1)
    assert lag[watched.cluster.ids[1]] == (2, 2, 0)


def test_versions_of_prefixes() -> None:
    assert split("policy/17") == ("policy/", 17)
    assert split("a/b/0") == ("a/b/", 0)
    assert split("policy/x") == ("policy/x", None)
    assert split("17") == ("17", None)
    (row,) = lags([{"prefix": "p", "version": 3, "process": 9, "since": 1.0}], {"p/": 7}, now=5.0)
    assert row == {"prefix": "p/", "newest": 7, "process": 9, "version": 3, "lag": 4, "seconds": 4.0}
    readers = Readers()
    readers.update(report("a", reads=[{"prefix": "p/", "version": 3, "process": 9, "since": 1.0}]))
    readers.update(report("b", {"kind": "put", "ref": "p/5"}, {"kind": "put", "ref": "unread/5"}))
    assert [row["lag"] for row in readers.lags(5.0)] == [2]
    readers.forget({"a"})
    assert (readers.prefixes(), readers.lags(5.0)) == ([], [])


def test_a_node_that_fails_turns_dead() -> None:
    watched = Watched(FakeCluster(6, failed={2: 5.0}))
    dead = watched.cluster.ids[2]
    assert {row["id"]: row["state"] for row in watched.tick()["nodes"]}[dead] == "alive"
    frame = watched.tick(5.0)
    (row,) = [row for row in frame["nodes"] if row["id"] == dead]
    assert (row["state"], row["in"], row["name"]) == ("dead", 0, "10.0.0.3:7420")
    assert (frame["totals"]["nodes"], frame["totals"]["dead"]) == (5, 1)
    assert not [edge for tree in frame["trees"] for edge in tree["edges"] if dead in (edge["from"], edge["to"])]


def test_a_node_that_left_is_shown_for_ten_minutes() -> None:
    model, both = Model(), [{"id": "a", "address": None}, {"id": "b", "address": None}]

    def state(now: float, members: list[Row]) -> str | None:
        model.update(now, Snapshot(now, {"members": members, "id": "a"}, [report("a", time=now)]), {})
        return str(model.nodes["b"]["state"]) if "b" in model.nodes else None

    assert [state(1.0, both), state(2.0, both[:1]), state(HISTORY_S, both[:1])] == ["alive", "left", "left"]
    assert state(HISTORY_S + 3, both[:1]) is None


def test_an_old_node_is_silent_and_the_others_are_shown() -> None:
    watched = Watched(FakeCluster(6, old=(3,)))
    watched.tick()
    states = {row["id"]: row["state"] for row in watched.observer.model.nodes.values() if watched.tick()}
    old = watched.cluster.ids[3]
    assert states.pop(old) == "silent"
    assert set(states.values()) == {"alive"}
    assert watched.observer.model.nodes[old]["capacity"] == 0


def test_metrics_that_a_node_lacks_count_as_zero() -> None:
    model = Model()
    members = [{"id": "a", "address": None}]
    status = {"members": members, "id": "a"}
    model.update(1.0, Snapshot(1.0, status, [report("a", time=1.0)]), {"a": {"time": 1.0}})
    assert model.nodes["a"]["used"] == 0
    assert model.nodes["a"]["state"] == "alive"


def test_a_clock_an_hour_ahead_changes_nothing() -> None:
    plain, skewed = Watched(FakeCluster(6)), Watched(FakeCluster(6, skews={3: 3600.0}))
    for seconds in (0.6, 0.7, 3.0, 3.0):
        before, after = plain.tick(seconds), skewed.tick(seconds)
    for name in ("trees", "waits", "lags", "pairs"):
        assert after[name] == before[name]
    assert {event["time"] for event in after["events"]} <= {event["time"] for event in before["events"]}
    assert abs(after["events"][-1]["time"] - START) < 60


def test_frames_have_only_what_is_new() -> None:
    watched = Watched(FakeCluster(6))
    first = watched.tick(7.5)
    assert (first["full"], first["number"], len(first["nodes"])) == (True, 1, 6)
    assert (first["cluster"], first["node"]) == ("fake", watched.cluster.ids[0])
    second = watched.tick(0.1)
    assert (second["full"], second["number"], second["interval"]) == (False, 2, 0.1)
    # Rates were measured for the first time; afterwards nothing changes.
    third = watched.tick(0.1)
    assert third["nodes"] == []
    assert third["events"] == []
    shown = [event["text"] for event in first["events"]]
    assert any("10.0.0.2:7420" in text for text in shown)
    assert {"time", "node", "serial", "kind", "text", "ref"} == first["events"][0].keys()


def test_events_beyond_those_of_a_frame_are_counted() -> None:
    model, many = Model(), EVENTS_MAX + 5
    viewer = Viewer(model)
    events = [{"kind": "put", "ref": f"x/{number}", "bytes": 1, "time": 1.0} for number in range(many)]
    lossy = report("a", *events, time=1.0)
    lossy.missed = 7
    model.update(1.0, Snapshot(1.0, {}, [lossy]), {})
    frame = viewer.frame(1.0)
    assert (frame["skipped"], frame["events"][-1]["ref"]) == (5 + 7, f"x/{many - 1}")
    assert viewer.frame(2.0)["skipped"] == 0


def fetched(ref: str, time: float) -> Row:
    return {"kind": "fetched", "ref": ref, "source": "a", "bytes": 100, "seconds": 0.5, "time": time}


def folds(result: str, time: float) -> list[Row]:
    fold = {"kind": "fold", "result": result, "epoch": 1, "children": ["a"], "time": time - 0.5}
    return [fold, {"kind": "folded", "result": result, "epoch": 1, "seconds": 0.5, "time": time}]


def test_a_viewer_that_starts_shows_no_tree_that_ended_before() -> None:
    """It reads the events of the last minutes at once."""
    model, now = Model(), 1000.0
    old, new = now - STAY_S - 0.1, now - STAY_S + 0.1
    events = [fetched("old", old), fetched("new", new), *folds("old/sum", old), *folds("new/sum", new)]
    # The end of this fold is not among the events.
    events.append({"kind": "fold", "result": "unknown", "epoch": 1, "children": ["a"], "time": old})
    model.update(now, Snapshot(now, {}, [report("b", *events, time=now)]), {})
    assert {tree["ref"] for tree in model.trees} == {"new", "new/sum"}


def test_the_history_is_in_order_of_time_and_its_parts_skip_none() -> None:
    model = Model()
    # Node "b" reports later what happened earlier, and many events have the same millisecond.
    times = {"a": [3.0, 3.0, 3.0, 4.0], "b": [1.0, 3.0, 3.0004, 3.0006]}
    reports = [
        report(
            node, *({"kind": "put", "ref": f"{node}/{at}", "time": time} for at, time in enumerate(all_of)), time=4.0
        )
        for node, all_of in times.items()
    ]
    model.update(4.0, Snapshot(4.0, {}, reports), {})
    whole = model.history(100)
    assert [event["time"] for event in whole] == sorted((event["time"] for event in whole), reverse=True)
    assert len(whole) == 8
    for limit in range(1, 9):
        parts: list[Row] = []
        while part := model.history(limit, before=parts[-1]["time"] if parts else None):
            parts += part
        assert parts == whole
    assert model.history(0) == []


def test_what_has_not_ended_is_open() -> None:
    model, now = Model(), 100.0
    running = [transfer("slow", "a", 25, since=56.0), transfer("fast", "a", 75, since=99.0)]
    folding = [{"result": "sum", "epoch": 1, "children": ["a"], "inputs": [], "since": 70.0}]
    open_report = report("b", time=now, transfers=running, folds=folding)
    model.update(now, Snapshot(now, {}, [open_report]), {})
    found = Viewer(model).frame(now)["open"]
    assert [(span["ref"], span["kind"], span["node"], span["begin"]) for span in found] == [
        ("slow", "receive", "b", 56.0),
        ("sum", "fold", "b", 70.0),
        ("fast", "receive", "b", 99.0),
    ]
    assert found[0]["text"] == "receives from a: 25%"
    model.update(now, Snapshot(now, {}, [report("b", time=now)]), {})
    assert Viewer(model).frame(now)["open"] == []


def test_spans_are_what_ended() -> None:
    watched = Watched(FakeCluster(6))
    watched.tick(0.2)
    spans = watched.tick(2.5)["spans"]
    received = [span for span in spans if span["kind"] == "receive" and span["node"] == watched.cluster.ids[1]]
    assert [(span["ref"], round(span["end"] - span["begin"], 2)) for span in received] == [("weights/0", 0.99)]
    assert {"receive", "wait"} <= {span["kind"] for span in spans}


def large(now: float, nodes: int) -> Snapshot:
    """Returns the reports of many nodes under load: transfers, waits, reads and events of each."""
    ids = [f"{number:016x}" for number in range(nodes)]
    reports = []
    for number, node in enumerate(ids):
        sources = [ids[(number - 1) // 2 if ref == 0 else (number * 7 + ref) % nodes] for ref in range(20)]
        running = [
            {**transfer(f"w/{ref}", source, int(now) % 100), "choice": "idle_relay", "reason": "an idle node " * 5}
            for ref, source in enumerate(sources)
        ]
        events = [
            {"kind": "fetched", "time": now, "ref": f"o/{number}/{one}", "source": ids[0], "bytes": 1, "seconds": 0.1}
            for one in range(25)
        ]
        waits = [{"verb": "get", "ref": f"w/{ref}", "process": ref, "since": now - 3} for ref in range(20)]
        reads = [{"prefix": f"p{ref}/", "version": 1, "process": ref, "since": now} for ref in range(20)]
        reports.append(report(node, *events, time=now, transfers=running, waits=waits, reads=reads))
    members = [{"id": node, "address": f"10.0.{number}.1:7420", "place": ["a"]} for number, node in enumerate(ids)]
    return Snapshot(now, {"members": members, "id": ids[0], "cluster": "large"}, reports)


def test_a_viewer_of_a_large_cluster_stays_within_its_budget() -> None:
    model = Model()
    viewer, sent = Viewer(model), []
    for second in range(12):
        now = 1000.0 + second
        model.update(now, large(now, 200), {})
        text = viewer.text(now)
        sent.append(0 if text is None else len(text))
        if text is not None:
            frame = json.loads(text)
            assert len(frame["trees"]) == 8
    for start in range(8):
        assert sum(sent[start : start + int(WINDOW_S)]) <= BUDGET * WINDOW_S
    # Fewer edges rather than fewer frames, once the first frame with all nodes no longer counts.
    assert all(sent[5:])
    assert all(len(tree["edges"]) + tree["omitted"] == 199 for tree in frame["trees"] if tree["ref"] == "w/0")


def test_a_viewer_beyond_its_budget_gets_everything_later() -> None:
    model = Model()
    viewer = Viewer(model, budget=200)
    status = {"members": [{"id": "a", "address": None}], "id": "a"}

    def update(second: int) -> str | None:
        event = {"kind": "put", "ref": f"x/{second}", "bytes": 1, "time": float(second)}
        model.update(float(second), Snapshot(float(second), status, [report("a", event, time=float(second))]), {})
        return viewer.text(float(second))

    texts = [update(second) for second in range(1, 40)]
    frames = [json.loads(text) for text in texts if text is not None]
    assert None in texts
    seen = [event["ref"] for frame in frames for event in frame["events"]]
    assert seen == [f"x/{number}" for number in range(1, len(seen) + 1)]
    assert [frame["number"] for frame in frames] == list(range(1, len(frames) + 1))


def test_memory_stays_flat_over_hundreds_of_ticks() -> None:
    model = Model()
    viewer = Viewer(model)

    def run(first: int, count: int) -> int:
        for second in range(first, first + count):
            now = 1000.0 + second
            busy = large(now, 4)
            for each in busy.reports:
                # New objects and prefixes all the time.
                each.events = [{**event, "ref": f"{event['ref']}/{second}"} for event in each.events]
                each.activity["reads"] = [
                    {**row, "prefix": f"{row['prefix']}{second}/"} for row in each.activity["reads"]
                ]
            model.update(now, busy, {})
            viewer.text(now)
        gc.collect()
        return len(gc.get_objects())

    settled = run(0, 110)
    assert run(110, 300) < settled + 1000


def test_every_node_has_its_turn() -> None:
    nodes = [str(number) for number in range(50)]
    seen = {node for turn in range(4) for node in _in_turn(nodes, turn, METRICS_PER_TICK)}
    assert seen == set(nodes)
    assert _in_turn(nodes[:3], 7, METRICS_PER_TICK) == nodes[:3]


def test_no_frame_hides_that_the_own_node_does_not_reply() -> None:
    cluster = FakeCluster(4, failed={0: 5.0})
    watched = Watched(cluster)
    watched.tick()
    assert watched.observer.failure is None
    cluster.advance(5.0)

    async def first() -> str:
        return await asyncio.wait_for(anext(watched.observer.texts()), 0.2)

    with pytest.raises(TimeoutError):
        asyncio.run(first())
    assert "has failed" in str(watched.observer.failure)


def test_the_observer_queries_only_while_somebody_looks() -> None:
    cluster = FakeCluster(4)

    async def look() -> tuple[int, bool]:
        observer = Observer(cluster.client(), now=time.time)  # type: ignore[arg-type] # a fake
        frames = observer.frames()
        first = await anext(frames)
        second = await anext(frames)
        await observer.close()
        return second["number"] - first["number"], observer._task is None

    assert asyncio.run(look()) == (1, True)


def test_a_frozen_member_does_not_delay_the_others_at_each_tick() -> None:
    cluster = FakeCluster(4)
    client: Any = cluster.client()
    frozen, queries = cluster.ids[2], []

    async def inspect(what: str, **options: Any) -> object:  # noqa: ANN401 - as in inspect
        if options["node"] == frozen:
            queries.append((what, options["timeout"]))
            raise Timeout("no reply")
        return FakeClient.inspect(client, what, **options)

    client.inspect_async = inspect
    observer = Observer(client, now=lambda: cluster.now)
    for _ in range(3):
        cluster.advance(1.0)
        asyncio.run(observer.tick())
    assert observer.model.nodes[frozen]["state"] == "silent"
    assert [what for what, _ in queries] == ["activity"] * 3
    assert queries[0][1] > INTERVAL_S > queries[1][1] == queries[2][1]


def test_the_observer_closes_after_a_tick_that_failed() -> None:
    cluster = FakeCluster(4)

    async def look() -> bool:
        observer = Observer(cluster.client(), now=lambda: cluster.now)  # type: ignore[arg-type] # a fake
        await observer.look()
        del observer._collector
        assert observer._task is not None
        await asyncio.wait([observer._task])
        await observer.close()
        return observer._task is None

    assert asyncio.run(look())


@pytest.mark.parametrize("kind", ["source", "fetched", "fold", "folded", "ring", "reply", "reduced", "put", "member"])
def test_a_member_that_leaves_out_fields_does_not_end_the_frames(kind: str) -> None:
    watched = Watched(FakeCluster(4))
    client: Any = watched.observer._client

    async def inspect(what: str, **options: Any) -> object:  # noqa: ANN401 - as in inspect
        reply = FakeClient.inspect(client, what, **options)
        if what == "activity":
            reply["transfers"] = [{"ref": "x", "source": watched.cluster.ids[1]}]
            reply["waits"] = [{"verb": "get"}]
            reply["events"] = [{**event, "kind": kind} for event in reply["events"]]
            reply["events"] = [{name: event[name] for name in ("serial", "time", "kind")} for event in reply["events"]]
        return reply

    client.inspect_async = inspect
    assert {event["kind"] for event in watched.tick(2.0)["events"]} == {kind}
