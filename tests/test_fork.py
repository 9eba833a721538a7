"""Forked children of a process that uses Hoplite: what they inherit works or names the fix; the parent is unaffected.

Each test runs a script in a separate process, so that no fork copies the threads of pytest.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import hoplite
import programs
from hoplite import Node, testing
from programs import descriptors, go, kill, line, started
from support import SOON, eventually, numbers, same

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """
import contextlib, multiprocessing, os, signal, sys, threading, time, traceback
import numpy as np
import hoplite
from hoplite import Node, session, testing

def fork(work):
    # The child runs `work` and ends silently, or with its error and the code 1.
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)

# Timeout in seconds; it is not a performance assertion.
LIMIT = 30

def join(pid, limit=LIMIT):
    until = time.monotonic() + limit
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise SystemExit("the child hangs")
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(ended[1])
    if code:
        raise SystemExit(f"the child ended with {code}")

def eventually(what, limit=LIMIT):
    until = time.monotonic() + limit
    while not what():
        if time.monotonic() > until:
            raise SystemExit(f"not so after {limit} s")
        time.sleep(0.01)

@contextlib.contextmanager
def attached(capacity="1GiB", how=sys.argv[1] if sys.argv[1:] else ""):
    with testing.cluster(2, capacity=capacity) as nodes:
        node = nodes[0]
        yield node.client() if how == "embedded" else hoplite.connect(node.socket), node, nodes[1]

"""

# With a pinned object of 24 MiB, a store of 64 MiB has capacity for four of 8 MiB.
FILLING = """
def fill(client, seed):
    refs = [client.put(pattern(seed + number, 8 << 20), timeout=LIMIT) for number in range(4)]
    try:
        client.put(pattern(0, 8 << 20), timeout=0)
    except hoplite.StoreFull:
        return refs
    raise AssertionError("the memory of the pinned object is used again")

def pattern(seed, size=24 << 20):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)
"""

BOTH = pytest.mark.parametrize("how", ["embedded", "attached"])


def run(script: str, *arguments: str, limit: float = SOON) -> None:
    """Runs a script after the code in HEAD to completion. It must succeed and print nothing to standard error."""
    programs.run(HEAD + script, *arguments, limit=limit)


@pytest.mark.parametrize(("how", "first"), [("embedded", "get"), ("attached", "put"), ("embedded", "status")])
def test_a_child_attaches_with_its_first_call(how: str, first: str) -> None:
    """The child attaches to its parent's node, and the parent's client keeps working. So does a grandchild."""
    run(
        """
with attached() as (hp, node, _):
    ref = hp.put(np.arange(100_000))
    def use(name):
        if sys.argv[2] == "get":
            assert hp.get(ref, timeout=LIMIT)[-1] == 99_999
        if sys.argv[2] == "put":
            hp.put(np.ones(50_000), name=name + "/first")
        assert hp.status()["id"] == node.id
        assert hp.node is None
        hp.put(np.full(100_000, len(name)), name=name)
        assert hp.get([name, ref], timeout=LIMIT)[0][0] == len(name)
        total = hp.reduce([ref, name])
        assert hp.get(total, timeout=LIMIT)[-1] == 99_999 + len(name)
        assert set(total.inputs(timeout=LIMIT)) == {ref, hoplite.Ref(name)}
    def child():
        use("child")
        join(fork(lambda: use("grandchild")))
        use("again")
    join(fork(child))
    assert (hp.node is node) == (sys.argv[1] == "embedded")
    assert hp.get("child", timeout=LIMIT)[0] == 5 and hp.get("grandchild", timeout=LIMIT)[0] == 10
    hp.delete([ref, "child", "grandchild", "again", "child/first", "grandchild/first", "again/first"])
    assert hp.get(hp.put(np.ones(100_000)))[0] == 1
""",
        how,
        first,
    )


@pytest.mark.parametrize("how", ["embedded", "attached"])
def test_the_default_client_works_in_the_child(how: str) -> None:
    run(
        """
if sys.argv[1] == "attached":
    node = Node()
hp = hoplite.init()
home = hp.status()["id"]
ref = hoplite.client().put(np.arange(100_000))
def child():
    assert hoplite.client().get(ref, timeout=LIMIT)[-1] == 99_999
    assert hoplite.client().status()["id"] == home
    hoplite.client().put(np.ones(100_000), name="of/child")
    # The parent's variable hp works too.
    assert hp.get("of/child", timeout=LIMIT)[0] == 1
join(fork(child))
assert hoplite.client().get("of/child", timeout=LIMIT)[0] == 1
assert hoplite.client().get(ref, timeout=LIMIT)[-1] == 99_999
""",
        how,
    )


@pytest.mark.parametrize(("how", "why"), [("embedded", "path taken"), ("attached", "node closed")])
def test_a_child_that_can_not_reach_the_node_gets_an_error_with_the_fix(how: str, why: str) -> None:
    run(
        """
hp = hoplite.init(node=hoplite.Node())
path = hp.node.socket
other = hoplite.connect(path) if sys.argv[1] == "attached" else hp
def child():
    sys.stdin.read(1)
    shared = lambda: hoplite.client().put(b"x")
    for call in (lambda: other.get("a/1", timeout=5), lambda: other.put(b"x"), other.status, shared):
        try:
            call()
        except hoplite.ForkedClient as error:
            assert "fork" in str(error) and "init(" in str(error), str(error)
        else:
            raise AssertionError("no error")
    # The suggested fix works once the path is free.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    own = hoplite.init(node=hoplite.Node())
    assert own.get(own.put(b"x")) == b"x"
    session.shutdown()
read, write = os.pipe()
os.dup2(read, 0)
pid = fork(child)
if sys.argv[2] == "path taken":
    # By a regular file: the node does not replace it, although it would recreate a removed socket.
    with open(path + ".other", "w"):
        pass
    os.replace(path + ".other", path)
else:
    hp.node.close(5)
os.write(write, b"x")
join(pid)
if sys.argv[2] == "path taken":
    assert hp.get(hp.put(b"x")) == b"x"
""",
        how,
        why,
    )


@pytest.mark.parametrize(("how", "source"), [("embedded", "far"), ("attached", "own")])
def test_a_view_stays_valid_in_child_and_grandchild(how: str, source: str) -> None:
    """The parent drops its view, deletes the object and fills the store.

    The memory is freed when the last process has ended.
    """
    run(
        FILLING
        + """
with attached("64MiB") as (hp, node, far):
    by = hp if sys.argv[2] == "own" else far.client()
    ref = by.put(pattern(7))
    view = hp.get(ref, timeout=LIMIT)
    small = hp.get(hp.put(b"s" * 100_000, name="small/1"))
    step = [os.pipe() for _ in range(3)]
    expected = pattern(7)
    def signal_step(number):
        os.write(step[number][1], b"x")
    def wait_for_step(number):
        assert os.read(step[number][0], 1) == b"x"
    def grandchild():
        wait_for_step(1)
        assert np.array_equal(view, expected)
        wait_for_step(2)
        assert np.array_equal(view, expected)
        assert small == b"s" * 100_000
    def child():
        # This child ends before its own child.
        pid = fork(grandchild)
        wait_for_step(0)
        assert np.array_equal(view, expected)
    pid = fork(child)
    del view, small
    hp.delete([ref, "small/1"])
    hp.delete(fill(hp, 1))
    signal_step(0)
    join(pid)
    hp.delete(fill(hp, 2))
    signal_step(1)
    hp.delete(fill(hp, 3))
    signal_step(2)
    # This process can't wait for the grandchild. Once it has ended, the whole capacity is free.
    eventually(lambda: hp.status()["store"]["used"] == 0 and hp.objects() == [])
    hp.delete(hp.put(pattern(4, 56 << 20), timeout=LIMIT))
    by.close()
""",
        how,
        source,
    )


@BOTH
def test_a_view_of_a_closed_client_stays_valid_in_the_child(how: str) -> None:
    run(
        FILLING
        + """
with attached("64MiB") as (hp, node, far):
    other = node.client()
    ref = other.put(np.full(24 << 20, 7, np.uint8))
    view = hp.get(ref, timeout=LIMIT)
    hp.close()
    filled = os.pipe()
    def child():
        assert os.read(filled[0], 1) == b"x"
        assert (view == 7).all()
    pid = fork(child)
    del view
    other.delete(ref)
    fill(other, 1)
    os.write(filled[1], b"x")
    join(pid)
""",
        how,
    )


def test_a_view_of_a_client_with_a_capability_stays_valid_until_it_is_dropped() -> None:
    """The copy is freed once parent and child have dropped it, before the node ends."""
    run(
        """
from hoplite.capabilities import grant
token = hoplite.new_token()
with Node(listen="127.0.0.1:0", token=token) as node:
    hp = hoplite.connect(node.socket, capability=grant(token, "a/"))
    ref = hp.put(np.full(1 << 20, 7, np.uint8), name="a/1")
    view, other = hp.get(ref, timeout=LIMIT), hp.get(hp.put(np.full(1 << 20, 8, np.uint8)), timeout=LIMIT)
    step = os.pipe()
    def child():
        assert os.read(step[0], 1) == b"x"
        assert (view == 7).all()
    pid = fork(child)
    del view
    # After this request the node has processed the release.
    hp.status()
    os.write(step[1], b"x")
    join(pid)
    hp.close()
    del hp
    with hoplite.connect(node.socket) as full:
        full.status()
    assert (other == 8).all()
assert (other == 8).all()
"""
    )


def test_a_view_that_only_the_child_drops_stays_valid_in_the_parent() -> None:
    """The end of the child, or its garbage collection, releases nothing of the parent."""
    for how in ("embedded", "attached"):
        run(
            FILLING
            + """
import gc
with attached("64MiB") as (hp, node, far):
    expected = pattern(7)
    view = hp.get(far.client().put(expected, name="a/1") and "a/1", timeout=LIMIT)
    def child():
        global view
        del view
        gc.collect()
        hp.status()
        gc.collect()
    join(fork(child))
    hp.delete("a/1")
    fill(hp, 1)
    assert np.array_equal(view, expected)
""",
            how,
        )


EMBEDS = """
address, path = sys.argv[1:]
node = Node(join=[address], socket=path)
hp = node.client()
other = hoplite.connect(path)
view = other.get(hp.put(np.ones(100_000)))
print(node.address, flush=True)
sys.stdin.readline()
child = os.fork()
if child == 0:
    time.sleep(120)
    os._exit(0)
print(child, flush=True)
sys.stdin.readline()
"""


@pytest.mark.faults("a node is killed")
def test_a_forked_child_does_not_keep_the_node_of_its_killed_parent_alive(tmp_path: Path) -> None:
    """The other nodes detect the failure, and the port and the socket are free for a new node at once."""
    path = str(tmp_path / "node.sock")
    with testing.cluster(2) as nodes, started(HEAD + EMBEDS, nodes[0].address, path) as process:
        address = line(process)
        testing.wait_for_members(nodes, 3)
        go(process)
        child = int(line(process))
        try:
            with hoplite.connect(path, reconnect=False) as client:
                assert len(client.status()["members"]) == 3
                kill(process)
                with pytest.raises(hoplite.NodeDown):
                    client.get("never/1", timeout=SOON)
            assert_alive(child)
            testing.wait_for_members(nodes, 2, timeout=SOON)
            with Node(listen=address, join=[nodes[0].address], socket=path) as node:
                ref = nodes[1].client().put(numbers(100_000))
                with hoplite.connect(path) as client:
                    same(client.get(ref, timeout=SOON), numbers(100_000))
                testing.wait_for_members([*nodes, node], 3)
            assert_alive(child)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def assert_alive(pid: int) -> None:
    os.kill(pid, 0)


@pytest.mark.parametrize(
    ("how", "size", "attaches"),
    [("embedded", 100, True), ("attached", 300_000, True), ("embedded", 300_000, False), ("attached", 100, False)],
)
def test_only_the_process_that_created_a_buffer_can_seal_it(how: str, size: int, attaches: bool) -> None:
    """The child may access, drop or discard it. The parent's object has what the parent wrote."""
    run(
        """
import gc
size, attaches = int(sys.argv[2]), sys.argv[3] == "True"
with attached() as (hp, node, far):
    buffer = hp.create(size, name="made/1")
    buffer[...] = np.arange(size)
    def child():
        global buffer
        if attaches:
            hp.status()
        for call in (buffer.seal, lambda: buffer.array):
            try:
                call()
            except hoplite.ObjectLost as error:
                assert "process that created it" in str(error), str(error)
            else:
                raise AssertionError("no error")
        buffer.discard()
        del buffer
        gc.collect()
        assert hp.wait(["made/1"], timeout=0) == ([], [hoplite.Ref("made/1")])
    join(fork(child))
    join(fork(lambda: globals().pop("buffer") and gc.collect()))
    if os.fork() == 0:
        sys.exit(0)
    assert os.wait()[1] == 0
    assert buffer.seal() == hoplite.Ref("made/1")
    assert np.array_equal(far.client().get("made/1", timeout=LIMIT), np.arange(size, dtype=np.float32))
""",
        how,
        str(size),
        str(attaches),
    )


@BOTH
def test_forks_while_other_threads_put_and_get(how: str) -> None:
    """Forty children put and get once each: none hangs, and the objects of the threads are intact."""
    run(
        """
with attached() as (hp, node, far):
    over = threading.Event()
    errors = []
    def work(number):
        try:
            while not over.is_set():
                ref = hp.put(np.full(30_000, number))
                assert (hp.get(ref, timeout=20) == number).all()
                hp.delete(ref)
                with contextlib.suppress(hoplite.Timeout):
                    hp.get("never/1", timeout=0.001)
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for number in range(40):
        def child():
            # For a large object the node allocates memory for this writer alone, which takes a while.
            ref = hp.put(np.full(20_000 if number % 10 == 0 else 2_000, number))
            assert hp.get(ref, timeout=20)[-1] == number
            hp.delete(ref)
        join(fork(child))
    over.set()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    assert not errors, errors
    eventually(lambda: hp.status()["store"]["used"] == 0)
""",
        how,
        limit=50,
    )


FIRST_USES = """
import ctypes, itertools
from hoplite import values
hp = hoplite.init(node=Node())
native, what, out = hp._native, values.encode(np.ones(1_000)), values.writable(np.empty(1_000))
calls = {
    "a put": (native.put, what, list(what.parts), None, None, LIMIT),
    "a get into an array": (native.start_get_into, "a/1", out, None, None, 0),
    "a node without settings": (type(hp.node._native), {"listen": None}),
    "a wrong type": (native.start_get, None, LIMIT),
    "a wrong list": (native.start_wait, None, 1, LIMIT),
}
# It neither runs Python code nor lets other threads run, unlike os.fork.
fork_at_once = ctypes.PyDLL(None).fork
sys.setswitchinterval(0.05)
for name, (call, *arguments) in calls.items():
    begun = False
    # The call begins after more than the switch interval, so this thread gets the interpreter when the call first
    # releases it, and keeps it for that interval.
    step = itertools.starmap(call, itertools.islice(itertools.repeat(arguments), 100_000_000, None))
    def work():
        global begun
        begun = True
        with contextlib.suppress(Exception):
            next(step)
    thread = threading.Thread(target=work)
    thread.start()
    while not begun:
        pass
    pid = fork_at_once()
    if pid == 0:
        # Handlers of this fork report that no handler ran before it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        ctypes.pythonapi.PyOS_AfterFork_Child()
        with contextlib.suppress(Exception):
            call(*arguments)
        os._exit(0)
    try:
        join(pid, 5)
    except SystemExit as end:
        raise SystemExit(f"{name}: {end}")
    thread.join(LIMIT)
"""


def test_a_thread_that_makes_the_first_call_of_its_kind_leaves_a_child_no_lock() -> None:
    """The child makes the same call, whose thread in the parent the fork interrupts when it releases the interpreter.

    A call whose first use of a name or type is unfinished then would never end in the child.
    """
    run(FIRST_USES)


@pytest.mark.parametrize(
    ("how", "uses", "end"),
    [
        *[("embedded", True, "pass"), ("embedded", False, "sys.exit(0)"), ("embedded", True, "os._exit(0)")],
        *[("attached", False, "pass"), ("attached", True, "sys.exit(0)")],
    ],
)
def test_a_child_ends_silently_and_leaves_the_node_to_its_parent(how: str, uses: bool, end: str) -> None:
    """With views, a buffer, and pending calls of other threads."""
    run(
        f"""
node = Node(listen="127.0.0.1:0")
far = Node(join=[node.address])
hp = node.client() if sys.argv[1] == "embedded" else hoplite.connect(node.socket)
view = hp.get(hp.put(np.ones(100_000)))
buffer = hp.create(100_000)
began = threading.Event()
def wait():
    began.set()
    hp.get("late/1", timeout=20)
waiting = threading.Thread(target=wait)
waiting.start()
began.wait()
pid = os.fork()
if pid == 0:
    if {uses}:
        hp.put(np.ones(100_000), name="of/child")
        mine = hp.get("of/child", timeout=LIMIT)
    {end}
else:
    join(pid)
    assert os.path.exists(node.socket)
    if {uses}:
        assert far.client().get("of/child", timeout=LIMIT)[0] == 1
    far.client().put(b"x", name="late/1")
    waiting.join(LIMIT)
    assert not waiting.is_alive()
    buffer[...] = 1
    assert far.client().get(buffer.seal(), timeout=LIMIT)[0] == 1
""",
        how,
    )


METHODS = """
import multiprocessing, os, sys
import numpy as np
import hoplite

def work(ref, name):
    hp = hoplite.init()
    value = hoplite.client().get(ref, timeout=20)
    assert ref == hoplite.Ref(str(ref))
    hp.put(value + 1, name=name)

def total(ref):
    return float(hoplite.client().get(ref, timeout=20).sum())

if __name__ == "__main__":
    how, method = sys.argv[1:]
    multiprocessing.set_start_method(method)
    if how == "attached":
        node = hoplite.Node()
    hp = hoplite.init()
    ref = hp.put(np.ones(100_000))
    view = hp.get(ref)
    process = multiprocessing.Process(target=work, args=(ref, "by/1"))
    process.start()
    process.join(30)
    assert process.exitcode == 0, process.exitcode
    assert hp.get("by/1", timeout=30).sum() == 200_000
    with multiprocessing.Pool(2) as pool:
        assert pool.map_async(total, [ref, hoplite.Ref("by/1")] * 3).get(30) == [100_000, 200_000] * 3
    assert view.sum() == 100_000
"""


@pytest.mark.parametrize(
    ("how", "method"), [("embedded", "fork"), ("attached", "fork"), ("attached", "forkserver"), ("embedded", "spawn")]
)
def test_multiprocessing_takes_refs(tmp_path: Path, how: str, method: str) -> None:
    """With every start method. Children of spawn or the fork server find the node as any script does."""
    path = tmp_path / "main.py"
    path.write_text(METHODS)
    done = subprocess.run(
        [sys.executable, str(path), how, method], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_verbs_import_no_modules() -> None:
    """A module that one thread imports during a fork stays partially imported in the child."""
    run(
        """
with testing.cluster(1) as nodes:
    hp = nodes[0].client()
    before = set(sys.modules)
    ref = hp.put(np.ones(100_000))
    hp.get(ref)
    hp.get(ref, out=np.empty(100_000))
    hp.get(hp.put(b"x"))
    total = hp.reduce([ref])
    hp.wait([total])
    hp.delete([ref, total])
    assert set(sys.modules) == before, set(sys.modules) - before
"""
    )


def test_a_client_can_not_be_pickled(nodes: list[Node]) -> None:
    """The error names what to send instead."""
    with pytest.raises(hoplite.InvalidArgument, match="send refs"):
        pickle.dumps(nodes[0].client())


def test_a_node_keeps_nothing_for_ended_children() -> None:
    """After two hundred forks of a process with a view, the node has no more descriptors than before."""
    script = """
hp = hoplite.connect(sys.argv[1])
view = hp.get(hp.put(np.ones(100_000), name="a/1"))
for _ in range(200):
    join(fork(lambda: None))
print("done", flush=True)
sys.stdin.readline()
"""
    with testing.node_process() as node, node.client() as client:
        before = descriptors(node.process.pid)
        with started(HEAD + script, node.socket) as process:
            assert line(process) == "done"
            # The process has its own connection and its own extent.
            eventually(lambda: descriptors(node.process.pid) <= before + 4)
            client.delete("a/1")
        eventually(lambda: client.objects() == [])
        eventually(lambda: client.status()["store"]["used"] == 0)


SCRIBBLES = """
import ctypes
hp = hoplite.connect(sys.argv[1])
hp.put(np.full(100_000, 1, np.uint8), name="mine/1")
threading.Thread(target=lambda: hp.get("never/1"), daemon=True).start()
eventually(lambda: hp.status()["waiting"] == 1)
if os.fork():
    print("forked", flush=True)
    os._exit(0)
sys.stdin.readline()
written = 0
for line in open("/proc/self/maps"):
    if "/memfd:hoplite" in line and line.split()[1] == "rw-s":
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        ctypes.memset(start, 0xFF, end - start)
        written += end - start
print(written, flush=True)
os._exit(0)
"""


@pytest.mark.faults("a client is killed")
def test_a_child_that_outlives_its_client_can_not_write_other_objects(nodes: list[Node]) -> None:
    """It keeps a writable mapping of the parent's memory, so no other program's object may be placed there."""
    client = nodes[0].client()
    with started(HEAD + SCRIBBLES, nodes[0].socket) as process, hoplite.connect(nodes[0].socket) as attached:
        assert line(process) == "forked"
        process.wait(SOON)
        eventually(lambda: client.status()["waiting"] == 0)
        values = {f"theirs/{number}": numbers(50_000, "uint8", seed=number) for number in range(60)}
        for number, (name, value) in enumerate(values.items()):
            # By a client in the node's process, by an attached one, and over the network.
            putter = (client, attached, nodes[1].client())[number % 3]
            putter.put(value, name=name)
            same(client.get(name, timeout=SOON), value)
        go(process)
        assert int(line(process)) >= 100_000
        for name, value in values.items():
            same(client.get(name, timeout=SOON), value)
            same(nodes[2].client().get(name, timeout=SOON), value)
