"""Nodes that leave while they work for others: they finish the work first, and no other node restarts anything."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hoplite
from hoplite import testing
from support import SOON, Later, eventually, same

MIB = 1 << 20
COUNT = 4 * MIB


def test_a_leaving_node_finishes_its_folds() -> None:
    """It leaves before an input is written. The input is written then, and nothing of the sum is folded twice."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(testing.node_process("--capacity", "256MiB"))]
        for _ in range(4):
            options = ("--capacity", "256MiB", "--join", nodes[0].address)
            nodes.append(stack.enter_context(testing.node_process(*options)))
        clients = [stack.enter_context(node.client()) for node in nodes]
        eventually(lambda: all(len(client.status()["members"]) == 5 for client in clients))
        values = [np.arange(COUNT, dtype=np.int64) * (number + 1) for number in range(4)]
        for number in range(1, 4):
            clients[number].put(values[number], name=f"input/{number}")
        result = clients[0].reduce([f"input/{number}" for number in range(1, 4)] + ["input/late"], op="sum")
        late = clients[4].create(COUNT, np.int64, name="input/late")
        leaver, folded = nodes[2], "bytes_folded_remote"
        eventually(lambda: any(client.status()["counters"][folded] > 0 for client in clients))
        leaver.process.send_signal(signal.SIGTERM)
        # It has announced the leave by the time it rejects its own clients.
        eventually(lambda: not _accepts_clients(leaver))
        assert leaver.process.poll() is None, "an input is not sealed, so the node must still fold its part"
        late[...] = values[0]
        late.seal()
        same(clients[0].get(result, timeout=SOON), sum(values[1:], start=values[0]))
        assert leaver.process.wait(SOON) == 0
        for number in (0, 1, 3, 4):
            assert clients[number].status()["counters"]["reduces_restarted"] == 0
        # Objects that only the leaving node held are on another node.
        same(clients[1].get("input/2", timeout=SOON), values[2])


@pytest.mark.faults("a node leaves with a fold that can't end in time: the reduce restarts without it")
def test_a_leave_ends_in_time_although_a_fold_does_not() -> None:
    with testing.cluster(3, capacity="256MiB") as nodes:
        clients = [node.client() for node in nodes]
        values = [np.full(COUNT, number + 1, np.int64) for number in range(3)]
        names = [f"input/{number}" for number in range(1, 3)]
        for number in range(1, 3):
            clients[number].put(values[number], name=f"input/{number}")
        result = clients[0].reduce([*names, "input/late"], op="sum")
        late = clients[0].create(COUNT, np.int64, name="input/late")
        eventually(lambda: any(client.status()["counters"]["bytes_folded_remote"] > 0 for client in clients))
        left = Later(nodes[2].close, 1.0)
        left.result()
        late[...] = values[0]
        late.seal()
        same(clients[0].get(result, timeout=SOON), sum(values[1:], start=values[0]))


@pytest.mark.faults("a node leaves that holds more than fits on the others")
def test_objects_that_fit_on_no_other_node_are_named() -> None:
    """The log, the exit status and the errors of gets name them. Objects that fit elsewhere, and small ones, remain."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(testing.node_process("--capacity", "8MiB"))
        options = ("--capacity", "64MiB", "--join", first.address, "--leave-timeout", "3", "--log-level", "warn")
        leaver = stack.enter_context(testing.node_process(*options))
        client, gone = stack.enter_context(first.client()), leaver.client()
        eventually(lambda: len(client.status()["members"]) == 2)
        refs = [str(gone.put(np.zeros(3 * MIB, np.uint8), name=f"large/{number}")) for number in range(4)]
        small = gone.put(b"small", name="small/1")
        leaver.process.send_signal(signal.SIGTERM)
        assert leaver.process.wait(SOON) == 1
        log = Path(leaver.socket).with_name("stderr").read_text()
        eventually(lambda: len(client.status()["members"]) == 1)
        kept = []
        for ref in refs:
            if ref in log:
                with pytest.raises(hoplite.ObjectLost, match="no other node had capacity"):
                    client.get(ref, timeout=SOON)
            else:
                client.get(ref, timeout=SOON)
                kept.append(ref)
        assert len(kept) == 2, "two of four must fit"
        assert "count=2" in log
        assert bytes(client.get(small, timeout=SOON)) == b"small"
        client.put(b"again", name=next(ref for ref in refs if ref not in kept))


def test_the_last_node_leaves_without_an_error() -> None:
    with testing.node_process("--capacity", "8MiB") as node, node.client() as client:
        client.put(b"x" * MIB)
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(SOON) == 0


EMBEDDED = """
import sys, threading, time
import hoplite
node = hoplite.Node(join=[sys.argv[1]], listen="127.0.0.1:0", capacity="64MiB", socket=sys.argv[2])
client = node.client()
began = threading.Event()
def keep(node):
    began.set()
    time.sleep(1000)
threading.Thread(target=keep, args=(node,), daemon=True).start()
began.wait()
client.put(b"x" * 1_000_000, name="embedded/1")
del node, client
"""


def test_a_node_of_a_daemon_thread_hands_over_at_the_end_of_its_process(tmp_path: Path) -> None:
    with testing.cluster(1, capacity="64MiB") as (node,):
        arguments = [sys.executable, "-c", EMBEDDED, node.address, str(tmp_path / "embedded.sock")]
        subprocess.run(arguments, check=True, timeout=2 * SOON)
        assert len(node.client().get("embedded/1", timeout=SOON)) == 1_000_000


def _accepts_clients(node: testing.NodeProcess) -> bool:
    """Returns whether the node accepts a new client."""
    with contextlib.suppress(Exception), node.client():
        return True
    return False
