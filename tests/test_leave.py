"""Nodes that leave while they work for others: they finish the work first, and no other node restarts anything."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hoplite
from hoplite import testing
from programs import go, line, started
from support import SOON, Later, eventually, same

if TYPE_CHECKING:
    from collections.abc import Iterator

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


# Holds the only copy of embedded/1. What precedes and follows the start of the node are parameters.
PROGRAM = """
import os, signal, sys, threading, time
import hoplite
{before}
def start():
    global hp
    hp = hoplite.{start}
{main}
hp.put(b"x" * 1_000_000, name="embedded/1")
print("ready", flush=True)
{wait}
"""

STARTS = {
    "init": "init(sys.argv[1])",
    "Node": "Node(join=[sys.argv[1]], capacity='64MiB').client()",
}

WAITS = {
    "sleep": "time.sleep(1000)",
    "get": "hp.get('never/1')",
    "thread": "threading.Thread(target=time.sleep, args=(1000,)).start()",
    "asyncio": "import asyncio; asyncio.run(hp.get_async('never/1'))",
}


@contextlib.contextmanager
def embedded(
    node: hoplite.Node, *, before: str = "", start: str = STARTS["init"], main: str = "start()", wait: str = "input()"
) -> Iterator[subprocess.Popen[str]]:
    """Runs a program with an embedded node that holds the only copy of embedded/1."""
    with started(PROGRAM.format(before=before, start=start, main=main, wait=wait), node.address) as program:
        assert line(program) == "ready"
        yield program


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_an_embedded_node_hands_over_before_a_signal_ends_its_program(start: str, number: signal.Signals) -> None:
    with testing.cluster(1, capacity="64MiB") as (node,), embedded(node, start=start) as program:
        program.send_signal(number)
        assert program.wait(SOON) == -number
        assert len(node.client().get("embedded/1", timeout=SOON)) == 1_000_000


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_the_signal_is_noticed_wherever_the_main_thread_waits(wait: str) -> None:
    with testing.cluster(1, capacity="64MiB") as (node,), embedded(node, wait=wait) as program:
        program.send_signal(signal.SIGTERM)
        assert program.wait(SOON) == -signal.SIGTERM
        assert len(node.client().get("embedded/1", timeout=SOON)) == 1_000_000


@pytest.mark.faults("a program ends while its node hands objects over")
def test_a_second_signal_ends_a_program_whose_node_still_hands_over() -> None:
    """The store of the other node is full, so the hand-over would take all of `leave_timeout`."""
    with testing.cluster(1, capacity="8MiB") as (node,):
        node.client().put(b"x" * (7 * MIB))
        before = "os.environ['HOPLITE_LEAVE_TIMEOUT'] = '600'"
        with embedded(
            node, before=before, wait="hp.put(b'y' * 4_000_000); print('full', flush=True); input()"
        ) as program:
            assert line(program) == "full"
            program.send_signal(signal.SIGTERM)
            eventually(lambda: not _catches(program.pid, signal.SIGTERM))
            program.send_signal(signal.SIGTERM)
            assert program.wait(SOON) == -signal.SIGTERM


# Handlers of SIGTERM that a program sets itself.
OWN = {
    "a handler": "signal.signal(signal.SIGTERM, lambda *_: print('mine', flush=True))",
    "a handler of native code": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: os.write(1, b'mine\\n'))
libc.signal(signal.SIGTERM, handler)
""",
}


@pytest.mark.parametrize("before", OWN.values(), ids=OWN)
def test_a_handler_of_the_program_is_not_replaced(before: str) -> None:
    with testing.cluster(1, capacity="64MiB") as (node,), embedded(node, before=before) as program:
        program.send_signal(signal.SIGTERM)
        assert line(program) == "mine"
        go(program)
        assert program.wait(SOON) == 0
        assert len(node.client().get("embedded/1", timeout=SOON)) == 1_000_000


def test_an_ignored_signal_stays_ignored() -> None:
    """As SIGHUP under nohup."""
    before = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    wait = "os.kill(os.getpid(), signal.SIGHUP); print('alive', flush=True); input()"
    with testing.cluster(1) as (node,), embedded(node, before=before, wait=wait) as program:
        assert line(program) == "alive"


def test_a_handler_that_the_program_sets_later_replaces_that_of_the_node() -> None:
    wait = OWN["a handler"] + "; print('set', flush=True); input()"
    with testing.cluster(1) as (node,), embedded(node, wait=wait) as program:
        assert line(program) == "set"
        program.send_signal(signal.SIGTERM)
        assert line(program) == "mine"


def test_a_node_that_another_thread_starts_sets_no_handler() -> None:
    main = "thread = threading.Thread(target=start); thread.start(); thread.join()"
    wait = "print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, flush=True)"
    with testing.cluster(1) as (node,), embedded(node, main=main, wait=wait) as program:
        assert line(program) == "True"
        assert program.wait(SOON) == 0


def test_a_forked_child_has_the_default_handler() -> None:
    """So a signal ends it immediately, and the parent's node stays."""
    wait = """
child = os.fork()
if child == 0:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    time.sleep(1000)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), hp.node.closed, flush=True)
input()
"""
    with testing.cluster(1) as (node,), embedded(node, wait=wait) as program:
        assert line(program) == f"{-signal.SIGTERM} False"


@pytest.mark.parametrize("start", ["terminal", "nohup"])
def test_a_node_leaves_when_its_terminal_is_closed_unless_nohup_started_it(start: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hoplite.tools.cli", "node", "--listen", "127.0.0.1:0", "--log-level", "info"]
    with testing.cluster(1, capacity="64MiB") as (node,):
        socket = str(tmp_path / "node.sock")
        ours, theirs = pty.openpty()
        program = subprocess.Popen(
            [*(["nohup"] if start == "nohup" else []), *command, "--join", node.address, "--socket", socket],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            cwd=tmp_path,
        )
        os.close(theirs)
        try:
            with hoplite.connect(socket, timeout=SOON) as client:
                client.put(b"x" * 1_000_000, name="embedded/1")
                if start == "terminal":
                    _read_until(ours, b"ready:")
                os.close(ours)
                if start == "nohup":
                    os.kill(program.pid, signal.SIGHUP)
                    assert client.status()["id"]
                else:
                    assert program.wait(SOON) == 0
                    assert len(node.client().get("embedded/1", timeout=SOON)) == 1_000_000
        finally:
            program.kill()
            program.wait()


def _read_until(terminal: int, text: bytes) -> None:
    shown = b""
    while text not in shown:
        assert select.select([terminal], [], [], SOON)[0], shown
        shown += os.read(terminal, 4096)


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of a signal."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(fields["SigCgt"], 16) >> (number - 1) & 1)


def _accepts_clients(node: testing.NodeProcess) -> bool:
    """Returns whether the node accepts a new client."""
    with contextlib.suppress(Exception), node.client():
        return True
    return False
