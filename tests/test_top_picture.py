"""The tables of `hoplite top`, and its plain snapshot: computed from frames of a fake cluster, without a terminal."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from fake_activity import FakeCluster
from hoplite.tools.cli import top as command
from hoplite.tools.cli.output import Failure
from hoplite.tools.observe import observer
from hoplite.tools.observe.frames import Viewer
from hoplite.tools.observe.observer import Observer
from hoplite.tools.top.picture import TABS, Cell, Groups, Picture, arrange, select

if TYPE_CHECKING:
    from click.testing import Result

NODES, TREES, TRANSFERS, WAITS, READERS, EVENTS = TABS


def seen(cluster: FakeCluster, *steps: float) -> Picture:
    """Returns the picture after frames at some intervals in seconds."""
    picture = Picture()
    watch = Observer(cluster.client(), now=lambda: cluster.now)  # type: ignore[arg-type] # a fake
    viewer = Viewer(watch.model)
    for step in steps:
        cluster.advance(step)
        asyncio.run(watch.tick())
        picture.update(viewer.frame(cluster.now))
    return picture


def texts(groups: Groups) -> list[list[str]]:
    return [[cell.text for cell in line] for group in groups for line in group]


def column(groups: Groups, number: int) -> list[str]:
    return [line[number] for line in texts(groups)]


def test_events_are_newest_first_across_nodes() -> None:
    """A node reports later what happened earlier."""
    picture = Picture()
    for times in ([1.0, 3.0], [2.0, 4.0], [0.5]):
        events = [{"time": time, "node": "a", "ref": None, "text": "put"} for time in times]
        picture.update({**frame("a"), "events": events})
    assert [event["time"] for event in picture.events] == [4.0, 3.0, 2.0, 1.0, 0.5]


def frame(*nodes: str, edges: list[tuple[str, str]] | None = None, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """Returns a frame with nodes, and a tree with edges."""
    rows = [{"id": node, "name": node, "state": "alive"} for node in nodes]
    tree = {"ref": "x", "kind": "broadcast", "bytes": 100, "epoch": 0, "root": "a", "degree": "", "reason": ""}
    tree["edges"] = [
        {"from": one, "to": other, "done": 0.5, "rate": 0, "choice": "", "reason": ""} for one, other in edges or ()
    ]
    tree |= {"omitted": 0, **fields}
    return {"full": True, "nodes": rows, "trees": [tree], "events": []}


def tree(edges: list[tuple[str, str]], **fields: Any) -> list[str]:  # noqa: ANN401 - any field
    picture = Picture()
    picture.update(frame(*{node for edge in edges for node in edge}, edges=edges, **fields))
    return column(TREES.groups(picture), 0)


def test_nodes_are_in_the_order_of_their_numbers_and_a_dead_one_stays() -> None:
    picture = seen(FakeCluster(11, failed={3: 1.0}), 0.5, 1.0)
    rows = texts(NODES.groups(picture))
    assert [row[0] for row in rows] == ["10.0.0.1:7420 *", *(f"10.0.0.{number}:7420" for number in range(2, 12))]
    assert [row[1] for row in rows] == [*["alive"] * 3, "dead", *["alive"] * 7]
    assert rows[0][2:4] == ["░░░░░░░░   6%", "64.0 MiB"]
    assert NODES.groups(picture)[3][0][1].style == "red"
    assert picture.headlines()[0].startswith("fake: 10 nodes, 1 dead, ")
    picture.frame["cluster"] = "\x1b[31m"
    assert picture.headlines()[0].startswith("\\x1b[31m: ")


def test_frames_between_full_ones_change_only_their_nodes() -> None:
    picture = Picture()
    picture.update(frame("a", "b"))
    picture.update({**frame("b"), "full": False})
    assert list(picture.nodes) == ["a", "b"]
    assert [row["id"] for row in picture.whole()["nodes"]] == ["a", "b"]
    picture.update(frame("b"))
    assert list(picture.nodes) == ["b"]


def test_a_broadcast_and_a_reduce_are_trees_below_their_root() -> None:
    picture = seen(FakeCluster(8), 0.0, 4.5)
    lines = column(TREES.groups(picture), 0)
    assert lines[: lines.index("weights/0")] == [
        "sums/0",
        "10.0.0.1:7420",
        "├─ 10.0.0.2:7420",
        "│  ├─ 10.0.0.4:7420",
        "│  │  ← 10.0.0.8:7420",
        "│  └─ 10.0.0.5:7420",
        "└─ 10.0.0.3:7420",
        "   ├─ 10.0.0.6:7420",
        "   └─ 10.0.0.7:7420",
    ]
    why = column(TREES.groups(picture), 3)
    assert why[0] == "tree 2: 8 MiB over a link of 10 Gbit/s"
    assert "broadcast of 64.0 MiB" in why


def test_a_chain_of_any_length_is_not_indented() -> None:
    names = ["a", *(f"n{number}" for number in range(3000))]
    lines = tree(list(itertools.pairwise(names)))
    assert lines == ["x", "a", *(f"→ {name}" for name in names[1:])]


def test_edges_that_form_a_circle_or_a_second_tree_are_drawn_once() -> None:
    assert tree([("a", "b"), ("b", "a")]) == ["x", "a", "→ b", "→ a"]
    assert tree([("a", "b"), ("c", "d")], omitted=7) == ["x", "a", "→ b", "c", "→ d", "and 7 more"]
    assert tree([]) == ["x", "a"]


def test_a_filter_keeps_whole_trees() -> None:
    picture = seen(FakeCluster(6), 0.0, 4.5)
    found = select(TREES.groups(picture), "SUMS/")
    assert len(found) == 1
    assert len(found[0]) > 6
    assert select(NODES.groups(picture), "0.3:") == [NODES.groups(picture)[2]]
    assert select(NODES.groups(picture), "nothing") == []


def test_every_column_sorts() -> None:
    picture = seen(FakeCluster(12, failed={3: 4.0}), 0.0, 0.7, 4.0)
    for tab in TABS:
        groups = tab.groups(picture)
        for number in range(len(tab.columns)):
            keys = [group[0][number].key for group in arrange(groups, number, reverse=True)]
            assert keys == sorted(keys, reverse=True)
    assert column(arrange(NODES.groups(picture), 0, reverse=True), 0)[0] == "10.0.0.12:7420"
    sized = [[[Cell("9 B", 9)]], [[Cell("1.0 KiB", 1024)]]]
    assert column(arrange(sized, 0, reverse=True), 0) == ["1.0 KiB", "9 B"]


def test_transfers_waits_readers_and_events_name_nodes() -> None:
    running = seen(FakeCluster(6), 0.0, 0.7)
    assert ["10.0.0.1:7420", "10.0.0.2:7420"] in [row[:2] for row in texts(TRANSFERS.groups(running))]
    waits = texts(WAITS.groups(running))
    assert waits[0][:5] == ["0.7", "get weights/0", "10.0.0.2:7420", "201", "10.0.0.1:7420"]
    later = seen(FakeCluster(6), 0.0, 12.0)
    assert max(column(READERS.groups(later), 1)) == "1"
    times = [line[0].key for group in EVENTS.groups(later) for line in group]
    assert times == sorted(times, reverse=True)


def test_a_cluster_that_has_not_replied_has_empty_tables() -> None:
    picture = Picture()
    assert picture.headlines() == ["no node has replied yet", ""]
    assert [tab.groups(picture) for tab in TABS] == [[]] * len(TABS)


# The command without a terminal


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """The cluster to which the command attaches; its time passes with each tick."""
    cluster = FakeCluster(6)
    cluster.advance(0.6)
    monkeypatch.setattr(command, "attach", lambda _: cluster.client())
    monkeypatch.setattr(observer, "INTERVAL_S", 0.01)
    return cluster


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command.top, arguments, standalone_mode=False)


def test_a_snapshot_has_all_tables(cluster: FakeCluster) -> None:
    text = run("--once").stdout
    assert text.startswith("fake: 6 nodes, ")
    titles = [line.partition(":")[0] for line in text.split("\n\n")]
    assert [title.splitlines()[0] for title in titles[1:]] == [tab.title for tab in TABS]
    assert "→ 10.0.0.2:7420" in text
    assert "Readers: no reader" in text
    assert all(line == line.rstrip() for line in text.splitlines())
    del cluster


def test_a_snapshot_as_json_is_a_frame_with_all_nodes(cluster: FakeCluster) -> None:
    found = json.loads(run("--json").stdout)
    assert (found["number"], found["full"], len(found["nodes"])) == (3, True, 6)
    del cluster


def test_a_node_that_does_not_reply_ends_the_command(cluster: FakeCluster) -> None:
    cluster.failed[0] = 0.0
    error = run("--once").exception
    assert isinstance(error, Failure)
    assert error.step == "check the node: hoplite status"


def test_the_display_needs_a_terminal_and_its_extra(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    error = run().exception
    assert isinstance(error, Failure)
    assert (str(error), error.step) == ("the standard output is not a terminal", "hoplite top --once")
    monkeypatch.setattr(command, "is_terminal", lambda: True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "textual"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "hoplite.tools.top.app", raising=False)
    monkeypatch.setitem(sys.modules, "textual", None)
    error = run().exception
    assert isinstance(error, Failure)
    assert str(error) == "the display needs textual, which is not installed"
    assert "pip install 'textual" in error.step
    del cluster


def test_the_page_shows_a_snapshot(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    page = (Path(__file__).parent.parent / "docs" / "top.md").read_text()
    command._print(seen(FakeCluster(4), 0.0, 0.7))
    assert page.partition("```text\n")[2].partition("```")[0] in capsys.readouterr().out
    monkeypatch.undo()
    time.tzset()
    del cluster


def test_help_of_the_command_is_one_screen() -> None:
    text = run("--help").stdout
    assert len(text.splitlines()) < 24
    assert isinstance(command.top, click.Command)
