"""Worker processes attached to a node over its Unix socket: shared memory, and cleanup when they end."""

from __future__ import annotations

import contextlib
import signal
import subprocess

import pytest

import hoplite
from hoplite import Node, testing
from programs import line, started
from support import SOON, Later, eventually, fold, numbers, same

HEAD = """
import os, sys, time
import numpy as np
import hoplite
hp = hoplite.connect(sys.argv[1])
"""


def worker(socket: str, script: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """Runs a script in a process that is attached as `hp`. Its output can be read and its input written."""
    return started(HEAD + script, socket)


def test_two_processes_share_objects(nodes: list[Node]) -> None:
    """Both directions, small and large objects; this process uses another node."""
    echo = """
for number in range(4):
    value = hp.get(f"there/{number}", timeout=30)
    assert not value.flags.writeable
    hp.put(value + 1, name=f"back/{number}")
"""
    client = nodes[1].client()
    with worker(nodes[0].socket, echo) as process:
        for number, size in enumerate((10, 16_384, 100_000, 3_000_001)):
            client.put(numbers(size), name=f"there/{number}")
            same(client.get(f"back/{number}", timeout=SOON), numbers(size) + 1)
        assert process.wait(SOON) == 0


def test_an_attached_process_gets_without_a_copy(nodes: list[Node]) -> None:
    """A get of 256 MiB adds almost nothing to the private memory of the process."""
    script = """
def own():
    return sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Private")) >> 10
before = own()
value = hp.get("large/1", timeout=30)
assert value.nbytes == 256 << 20 and value[-1] == 3
assert own() - before < 32, (before, own())
try:
    value[0] = 1
except ValueError:
    print("read-only")
"""
    value = numbers(256 << 20, "uint8")
    value[-1] = 3
    nodes[0].client().put(value, name="large/1")
    with worker(nodes[0].socket, script) as process:
        assert line(process) == "read-only"
        assert process.wait(SOON) == 0


def test_an_attached_process_can_not_make_objects_writable(nodes: list[Node]) -> None:
    """Neither an object it got nor one it received in place. It can write its own memory."""
    script = """
import ctypes, errno, mmap
libc = ctypes.CDLL(None, use_errno=True)
out = np.empty(48 << 20, np.uint8)
print("ready", flush=True)
hp.get("grows/1", out=out, timeout=30)
value = hp.get("there/1", timeout=30)
assert out[-1] == 7 and value[-1] == 3
def maps():
    return [line.split()[:2] for line in open("/proc/self/maps") if "/memfd:hoplite" in line]
assert len(maps()) == 2 and all(rights == "r--s" for _, rights in maps()), maps()
for place, _ in maps():
    start, end = (int(number, 16) for number in place.split("-"))
    assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 3) == -1
    assert ctypes.get_errno() == errno.EACCES
    # Reopening the file needs root. Its seal also prevents this.
    try:
        mmap.mmap(os.open(f"/proc/self/map_files/{place}", os.O_RDWR), 4096)
    except PermissionError:
        print("closed", flush=True)
"""
    value = numbers(100_000, "uint8")
    value[-1] = 3
    client, writer = nodes[0].client(), hoplite.connect(nodes[0].socket)
    client.put(value, name="there/1")
    with worker(nodes[0].socket, script) as process:
        assert line(process) == "ready"
        eventually(lambda: client.status()["waiting"] >= 1)
        buffer = writer.create(48 << 20, "uint8", name="grows/1")
        buffer[...] = 7
        buffer.seal()
        assert [line(process) for _ in range(2)] == ["closed", "closed"]
        assert process.wait(SOON) == 0
    writer.close()


def test_every_verb_works_attached(nodes: list[Node]) -> None:
    script = """
refs = [hp.put(np.full(50_000, n, np.float32), name=f"part/{n}") for n in (1, 2, 3)]
total = hp.reduce(refs + ["part/4"], count=3)
assert set(total.inputs(timeout=30)) == set(refs)
assert hp.get(total, timeout=30)[0] == 6
assert hp.latest("part/", timeout=30).number == 3
assert hp.status()["objects"] >= 4 and len(hp.objects()) >= 4
for call in (lambda: hp.get("nobody/1", timeout=0.1), lambda: hp.latest("nobody/", timeout=0.1)):
    try:
        call()
    except hoplite.Timeout:
        print("timeout")
try:
    hp.put(b"", name="part/1")
except hoplite.NameTaken as error:
    print("taken")
hp.delete([total, *refs])
try:
    hp.get(total, timeout=30)
except hoplite.ObjectDeleted:
    print("deleted")
"""
    with worker(nodes[2].socket, script) as process:
        assert [line(process) for _ in range(4)] == ["timeout", "timeout", "taken", "deleted"]
        assert process.wait(SOON) == 0


def test_threads_of_a_process_share_its_attachment(nodes: list[Node]) -> None:
    """Sixteen threads wait on one attachment at the same time, and get their objects in another order."""
    client = hoplite.connect(nodes[0].socket)
    gets = [Later(client.get, f"late/{number}", timeout=SOON) for number in range(16)]
    for number in reversed(range(16)):
        nodes[1].client().put(numbers(20_000, seed=number), name=f"late/{number}")
    for number, get in enumerate(gets):
        same(get.result(), numbers(20_000, seed=number))


def test_eight_workers_contribute_to_a_sum(nodes: list[Node]) -> None:
    script = """
worker = int(sys.stdin.readline())
for step in range(3):
    random = np.random.default_rng(worker * 10 + step)
    hp.put(random.integers(0, 4, 300_000, np.uint8).astype(np.float32), name=f"g/{worker}/{step}")
    total = hp.get(hp.get(f"sum/{step}", timeout=30).tobytes().decode(), timeout=30)
    print(int(total.sum()), flush=True)
"""
    client = nodes[0].client()
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(worker(nodes[number % 3].socket, script)) for number in range(8)]
        for number, process in enumerate(workers):
            assert process.stdin is not None
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
        for step in range(3):
            total = client.reduce([f"g/{number}/{step}" for number in range(8)])
            client.put(str(total).encode(), name=f"sum/{step}")
            expected = fold("sum", [numbers(300_000, seed=number * 10 + step) for number in range(8)])
            same(client.get(total, timeout=SOON), expected)
            for process in workers:
                assert line(process) == str(int(expected.sum()))


@pytest.mark.faults("a client is killed")
def test_a_killed_process_releases_its_views() -> None:
    """The process holds views of a deleted object that fills half the store. Its end frees the capacity."""
    script = """
view = hp.get("large/1", timeout=30)
print("held", flush=True)
time.sleep(60)
"""
    with testing.cluster(1, capacity="48MiB") as nodes:
        client = nodes[0].client()
        client.put(numbers(24 << 20, "uint8"), name="large/1")
        with worker(nodes[0].socket, script) as process:
            assert line(process) == "held"
            client.delete("large/1")
            with pytest.raises(hoplite.StoreFull):
                client.put(numbers(32 << 20, "uint8"), timeout=0.2)
            process.send_signal(signal.SIGKILL)
            process.wait()
        client.put(numbers(32 << 20, "uint8"), timeout=SOON)


@pytest.mark.faults("a client is killed")
def test_objects_of_a_killed_process_remain(nodes: list[Node]) -> None:
    script = """
print(hp.put(np.arange(100_000, dtype=np.int64)), flush=True)
time.sleep(60)
"""
    with worker(nodes[0].socket, script) as process:
        ref = line(process)
        process.kill()
        process.wait()
    assert nodes[1].client().get(ref, timeout=SOON)[-1] == 99_999


@pytest.mark.faults("clients are killed")
def test_processes_killed_during_a_put_leave_no_partial_object(nodes: list[Node]) -> None:
    """Processes are killed at various moments of putting 32 MiB objects.

    The node frees partial objects and keeps working.
    """
    script = """
print("ready", flush=True)
value = np.ones(32 << 20, np.uint8)
while True:
    hp.delete(hp.put(value))
"""
    for turn in range(5):
        with worker(nodes[0].socket, script) as process:
            assert line(process) == "ready"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.03 * turn)
            process.kill()
            process.wait()
    client = nodes[0].client()
    same(nodes[1].client().get(client.put(numbers(100_000)), timeout=SOON), numbers(100_000))
    # The last object of each process may be complete and not yet deleted.
    eventually(lambda: all(copy["state"] == "complete" for copy in client.objects()))


@pytest.mark.faults("a node is killed")
def test_a_killed_node_fails_the_calls_of_its_workers() -> None:
    """A pending get and every later call fail soon after SIGKILL."""
    with testing.node_process() as node:
        client = hoplite.connect(node.socket, reconnect=False)
        get = Later(client.get, "never/1")
        assert not get.done(within=0.2)
        node.process.kill()
        node.process.wait()
        with pytest.raises(hoplite.NodeDown):
            get.result()
        for call in (lambda: client.put(b"x"), client.status, lambda: client.get("a/1", timeout=5)):
            with pytest.raises(hoplite.NodeDown):
                call()


@pytest.mark.faults("a node is killed")
def test_views_outlive_a_killed_node() -> None:
    with testing.node_process() as node:
        client = node.client()
        view = client.get(client.put(numbers(1_000_000)))
        node.process.kill()
        node.process.wait()
        same(view, numbers(1_000_000))


def test_workers_can_attach_and_detach_repeatedly(nodes: list[Node]) -> None:
    client = nodes[0].client()
    for number in range(30):
        with hoplite.connect(nodes[0].socket) as guest:
            guest.put(numbers(20_000, seed=number), name=f"guest/{number}")
        same(client.get(f"guest/{number}", timeout=SOON), numbers(20_000, seed=number))
