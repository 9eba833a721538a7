"""`hoplite story`, `trace` and `doctor` on real clusters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from commands import COMMAND, run
from hoplite import testing
from support import SOON, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hoplite import Node

MIB = 1 << 20


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    with testing.cluster(3) as nodes:
        yield nodes


def tell(node: Node, ref: object, *options: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run("story", ref, "--json", "--socket", node.socket, *options).stdout)
    return told


def spread(nodes: list[Node], ref: str) -> None:
    """Puts an object at the first node and gets it at the others, one after the other."""
    with ExitStack() as stack:
        first, *others = [stack.enter_context(node.client()) for node in nodes]
        first.put(np.zeros(MIB, np.uint8), name=ref)
        for client in others:
            client.get(ref, timeout=SOON)


def test_the_story_of_a_broadcast_names_every_source(nodes: list[Node]) -> None:
    spread(nodes, "weights/1")
    # Any node can be asked.
    told = tell(nodes[2], "weights/1")
    fetched = [event for event in told["events"] if event["kind"] == "fetched"]
    assert {event["recorder"] for event in fetched} == {node.id for node in nodes[1:]}
    assert all(event["bytes"] == MIB for event in fetched)
    assert told["events"][0]["text"] == "began to write 1.0 MiB"
    assert [tree["root"] for tree in told["trees"]] == [nodes[0].address]
    assert told["notes"] == []
    printed = run("story", "weights/1", "--socket", nodes[1].socket).stdout
    assert f"{nodes[0].address}  began to write 1.0 MiB" in printed
    assert "broadcast:\n" in printed


def test_the_story_of_a_reduce_has_its_inputs_and_its_tree(nodes: list[Node]) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(node.client()) for node in nodes]
        inputs = [
            client.put(np.full(MIB, number, np.float32), name=f"grads/{number}")
            for number, client in enumerate(clients)
        ]
        result = clients[0].reduce([str(one) for one in inputs], name="sums/1")
        assert clients[0].get(result, timeout=SOON)[0] == 3
    told = tell(nodes[1], "sums/1")
    texts = [event["text"] for event in told["events"]]
    assert {text.split(":")[0] for text in texts if text.startswith("input")} == {
        f"input grads/{number}" for number in range(3)
    }
    assert "began to sum 3 of 3 inputs" in texts
    assert {event["kind"] for event in told["events"]} >= {"degree", "fold", "folded", "reduced"}
    (tree,) = told["trees"]
    assert tree["root"] == nodes[0].address
    assert {tree["root"], *(child for below in tree["children"].values() for child in below)} == {
        node.address for node in nodes
    }


def test_a_deleted_object_still_has_its_story(nodes: list[Node]) -> None:
    spread(nodes, "weights/1")
    with nodes[1].client() as client:
        client.delete("weights/1")
    assert "deleted the object" in [event["text"] for event in tell(nodes[0], "weights/1")["events"]]


def test_an_unknown_ref_is_an_error(nodes: list[Node]) -> None:
    spread(nodes, "weights/1")
    done = run("story", "weigths/1", "--socket", nodes[0].socket, code=1)
    assert "no node has an object or events of weigths/1 (did you mean weights/1?)" in done.stderr
    assert "try: list the objects: hoplite objects --all" in done.stderr


def test_a_node_that_was_killed_is_a_note() -> None:
    with testing.node_process() as first, testing.node_process("--join", first.address) as second:
        with first.client() as client, second.client() as other:
            client.put(np.zeros(MIB, np.uint8), name="weights/1")
            other.get("weights/1", timeout=SOON)
        second.process.kill()
        second.process.wait()
        with first.client() as client:
            eventually(lambda: len(client.status()["members"]) == 1)
        printed = run("story", "weights/1", "--socket", first.socket).stdout
        # Its reads are not lost: the sender records them too.
        assert f"began to send to {second.address}" in printed
        assert f"note: {second.address} did not report: failed" in printed


def test_a_frozen_node_does_not_block_the_story() -> None:
    with (
        testing.node_process("--detection-timeout", "60") as first,
        testing.node_process("--detection-timeout", "60", "--join", first.address) as second,
    ):
        with first.client() as client:
            client.put(b"weights", name="weights/1")
        second.process.send_signal(signal.SIGSTOP)
        try:
            told = json.loads(run("story", "weights/1", "--json", "--socket", first.socket).stdout)
        finally:
            second.process.send_signal(signal.SIGCONT)
        assert [event["kind"] for event in told["events"]] == ["put"]
        (note,) = told["notes"]
        assert note.startswith(f"{second.address} did not report: ")


def test_a_trace_has_the_transfers_of_all_nodes(nodes: list[Node], tmp_path: Path) -> None:
    spread(nodes, "weights/1")
    out = tmp_path / "trace.json"
    done = run("trace", "--last", "60", "--out", out, "--socket", nodes[0].socket)
    assert "spans of 3 nodes" in done.stderr
    rows = json.loads(out.read_text())["traceEvents"]
    assert sum(row["name"] == "receive weights/1" for row in rows) == 2
    assert sum(row["ph"] == "f" for row in rows) == 2


def test_ctrl_c_ends_a_recording_and_writes_it(nodes: list[Node], tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    process = subprocess.Popen(
        [*COMMAND, "trace", "--seconds", "3600", "--out", out, "--socket", nodes[0].socket],
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        # The first sign of life: it records now.
        assert "recording; press Ctrl-C to end" in process.stderr.readline()
        spread(nodes, "weights/1")
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=SOON)
    assert process.returncode == 0
    rows = json.loads(out.read_text())["traceEvents"]
    assert sum(row["name"] == "receive weights/1" for row in rows) == 2


def test_doctor_finds_no_problem_in_a_good_cluster(nodes: list[Node]) -> None:
    found = json.loads(run("doctor", "--json", "--socket", nodes[0].socket, "--peer", nodes[1].address).stdout)
    levels = {finding["check"]: finding["level"] for finding in found}
    of_cluster = ("members", "versions", "clocks", "reachability", "rate", "peer")
    assert {check: levels[check] for check in of_cluster} == dict.fromkeys(of_cluster, "ok")
    (rate,) = [finding for finding in found if finding["check"] == "rate"]
    assert "bit/s to 127.0.0.1:" in rate["text"]
    with nodes[0].client() as client:
        assert client.directory() == []


def test_doctor_without_another_node_or_rate_states_it() -> None:
    with testing.cluster(1) as (node,):
        found = json.loads(run("doctor", "--json", "--socket", node.socket).stdout)
        (rate,) = [finding for finding in found if finding["check"] == "rate"]
        assert (rate["level"], rate["text"]) == ("unchecked", "only one node is in the cluster")
        found = json.loads(run("doctor", "--json", "--no-rate", "--socket", node.socket).stdout)
        assert [finding["text"] for finding in found if finding["check"] == "rate"] == ["--no-rate was given"]
