"""A host without descriptors, memory, capacity or a runtime folder: a named error, and recovery afterwards."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hoplite
from groups import limited
from hoplite import Node, testing
from programs import descriptors, line, run, started
from support import SOON, Later, eventually_empty, numbers, same

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
# Timeout after which a call fails for lack of capacity, even on a busy machine.
FULL_TIMEOUT_S = 3.0

NO_DESCRIPTORS = """
import os, resource, sys
import numpy as np
import hoplite
hp = hoplite.connect(sys.argv[1])
ref = hp.put(np.ones(100_000))
resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
def refused(call, *words):
    try:
        call()
    except hoplite.HopliteError as error:
        assert all(word in str(error) for word in words), (words, error)
        assert not isinstance(error, hoplite.NodeDown), error
    else:
        raise AssertionError("no error")
# Requests without new descriptors work: mapped memory, small objects, status.
assert hp.get(ref).sum() == 100_000
assert hp.get(hp.put(b"x")) == b"x"
assert hp.status()["members"]
for _ in range(3):
    # This client's first object in memory that another node filled, and its first put outside the first extent.
    refused(lambda: hp.get("far/1", timeout=30), "ulimit -n")
    refused(lambda: hp.put(np.ones(80 << 20, np.uint8), timeout=30), "ulimit -n")
    refused(lambda: hoplite.connect(sys.argv[1]), "ulimit -n")
assert hp.get(ref).sum() == 100_000
for descriptor in taken:
    os.close(descriptor)
assert hp.get("far/1", timeout=30).sum() == 100_000
value = hp.get(hp.put(np.ones(80 << 20, np.uint8), timeout=30))
assert value[-1] == 1
hoplite.connect(sys.argv[1]).close()
"""


def test_a_client_without_descriptors_reports_it_and_recovers() -> None:
    """The client stays attached.

    Its mapped objects keep working, and everything works once other descriptors are closed.
    """
    with testing.cluster(2) as nodes:
        nodes[1].client().put(np.ones(100_000), name="far/1")
        assert nodes[0].client().get("far/1", timeout=SOON)[0] == 1
        run(NO_DESCRIPTORS, nodes[0].socket)
        assert {copy["readers"] for copy in nodes[0].client().objects()} == {0}


FEW = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import hoplite
node = hoplite.Node(listen="127.0.0.1:0", socket=sys.argv[1])
print(node.address, flush=True)
sys.stdin.readline()
"""


def test_a_node_without_descriptors_serves_its_existing_clients(tmp_path: Path) -> None:
    """Of a hundred clients some are rejected with an error. Once others disconnect, new ones are accepted."""
    path = str(tmp_path / "node.sock")
    with started(FEW, path) as process:
        assert line(process)
        client = hoplite.connect(path)
        ref = client.put(numbers(100_000))
        with contextlib.ExitStack() as stack:
            guests, refused = [], 0
            for _ in range(100):
                try:
                    guests.append(stack.enter_context(hoplite.connect(path, timeout=1)))
                except hoplite.ConnectError:
                    refused += 1
                    if refused == 3:
                        break
            assert len(guests) > 5
            assert refused == 3
            for guest in (guests[0], guests[-1], client):
                assert guest.get(guest.put(b"x"), timeout=SOON) == b"x"
                same(guest.get(ref, timeout=SOON), numbers(100_000))
            assert descriptors(process.pid) <= 64
        with hoplite.connect(path, timeout=SOON) as guest:
            same(guest.get(guest.put(numbers(100_000)), timeout=SOON), numbers(100_000))
        assert process.poll() is None
        client.close()


MANY = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (110, 110))
import numpy as np
from hoplite import testing
with testing.cluster(2, capacity="256MiB") as (here, far):
    with here.client() as getter, far.client() as putter:
        refs = [putter.put(np.full(40_000, number % 251, np.uint8)) for number in range(2000)]
        came = getter.get(refs, timeout=30)
        assert [int(value[-1]) for value in came] == [number % 251 for number in range(2000)]
"""


@pytest.mark.faults("the two nodes of a process have few descriptors")
def test_many_objects_arrive_through_few_connections() -> None:
    """One connection per object would use all descriptors of the process, including those for its memory."""
    run(MANY)


@pytest.mark.parametrize("how", ["missing", "read-only", "a file", "unset", "dangling link"])
def test_a_node_without_a_usable_runtime_folder_uses_tmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The socket is in the user's folder under /tmp instead, where scripts find it."""
    folder = tmp_path / "run"
    if how == "read-only":
        if os.getuid() == 0:
            # Root may write everywhere; only the file system itself can prevent it.
            folder = Path("/proc/self/attr")
        else:
            folder.mkdir(mode=0o500)
    elif how == "a file":
        folder.write_text("")
    elif how == "dangling link":
        folder.symlink_to(tmp_path / "nowhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "" if how == "unset" else str(folder))
    shared = tmp_path / "tmp"
    shared.mkdir()
    monkeypatch.setattr(hoplite.sockets, "SHARED_FOLDER", shared)
    with Node() as node:
        assert Path(node.socket) == shared / f"hoplite-{os.getuid()}" / "node.sock"
        assert Path(node.socket).parent.stat().st_mode & 0o777 == 0o700
        with hoplite.init() as client:
            assert client.status()["id"] == node.id
            assert client.node is None
    assert not Path(node.socket).exists()


@pytest.mark.parametrize("how", ["embedded", "attached"])
def test_a_put_into_a_full_store_waits_and_then_reports_the_sizes(how: str) -> None:
    """The error has the requested size, the capacity and the bytes that can't be evicted."""
    with testing.cluster(1, capacity="32MiB") as nodes:
        client = nodes[0].client() if how == "embedded" else hoplite.connect(nodes[0].socket)
        ref = client.put(np.ones(20 * MIB, np.uint8))
        for timeout in (0, 0.2):
            with pytest.raises(hoplite.StoreFull) as raised:
                client.put(np.ones(16 * MIB, np.uint8), timeout=timeout)
            for number in (16 * MIB, 32 * MIB, client.status()["store"]["used"]):
                assert str(number) in str(raised.value)
        with pytest.raises(hoplite.StoreFull, match=str(40 * MIB)):
            # Waiting would not help.
            client.put(np.ones(40 * MIB, np.uint8))
        put = Later(client.put, np.ones(16 * MIB, np.uint8), timeout=SOON)
        assert not put.done(within=0.2)
        client.delete(ref)
        assert client.get(put.result())[-1] == 1
        assert client.status()["store"]["used"] <= 32 * MIB
        client.close()


@pytest.mark.parametrize("how", ["embedded", "attached"])
def test_every_call_without_capacity_reports_the_same_error(how: str) -> None:
    """A put, a put of a reservation, a get, a list, a get into the caller's memory, and a sum."""
    with testing.cluster(2, capacity="32MiB") as nodes:
        client = nodes[0].client() if how == "embedded" else hoplite.connect(nodes[0].socket)
        pinned = client.put(np.ones(20 * MIB, np.uint8))
        far = nodes[1].client().put(np.ones(16 * MIB, np.uint8))
        own = np.empty(16 * MIB, np.uint8)
        total, second = client.reduce([far], timeout=FULL_TIMEOUT_S), client.reduce([far])
        calls: list[Callable[[], object]] = [
            lambda: client.put(own, timeout=FULL_TIMEOUT_S),
            lambda: client.put(own, name=client.reserve(), timeout=FULL_TIMEOUT_S),
            lambda: client.get(far, timeout=FULL_TIMEOUT_S),
            lambda: client.get([far], timeout=FULL_TIMEOUT_S),
            lambda: client.get(far, out=own, timeout=FULL_TIMEOUT_S),
            lambda: client.get(total),
            lambda: total.inputs(),
            lambda: client.get(second, timeout=FULL_TIMEOUT_S),
        ]
        for called in [Later(call) for call in calls]:
            with pytest.raises(hoplite.StoreFull) as raised:
                called.result()
            assert f"can't fit {16 * MIB} bytes: {client.status()['store']['used']} bytes are" in str(raised.value)
        client.delete([pinned, second])
        assert client.get(far, timeout=SOON)[-1] == 1
        client.close()


IN_GROUP = """
import os, sys
from pathlib import Path
(Path(sys.argv[2]) / "cgroup.procs").write_text(str(os.getpid()))
import numpy as np
import hoplite
MIB = 1 << 20
"""

NODE_IN_GROUP = """
node = hoplite.Node(socket=sys.argv[1], capacity="4GiB")
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("limits", [(400 * MIB,), (4096 * MIB, 400 * MIB)], ids=repr)
def test_a_node_in_a_memory_group_rejects_puts_beyond_its_limit(tmp_path: Path, limits: tuple[int, ...]) -> None:
    """The capacity exceeds the limit of the group or of its parent: puts are rejected, and no process is killed."""
    path = str(tmp_path / "node.sock")
    with limited("node", *limits) as group, started(IN_GROUP + NODE_IN_GROUP, path, str(group)) as process:
        assert line(process) == "ready"
        with hoplite.connect(path) as client:
            with pytest.raises(hoplite.StoreFull, match="memory"):
                client.put(np.ones(600 * MIB, np.uint8), timeout=SOON)
            refs: list[hoplite.Ref] = []
            # Fill it with pieces that get extents of their own size.
            for size in (200, 100, 80, 70, 65):
                with contextlib.suppress(hoplite.StoreFull):
                    while len(refs) < 10:
                        timeout = 1 if refs else SOON
                        refs.append(client.put(np.full(size * MIB, len(refs), np.uint8), timeout=timeout))
            assert 1 <= len(refs) <= 5
            for number, ref in enumerate(refs):
                value = client.get(ref, timeout=SOON)
                assert value[0] == value[-1] == number
                del value
            small = [client.put(bytes([number]) * 30_000) for number in range(100)]
            assert client.get(small[7]) == bytes([7]) * 30_000
            assert process.poll() is None
            client.delete([*refs, *small])
            eventually_empty(client)
            client.delete(client.put(np.ones(200 * MIB, np.uint8), timeout=SOON))
        assert process.poll() is None


CLIENT_IN_GROUP = """
hp = hoplite.connect(sys.argv[1])
# Several times the group's limit: the memory belongs to the node.
for turn in range(4):
    ref = hp.put(np.broadcast_to(np.uint8(turn), 24 * MIB).copy())
    view = hp.get(ref)
    assert view[-1] == turn
    del view
    hp.delete(ref)
large = hp.get("large/1", timeout=30)
assert large.nbytes == 300 * MIB and int(large[:: 4096].astype(np.uint64).sum()) == 300 * MIB // 4096
print("alive", flush=True)
"""


def test_a_client_in_a_memory_group_is_not_charged_for_shared_memory(tmp_path: Path) -> None:
    """The client puts and reads more than its group allows, because the node allocated the memory."""
    path = str(tmp_path / "node.sock")
    with Node(socket=path, capacity="1GiB") as node, limited("client", 160 * MIB) as group:
        client = node.client()
        client.put(np.ones(300 * MIB, np.uint8), name="large/1")
        assert run(IN_GROUP + CLIENT_IN_GROUP, path, str(group)) == "alive\n"


FULL_DISK = """
import subprocess
import numpy as np
import hoplite
from hoplite import testing
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/dev/shm"], check=True)
with open("/dev/shm/full", "wb", buffering=0) as full:
    try:
        while full.write(b"x" * 4096):
            pass
    except OSError:
        pass
with testing.cluster(2) as nodes:
    one, two = hoplite.connect(nodes[0].socket), nodes[1].client()
    ref = one.put(np.ones(10_000_000))
    assert two.get(ref, timeout=20).sum() == 10_000_000
    assert two.get(two.reduce([ref]), timeout=20).sum() == 10_000_000
print("done")
"""


def test_a_full_shared_memory_folder_has_no_effect() -> None:
    """Objects are in anonymous memory, which no mount limits: containers have 64 MiB in /dev/shm."""
    command = ["unshare", "--mount", sys.executable, "-c", FULL_DISK]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=False)
    except FileNotFoundError:
        pytest.skip("needs unshare of util-linux")
    if "unshare failed" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"needs the right to mount: {done.stderr.strip().splitlines()[-1]}")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert not Path("/dev/shm/full").exists()
