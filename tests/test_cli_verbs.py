"""`hoplite latest`, `wait`, `reduce`, `objects --all`, `status --watch`: results on stdout, messages on stderr."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from commands import COMMAND, run
from hoplite import Client, Node, testing
from support import SOON, Later, eventually, numbers, same

if TYPE_CHECKING:
    from pathlib import Path


def run_json(*arguments: str) -> Any:  # noqa: ANN401 - any JSON
    return json.loads(run(*arguments, "--json").stdout)


# latest


def test_latest_prints_the_newest_ref(client: Client) -> None:
    for number in (1, 2, 10):
        client.put(b"x", name=f"policy/{number}")
    assert run("latest", "policy/").stdout == "policy/10\n"
    assert run_json("latest", "policy/", "--after", "2") == {"ref": "policy/10", "number": 10}
    late = run("latest", "policy/", "--after", "10", "--timeout", "0", code=1)
    assert late.stdout == ""
    assert "newer than 10" in late.stderr
    assert late.stderr.endswith("hoplite objects --all policy/\n")
    assert "policy/" in run("latest", "policy", "--timeout", "0", code=1).stderr


def test_latest_reports_that_it_waits(client: Client) -> None:
    with subprocess.Popen(
        [*COMMAND, "latest", "late/"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as one:
        try:
            assert one.stderr is not None
            assert one.stderr.readline() == "waiting for a name under late/; press Ctrl-C to stop\n"
            client.put(b"x", name="late/7")
            assert one.communicate(timeout=SOON)[0] == "late/7\n"
        finally:
            one.kill()


# wait


def test_wait_prints_the_available_objects(client: Client) -> None:
    client.put(b"x", name="part/2")
    client.put(b"x", name="part/3")
    assert sorted(run("wait", "part/2", "part/3").stdout.split()) == ["part/2", "part/3"]
    assert run_json("wait", "part/1", "part/3", "--count", "1") == {"ready": ["part/3"], "rest": ["part/1"]}
    late = run("wait", "part/1", "part/2", "--timeout", "0.1", code=1)
    assert late.stdout == "part/2\n"
    assert "1 of 2 objects were ready within 0.1 s; missing: part/1" in late.stderr
    assert "3" in run("wait", "part/1", "--count", "3", code=1).stderr


def test_wait_runs_until_enough_objects_are_available(client: Client) -> None:
    command = [*COMMAND, "wait", "late/1", "late/2", "--count", "1", "--timeout", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        try:
            assert one.stderr is not None
            # The first line, or on a busy machine the second.
            assert re.match("waiting for 1 (more )?of 2 objects", one.stderr.readline())
            client.put(b"x", name="late/2")
            assert one.communicate(timeout=SOON)[0] == "late/2\n"
        finally:
            one.kill()


# reduce


def test_reduce_prints_the_ref_of_an_available_result(client: Client) -> None:
    for number in range(3):
        client.put(np.full(10_000, number + 1), name=f"grad/{number}")
    assert run("reduce", "grad/0", "grad/1", "grad/2", "--name", "sum/1").stdout == "sum/1\n"
    same(client.get("sum/1", timeout=0), np.full(10_000, 6))
    first = run_json("reduce", "grad/0", "none/1", "grad/2", "--count", "2", "--op", "max")
    assert sorted(first["inputs"]) == ["grad/0", "grad/2"]
    same(client.get(first["ref"], timeout=0), np.full(10_000, 3))


def test_a_failed_reduce_reports_why(client: Client) -> None:
    client.put(np.array([True]), name="seen/1")
    client.put(np.zeros(2), name="zero/1")
    client.put(np.zeros(3), name="zero/2")
    sums = run("reduce", "seen/1", code=1)
    assert sums.stdout == ""
    assert 'op="any"' in sums.stderr
    shapes = run("reduce", "zero/1", "zero/2", code=1).stderr
    assert "zero/1" in shapes
    assert shapes.endswith("try: compare dtypes and shapes: hoplite objects --all\n")
    assert "missing/1" in run("reduce", "zero/1", "missing/1", "--timeout", "0.2", code=1).stderr
    run("reduce", "zero/1", "--op", "avg", code=2)


# objects


def test_the_cluster_listing_has_each_object_once(nodes: list[Node]) -> None:
    clients = [node.client() for node in nodes]
    clients[0].put(numbers((300, 200)), name="policy/1")
    clients[1].put(numbers((), "int64"), name="policy/2")
    clients[2].put(b"x" * 100_000, name="other/1")
    clients[2].get("policy/1", timeout=SOON)
    minted = str(clients[1].put({"a": 1}))
    at = ("--socket", nodes[0].socket)
    eventually(lambda: [row["copies"] for row in run_json("objects", "--all", "policy/1", *at)] == [2])
    rows = run_json("objects", "--all", *at)
    assert [row["ref"] for row in rows] == sorted(["other/1", "policy/1", "policy/2", minted])
    found = {row["ref"]: row for row in rows}
    assert (found["policy/1"]["dtype"], found["policy/1"]["shape"]) == ("float32", [300, 200])
    assert (found["other/1"]["dtype"], found["other/1"]["bytes"]) == (None, 100_000)
    lines = run("objects", "--all", "policy/", *at).stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["ref", "size", "age", "copies", "owner", "job", "ttl", "dtype", "shape"],
        ["policy/1", "234.4", "KiB", *lines[1].split()[3:8], "float32", "300", "x", "200"],
        ["policy/2", "8", "B", *lines[2].split()[3:8], "int64", "scalar"],
    ]
    assert lines[1].split()[4] == "2"
    assert "pickle" in run("objects", "--all", minted, *at).stdout
    assert [row["ref"] for row in run_json("objects", "other/", "--socket", nodes[2].socket)] == ["other/1"]


@pytest.mark.timeout(120)
def test_a_listing_of_many_pages_is_complete(nodes: list[Node]) -> None:
    client = nodes[0].client()
    expected = sorted(f"many/{number}" for number in range(2500))
    for name in expected:
        client.put(b"x", name=name)
    rows = nodes[1].client().directory("many/", timeout=SOON)
    assert [row["ref"] for row in rows] == expected


@pytest.mark.faults("a node is killed")
def test_a_listing_continues_when_a_member_fails() -> None:
    with testing.cluster(2) as nodes, testing.node_process("--join", nodes[0].address) as third:
        testing.wait_for_members(nodes, 3)
        client = nodes[0].client()
        client.put(numbers(100_000), name="policy/1")
        os.kill(third.process.pid, signal.SIGSTOP)
        listing = Later(client.directory, "policy/", timeout=SOON)
        third.process.kill()
        assert [row["ref"] for row in listing.result()] == ["policy/1"]


def test_a_listing_is_cut_and_continued(nodes: list[Node]) -> None:
    """Names and ids of three owners, in parts of each size: each object once, in order."""
    clients = [node.client() for node in nodes]
    for number in range(20):
        clients[number % 3].put(b"x" * (number + 1), name=f"part/{number}" if number % 2 else None)
    every = [row["ref"] for row in clients[0].directory(timeout=SOON)]
    assert len(every) == 20
    for size in (1, 7, 19, 20, 100):
        found: list[str] = []
        while part := clients[1].directory(limit=size, after=found[-1] if found else None, timeout=SOON):
            found += [row["ref"] for row in part]
        assert found == every
    largest = clients[2].directory("part/", sort="bytes", limit=2, timeout=SOON)
    assert [row["ref"] for row in largest] == ["part/19", "part/17"]
    wrong: list[dict[str, Any]] = [
        {"sort": "size"}, {"limit": 0}, {"sort": "age", "after": "part/1"}, {"prefix": 7}, {"prefix": b"part/"}
    ]  # fmt: skip
    for arguments in wrong:
        with pytest.raises(hoplite.InvalidArgument):
            clients[0].directory(**arguments)


# status


def test_status_watch_runs_until_ctrl_c(client: Client) -> None:
    command = [*COMMAND, "status", "--watch", "--interval", "0.1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        try:
            assert one.stdout is not None
            assert json.loads(one.stdout.readline())["objects"] == 0
            client.put(b"x", name="policy/1")
            eventually(lambda: json.loads(one.stdout.readline())["objects"] == 1)  # type: ignore[union-attr]
            one.send_signal(signal.SIGINT)
            # A newline after the ^C of the terminal.
            assert one.communicate(timeout=SOON)[1].strip() == ""
            assert one.returncode == 130
        finally:
            one.kill()


def test_put_creates_a_replica_on_another_node(nodes: list[Node], tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 100_000)
    run("put", str(tmp_path / "in"), "--name", "kept/1", "--replicas", "2", "--socket", nodes[0].socket)
    holders = nodes[2].client().locations("kept/1", timeout=SOON)
    assert [holder.complete for holder in holders] == [True, True]
    assert run("put", "x", "--replicas", "0", code=2).stdout == ""
