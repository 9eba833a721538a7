"""A node's memory is bounded, whatever clients do, and is returned to the host when the node is idle."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hoplite
from groups import limited
from hoplite import testing
from programs import go, kill, line, run, started
from support import SOON, Later, Watching, bounded, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite import Client

MIB = 1 << 20


# Extents that this process had before the test.
earlier: set[int] = set()


@pytest.fixture(autouse=True)
def count_only_own_memory() -> Iterator[None]:
    """Nodes of earlier tests may still run here, and errors that they caught hold views in reference cycles."""
    gc.collect()
    earlier.update(extents_of("self"))
    yield
    earlier.clear()


def extents_of(*pids: int | str) -> dict[int, int]:
    """Returns the store extents that processes have open or mapped since the test began, with their bytes.

    An extent is committed as a whole, so one that is only mapped takes the size of its longest mapping.
    """
    extents: dict[int, int] = {}
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if "memfd:hoplite" in str(descriptor.readlink()):
                    facts = descriptor.stat()
                    extents[facts.st_ino] = facts.st_blocks * 512
        with contextlib.suppress(OSError):
            for mapping in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if "/memfd:hoplite" in mapping:
                    place, _, _, _, inode, *_ = mapping.split()
                    begin, end = (int(at, 16) for at in place.split("-"))
                    extents[int(inode)] = max(extents.get(int(inode), 0), end - begin)
    return {extent: size for extent, size in extents.items() if extent not in earlier}


def stored(*pids: int | str) -> int:
    """Returns the bytes of store memory that processes have open or mapped, counting each extent once."""
    return sum(extents_of(*pids).values())


class Peak(Watching):
    """The maximum of the store memory of processes, sampled while the context is entered.

    Only extents of two successive samples count, because they existed at the same time. A single sample takes a while,
    and may include both freed memory and its replacement.
    """

    def __init__(self, *pids: int | str) -> None:
        self.bytes = 0
        self._pids = pids
        super().__init__()

    def look(self) -> None:
        before: dict[int, int] = {}
        # A pause, so that the samples take no more time than the test.
        while not self.is_over.wait(0.005):
            now = extents_of(*self._pids)
            self.bytes = max(self.bytes, sum(min(now[extent], before[extent]) for extent in now.keys() & before.keys()))
            before = now


def node_bytes_max(capacity: int) -> int:
    """Returns the limit of the bytes that a node with such a store may take."""
    return capacity + capacity // 20 + 16 * MIB


@pytest.mark.parametrize(
    ("clients", "capacity", "kept"), [(10, 200_000_000, 4 * MIB), (10, 67_000_000, 40_000)], ids=["large", "small"]
)
@bounded(10)
def test_memory_of_deleted_objects_is_returned_to_the_host(
    clients: int, capacity: int, kept: int, within: float
) -> None:
    """Each client puts 15 objects of 4 MiB, and deletes all but one; all 560 MiB once stayed mapped."""
    value, last = np.ones(4 * MIB, np.uint8), np.ones(kept, np.uint8)
    with testing.node_process("--capacity", str(capacity)) as node, contextlib.ExitStack() as stack:
        pids = (node.process.pid, os.getpid())
        with Peak(*pids) as peak:
            for _ in range(clients):
                client = stack.enter_context(node.client())
                refs = [client.put(value, timeout=SOON) for _ in range(15 if kept < MIB else 14)]
                client.put(last, timeout=SOON)
                client.delete(refs)
        idle_since = time.monotonic()
        used = client.status()["store"]["used"]
        assert used < clients * (kept + 10_000)
        # As much as is used stays warm.
        eventually(lambda: stored(*pids) <= 2 * used + 64 * MIB)
        assert time.monotonic() - idle_since < within
        assert peak.bytes <= node_bytes_max(capacity), f"{peak.bytes / MIB:.0f} MiB"
        store = client.status()["store"]
        assert store["mapped"] - store["warm"] >= store["used"]


def test_scattered_small_objects_do_not_block_large_ones() -> None:
    """Every client keeps one of a hundred objects: the free pieces between them do not fit a large one."""
    capacity = 256 * MIB
    with testing.node_process("--capacity", str(capacity)) as node, contextlib.ExitStack() as stack:
        pids = (node.process.pid, os.getpid())
        with Peak(*pids) as peak:
            for _ in range(15):
                client = stack.enter_context(node.client())
                refs = [client.put(np.ones(200_000, np.uint8), timeout=SOON) for _ in range(100)]
                client.delete(refs[:50] + refs[51:])
            client.delete(client.put(np.ones(150 * MIB, np.uint8), timeout=SOON))
        assert peak.bytes <= node_bytes_max(capacity), f"{peak.bytes / MIB:.0f} MiB"


def test_memory_in_use_stays_warm() -> None:
    """Repeated puts reuse the same memory."""
    value = np.ones(48 * MIB, np.uint8)
    with testing.node_process("--capacity", "1GiB") as node, node.client() as client:
        extents = set()
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline:
            ref = client.put(value)
            extents.add(client.status()["store"]["extents"])
            client.delete(ref)
            # Memory goes cold with time, whatever the number of puts.
            time.sleep(0.05)
        # Another extent is allocated if the first is not free yet.
        assert max(extents) <= 2
        eventually(lambda: client.status()["store"]["warm"] == 0)


def test_the_memory_of_the_next_large_object_is_allocated_in_advance() -> None:
    """For objects of one size that remain, the memory of each after the second is allocated in advance."""
    value = np.ones(MIB, np.uint8)
    with testing.cluster(1, capacity=64 * MIB) as (node,), node.client() as client:
        client.put(value)
        assert client.status()["store"]["warm"] == 0
        for objects in range(2, 5):
            client.put(value)
            eventually(lambda: client.status()["store"]["warm"] > MIB)
            assert client.status()["store"]["extents"] == objects + 1


def test_readers_also_free_the_memory_of_a_closed_client() -> None:
    with testing.node_process("--capacity", "1GiB") as node, node.client() as reader:
        with node.client() as putter:
            ref = putter.put(np.ones(100 * MIB, np.uint8))
        assert reader.get(ref)[-1] == 1
        assert stored("self") >= 100 * MIB
        reader.delete(ref)
        eventually(lambda: stored("self", node.process.pid) <= 64 * MIB)


GETS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import hoplite
how, where, capacity, *refs = sys.argv[1:]
if how == "embedded":
    node = hoplite.Node(listen="127.0.0.1:0", join=[where], capacity=int(capacity))
    clients = [node.client() for _ in refs]
else:
    clients = [hoplite.connect(where) for _ in refs]

def read(client, ref):
    value = client.get(ref, timeout=30)
    return int(value[0]) + int(value[-1])

print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(len(refs)) as pool:
    print(*pool.map(read, clients, refs), flush=True)
sys.stdin.readline()
"""


@pytest.mark.faults("a store is full")
@pytest.mark.parametrize("how", ["embedded", "attached"])
def test_gets_of_more_than_half_of_the_store_complete(how: str) -> None:
    """Ten threads, of which one at a time finds capacity."""
    size, capacity = 30 * MIB, 50 * MIB
    with testing.cluster(2, capacity="350MiB") as nodes, contextlib.ExitStack() as stack:
        far = nodes[0].client()
        refs = [str(far.put(np.full(size, number, np.uint8))) for number in range(10)]
        where, pid = nodes[0].address, None
        if how == "attached":
            small = stack.enter_context(testing.node_process("--capacity", str(capacity), "--join", where))
            where, pid = small.socket, small.process.pid
        process = stack.enter_context(started(GETS, how, where, str(capacity), *refs))
        assert line(process) == "ready"
        with Peak(pid or process.pid) as peak:
            go(process)
            assert line(process).split() == [str(2 * number) for number in range(10)]
        assert peak.bytes <= node_bytes_max(capacity)
        go(process)
        assert process.wait(SOON) == 0


NODE_IN_GROUP = """
import os, sys
from pathlib import Path
(Path(sys.argv[2]) / "cgroup.procs").write_text(str(os.getpid()))
import hoplite
node = hoplite.Node(socket=sys.argv[1], join=[sys.argv[3]] if sys.argv[3] else [], **eval(sys.argv[4]))
print("ready", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def node_in_group(tmp_path: Path, limit: int, *, join: str = "", **options: object) -> Iterator[Client]:
    """Starts a node in a memory group with a limit in bytes; yields a client of it."""
    path = str(tmp_path / "node.sock")
    with (
        limited(tmp_path.name[-20:], limit) as group,
        started(NODE_IN_GROUP, path, str(group), join, repr(options)) as process,
    ):
        assert line(process) == "ready"
        with hoplite.connect(path) as client:
            yield client
        assert process.poll() is None


@pytest.mark.faults("a memory group has no more")
def test_a_node_keeps_working_in_a_group_smaller_than_its_capacity(tmp_path: Path) -> None:
    """Cached copies are evicted when the group has no more memory. Before, every later put and get failed."""
    value = np.ones(30 * MIB, np.uint8)
    with testing.cluster(1, capacity="2GiB") as nodes:
        far = nodes[0].client()
        refs = [far.put(value) for _ in range(40)]
        with node_in_group(tmp_path, 400 * MIB, join=nodes[0].address, capacity="2GiB") as client:
            for number in range(60):
                assert client.get(refs[number % 40], timeout=SOON)[-1] == 1
                if number % 4 == 0:
                    client.delete(client.put(value, timeout=SOON))
            assert client.status()["counters"]["evictions"] >= 40


@pytest.mark.faults("a memory group has no more")
def test_the_error_names_the_limit_and_the_largest_objects(tmp_path: Path) -> None:
    value = np.ones(50 * MIB, np.uint8)
    with node_in_group(tmp_path, 400 * MIB, capacity="2GiB") as client:
        refs: list[hoplite.Ref] = []
        with pytest.raises(hoplite.StoreFull) as raised:
            refs.extend(client.put(value, timeout=SOON if number < 4 else 0.5) for number in range(100))
        error = str(raised.value)
        assert 4 <= len(refs) <= 7
        assert "the control group /" in error, error
        assert tmp_path.name[-20:] in error, error
        assert any(f"{ref} of {50 * MIB} bytes (pinned until it is deleted)" in error for ref in refs), error
        # A waiting put continues once memory is free.
        put = Later(client.put, value, timeout=SOON)
        assert not put.done(within=0.3)
        client.delete(refs[0])
        assert client.get(put.result())[-1] == 1
        with pytest.raises(hoplite.StoreFull, match="the control group"):
            # Waiting would not help.
            client.put(np.ones(500 * MIB, np.uint8))


def test_the_default_capacity_follows_the_group(tmp_path: Path) -> None:
    with node_in_group(tmp_path, 400 * MIB) as client:
        assert client.status()["store"]["capacity"] == 400 * MIB // 100 * 30


def test_the_default_capacity_follows_a_parent_group(tmp_path: Path) -> None:
    path = str(tmp_path / "node.sock")
    with (
        limited("above", 400 * MIB, 4096 * MIB) as group,
        started(NODE_IN_GROUP, path, str(group), "", "{}") as process,
    ):
        assert line(process) == "ready"
        with hoplite.connect(path) as client:
            assert client.status()["store"]["capacity"] == 400 * MIB // 100 * 30


MAPS_LITTLE = """
import resource, sys
import numpy as np
import hoplite
hp = hoplite.connect(sys.argv[1])
small = hp.get("small/1")
with open("/proc/self/statm") as file:
    mapped = int(file.read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (mapped + (100 << 20),) * 2)
try:
    hp.get("large/1", timeout=30)
except hoplite.StoreFull as error:
    print(error)
print(small[-1], hp.get("small/1")[-1])
"""


def test_a_mapping_limit_of_the_client_is_named() -> None:
    with testing.node_process("--capacity", "1GiB") as node, node.client() as client:
        client.put(np.ones(300 * MIB, np.uint8), name="large/1")
        client.put(np.ones(MIB, np.uint8), name="small/1")
        error, there = run(MAPS_LITTLE, node.socket).splitlines()
        assert "ulimit -v" in error, error
        assert "capacity" not in error, error
        assert there == "1 1"
        assert client.get("large/1")[-1] == 1


FILE_LIMIT = """
import resource, signal, sys
import numpy as np
import hoplite
# As in a program in another language: CPython ignores the signal.
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
hp = hoplite.init(node=hoplite.Node(capacity="1GiB", spill=sys.argv[1], spill_limit="1GiB"))
for value in (np.ones(2 << 20, np.uint8), np.ones(1 << 20, np.uint8)):
    try:
        hp.put(value)
    except hoplite.StoreFull as error:
        print(error)
# Extents that objects share are not larger than the file size limit.
refs = [hp.put(np.full(100_000, number, np.uint8)) for number in range(50)]
print(sum(int(hp.get(ref)[-1]) for ref in refs), hp.status()["store"]["used"] > 0)
"""


def test_a_file_size_limit_is_named_and_kills_no_program(tmp_path: Path) -> None:
    """Shared memory is a file: a put larger than `ulimit -f` fails at once, and SIGXFSZ is not raised."""
    *refused, there = run(FILE_LIMIT, str(tmp_path)).splitlines()
    assert len(refused) == 2
    for error in refused:
        assert "the file size limit of this process (ulimit -f) has only 1048576 left" in error, error
        assert "start the node after `ulimit -f unlimited`" in error, error
    assert there == f"{sum(range(50))} True"


def test_a_get_beyond_the_file_size_limit_fails_at_once() -> None:
    with (
        testing.node_process("--capacity", "1GiB") as other,
        testing.node_process("--capacity", "1GiB", "--join", other.address) as node,
        other.client() as putter,
        node.client() as client,
    ):
        putter.put(np.ones(2 * MIB, np.uint8), name="large/1")
        resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (MIB, resource.RLIM_INFINITY))
        with pytest.raises(hoplite.StoreFull, match="ulimit -f"):
            client.get("large/1")


@pytest.mark.parametrize("above", ["group", "host"])
def test_a_capacity_larger_than_the_memory_causes_a_warning(tmp_path: Path, above: str) -> None:
    with (
        limited("warned", 300 * MIB) as group,
        started(WARNED, str(tmp_path / "node.sock"), str(group) if above == "group" else "") as process,
    ):
        error = line(process)
    assert "less than the capacity" in error, error
    assert ("the control group" if above == "group" else "this host") in error, error


WARNED = """
import os, sys
from pathlib import Path
os.dup2(1, 2)
os.environ["HOPLITE_LOG_LEVEL"] = "warn"
if sys.argv[2]:
    (Path(sys.argv[2]) / "cgroup.procs").write_text(str(os.getpid()))
import hoplite
with hoplite.Node(socket=sys.argv[1], capacity="100TiB"):
    pass
"""

WORK = """
import sys, threading
import numpy as np
import hoplite
counts = [0] * int(sys.argv[2])
is_over = False
def work(number):
    size = (1 << 20) + number * 50_000
    with hoplite.connect(sys.argv[1]) as hp:
        kept = hp.put(np.full(size, 7, np.uint8), timeout=60)
        while not is_over:
            hp.delete(kept)
            kept = hp.put(np.full(size, 7, np.uint8), timeout=60)
            assert hp.get(kept)[-1] == 7
            counts[number] += 1
        hp.delete(kept)
threads = [threading.Thread(target=work, args=(number,)) for number in range(len(counts))]
for thread in threads:
    thread.start()
print("ready", flush=True)
sys.stdin.readline()
is_over = True
for thread in threads:
    thread.join()
print(*counts, flush=True)
"""


@pytest.mark.faults("clients are killed")
@pytest.mark.parametrize("seconds", [4, pytest.param(180, marks=[pytest.mark.long, pytest.mark.timeout(400)])])
def test_clients_of_a_full_store_are_served_fairly(seconds: int) -> None:
    """40 clients in eight processes request more than the capacity, while processes are killed one after another."""
    capacity = 30 * MIB
    with testing.node_process("--capacity", str(capacity)) as node, contextlib.ExitStack() as stack:
        living = [stack.enter_context(started(WORK, node.socket, "5")) for _ in range(6)]
        assert all(line(process) == "ready" for process in living)
        with Peak(node.process.pid) as peak:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                with started(WORK, node.socket, "10") as killed:
                    assert line(killed) == "ready"
                    Later(time.sleep, min(2.0, seconds / 4)).result()
                    kill(killed)
        counts: list[int] = []
        for process in living:
            go(process)
        for process in living:
            counts += map(int, line(process).split())
        assert len(counts) == 30
        assert min(counts) >= statistics.median(counts) / 2, sorted(counts)
        assert peak.bytes <= node_bytes_max(capacity), f"{peak.bytes / MIB:.0f} MiB"


def own_bytes(pid: int) -> int:
    """Returns the private memory of a process in bytes."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(row.split()[1]) for row in rollup if row.startswith(("Private_Dirty", "Private_Clean"))) * 1024


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_thousand_rounds_leak_nothing() -> None:
    """Runs a put, a broadcast, a reduce and a deletion over three nodes: the second half takes no more memory.

    The bounded list of deletions at the owners is filled first, by more deletions than it holds.
    """
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(testing.node_process("--capacity", "256MiB"))]
        nodes += [stack.enter_context(testing.node_process("--join", nodes[0].address)) for _ in range(2)]
        clients = [stack.enter_context(node.client()) for node in nodes]
        value = np.ones(100_000, np.uint8)
        for number in range(60):
            deleted = [f"deleted-{place}/{number}" for place in range(1000)]
            for name in deleted:
                clients[number % 3].put(b"x", name=name)
            clients[number % 3].delete(deleted)
        before: list[int] = []
        for number in range(10_000):
            names = [f"{number}/{place}" for place in range(3)]
            for client, name in zip(clients, names, strict=True):
                client.put(value, name=name)
            assert all(client.get(names[0], timeout=SOON)[-1] == 1 for client in clients)
            total = clients[number % 3].reduce(names, op="sum")
            assert clients[0].get(total, timeout=SOON)[-1] == 3
            clients[0].delete([total, *names])
            if number == 5000:
                before = [own_bytes(node.process.pid) for node in nodes]
        after = [own_bytes(node.process.pid) for node in nodes]
        grown = [(late - early) / MIB for early, late in zip(before, after, strict=True)]
        assert max(grown) <= 4, grown


@pytest.mark.long
@pytest.mark.timeout(900)
def test_six_hundred_thousand_names_leak_nothing() -> None:
    with testing.node_process("--capacity", "256MiB") as node, node.client() as client:
        before = 0
        for number in range(600):
            names = [f"{number}/{place}" for place in range(1000)]
            for name in names:
                client.put(b"x", name=name)
            client.delete(names)
            if number == 100:
                before = own_bytes(node.process.pid)
        assert own_bytes(node.process.pid) <= before + 16 * MIB


def test_status_reports_the_memory_of_the_store(client: Client) -> None:
    ref = client.put(np.ones(40 * MIB, np.uint8))
    store = client.status()["store"]
    assert store["warm"] < 8 * MIB < 40 * MIB < store["used"] < store["mapped"]
    client.delete(ref)
    status = client.status()
    assert (status["store"]["used"], status["store"]["warm"]) == (0, status["store"]["mapped"])
    assert status["counters"]["memory_refused"] == 0
