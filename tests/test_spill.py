"""Spilling: objects that were not used recently are written to disk when memory is full, and read back when used."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import stat
import subprocess
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hoplite
from hoplite import testing
from programs import kill
from support import SOON, Later, eventually, fold, numbers, same

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hoplite import Client, Ref
    from support import Array

MIB = 1 << 20
CAPACITY = 32 * MIB
SIZE = 2 * MIB

# Four times as much as fits into memory.
COUNT = 4 * CAPACITY // SIZE


def value(number: int, size: int = SIZE) -> Array:
    """Returns an array that shares no element with that of another number."""
    array = np.arange(size // 8, dtype=np.uint64)
    array += np.uint64(number << 32)
    return array


def put_all(client: Client, count: int = COUNT) -> list[Ref]:
    return [client.put(value(number), timeout=SOON) for number in range(count)]


def files(folder: Path) -> list[Path]:
    """Returns the files of objects."""
    return sorted(folder.glob("*.spill"))


def states(client: Client) -> dict[str, str]:
    return {row["ref"]: row["state"] for row in client.objects()}


@contextlib.contextmanager
def embedded(folder: Path, **options: object) -> Iterator[Client]:
    """Starts a node with a spill folder in this process, with a client."""
    with hoplite.Node(capacity=CAPACITY, spill=folder, socket=folder.parent / "own.sock", **options) as node:  # type: ignore[arg-type]
        yield node.client()


@contextlib.contextmanager
def attached(folder: Path, *options: str) -> Iterator[Client]:
    """Starts a node process with a spill folder, with a client."""
    with process(folder, *options) as node, node.client() as client:
        yield client


@contextlib.contextmanager
def process(folder: Path, *options: str) -> Iterator[testing.NodeProcess]:
    with testing.node_process("--capacity", str(CAPACITY), "--spill", str(folder), *options) as node:
        yield node


@pytest.mark.parametrize("way", [embedded, attached])
def test_four_times_the_capacity_can_be_put_and_read_back(way: type, tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    with way(folder) as client:
        refs = put_all(client)
        store = client.status()["store"]
        assert store["used"] <= CAPACITY
        assert COUNT * SIZE - CAPACITY <= store["spilled"] <= store["spill_limit"]
        assert list(states(client).values()).count("spilled") >= 3 * COUNT // 4 - 1
        order = [*range(COUNT)] * 2
        random.Random(7).shuffle(order)
        for number in order:
            same(client.get(refs[number], timeout=SOON), value(number))
        counters = client.status()["counters"]
        assert counters["spills"] <= COUNT, "objects that have a file must not be written again"
        assert counters["unspills"] >= COUNT
        client.delete(refs)
        eventually(lambda: files(folder) == [])
        assert client.status()["store"]["spilled"] == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_concurrent_readers_of_more_than_fits_into_memory(tmp_path: Path) -> None:
    with process(tmp_path / "spill") as node, node.client() as client:
        refs = put_all(client)

        def read(seed: int) -> None:
            order = [*range(COUNT)]
            random.Random(seed).shuffle(order)
            with node.client() as own:
                for number in order:
                    same(own.get(refs[number], timeout=SOON), value(number))

        for reader in [Later(read, seed) for seed in range(4)]:
            reader.result()


def test_other_nodes_read_spilled_objects(tmp_path: Path) -> None:
    with process(tmp_path / "spill") as node, node.client() as client:
        refs = put_all(client)
        with testing.node_process("--capacity", str(CAPACITY), "--join", node.address) as other, other.client() as far:
            for number in reversed(range(COUNT)):
                same(far.get(refs[number], timeout=SOON), value(number))
            assert [place.complete for place in far.locations(refs[0])].count(True) >= 1
        assert client.status()["counters"]["unspills"] >= COUNT // 2


def test_objects_that_fit_are_never_spilled(tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    with embedded(folder) as client:
        refs = put_all(client, CAPACITY // SIZE - 1)
        for _ in range(5):
            for number, ref in enumerate(refs):
                same(client.get(ref), value(number))
        counters = client.status()["counters"]
        assert (counters["spills"], counters["unspills"], client.status()["store"]["spilled"]) == (0, 0, 0)
        assert files(folder) == []


def test_objects_with_readers_stay_in_memory(tmp_path: Path) -> None:
    with embedded(tmp_path / "spill") as client:
        first = client.put(value(0))
        view = client.get(first)
        refs = put_all(client)
        assert states(client)[str(first)] == "complete"
        same(view, value(0))
        # The whole store has readers, so nothing can leave memory.
        views = [client.get(ref, timeout=SOON) for ref in refs[: CAPACITY // SIZE - 2]]
        with pytest.raises(hoplite.StoreFull, match="readers: 1"):
            client.put(value(99), timeout=0.3)
        del views
        same(client.get(client.put(value(99), timeout=SOON)), value(99))


def test_cached_copies_are_evicted_before_spilling(tmp_path: Path) -> None:
    with hoplite.Node(listen="127.0.0.1:0", capacity="256MiB", socket=tmp_path / "far.sock") as far:
        theirs = put_all(far.client(), 8)
        with embedded(tmp_path / "spill", join=[far.address]) as client:
            put_all(client, 7)
            for ref in theirs:
                client.get(ref, timeout=SOON)
            put_all(client, 6)
            counters = client.status()["counters"]
            assert counters["evictions"] > 0
            assert counters["spills"] == 0


@pytest.mark.parametrize("inputs", [4, 3 * CAPACITY // SIZE])
def test_a_sum_of_spilled_objects(inputs: int, tmp_path: Path) -> None:
    """More inputs than fit into memory are folded as they are read."""
    arrays = [numbers(SIZE // 4, seed=seed) for seed in range(inputs)]
    with embedded(tmp_path / "spill") as client:
        refs = [client.put(array, timeout=SOON) for array in arrays]
        put_all(client, CAPACITY // SIZE)
        assert states(client)[str(refs[0])] == "spilled"
        total = client.reduce(refs, "sum")
        same(client.get(total, timeout=SOON), fold("sum", arrays))
        assert client.status()["counters"]["reduces_restarted"] == 0


def test_other_nodes_can_sum_spilled_objects(tmp_path: Path) -> None:
    arrays = [numbers(SIZE // 4, seed=seed) for seed in range(2 * CAPACITY // SIZE)]
    with process(tmp_path / "spill") as node, node.client() as client:
        refs = [client.put(array, timeout=SOON) for array in arrays]
        with testing.node_process("--capacity", str(CAPACITY), "--join", node.address) as other, other.client() as far:
            total = far.reduce(refs, "sum")
            same(far.get(total, timeout=SOON), fold("sum", arrays))


def test_the_ttl_of_a_spilled_object_expires(tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    with embedded(folder) as client:
        short = client.put(value(0), ttl=1.5)
        refs = put_all(client)
        assert len(files(folder)) >= COUNT - CAPACITY // SIZE
        eventually(lambda: str(short) not in states(client))
        with pytest.raises(hoplite.ObjectDeleted):
            client.get(short, timeout=SOON)
        client.delete(refs)
        eventually(lambda: files(folder) == [])


@pytest.mark.faults("the limit of the disk is reached")
def test_reaching_the_limit_loses_no_object(tmp_path: Path) -> None:
    """Objects still swap places between disk and memory, because disk space for two objects stays reserved."""
    with embedded(tmp_path / "spill", spill_limit=7 * SIZE) as client:
        refs = put_all(client, CAPACITY // SIZE - 1 + 4)
        with pytest.raises(hoplite.StoreFull, match=r"of the \d+ bytes that may be spilled are taken") as raised:
            client.put(value(len(refs)), timeout=0.5)
        assert "pinned until it is deleted" in str(raised.value)
        for number, ref in enumerate(refs * 2):
            same(client.get(ref, timeout=SOON), value(number % len(refs)))
            assert client.status()["store"]["spilled"] <= 7 * SIZE
        # A waiting put continues as soon as there is capacity.
        waiting = Later(client.put, value(77), timeout=SOON)
        assert not waiting.done(within=0.3)
        client.delete(refs[0])
        same(client.get(waiting.result(), timeout=SOON), value(77))


@pytest.mark.faults("the disk rejects long files")
def test_a_disk_error_loses_no_object_in_memory(tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    with process(folder) as node, node.client() as client:
        _, most = resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE)
        # An object's memory has one more page. Its file has one more page, a checksum for each MiB and a trailer.
        resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (SIZE + 4096, most))
        refs: list[Ref] = []
        with pytest.raises(hoplite.StoreFull) as raised:
            refs.extend(client.put(value(number), timeout=1.5) for number in range(COUNT))
        error = str(raised.value)
        assert str(folder) in error, error
        assert "File too large" in error, error
        assert client.status()["counters"]["spill_failures"] > 0
        assert files(folder) == [], "partial files must be removed"
        for number, ref in enumerate(refs):
            same(client.get(ref), value(number))
        waiting = Later(client.put, value(77), timeout=SOON)
        assert not waiting.done(within=0.2)
        resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (most, most))
        # Those that could not be written stay in memory until they are deleted. Others are written again.
        client.delete(refs.pop())
        same(client.get(waiting.result()), value(77))
        client.delete(refs.pop())
        fresh = [client.put(value(number), timeout=SOON) for number in range(COUNT)]
        for number, ref in enumerate(fresh):
            same(client.get(ref), value(number))
        assert client.status()["counters"]["spills"] > 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system of 24 MiB."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root and mkfs.ext4, to make a small file system")
    image, folder = tmp_path / "disk.img", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(24 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(folder)], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted from a file here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.faults("the disk is full")
def test_a_full_disk_loses_no_object(small_disk: Path) -> None:
    """Objects in memory can be read. So can those on disk, as soon as one object has left memory."""
    folder = small_disk / "spill"
    with process(folder, "--spill-limit", "1GiB") as node, node.client() as client:
        refs = put_all(client, CAPACITY // SIZE - 2 + 5)
        with pytest.raises(hoplite.StoreFull, match="No space left on device") as raised:
            refs.extend(client.put(value(number), timeout=1.5) for number in range(len(refs), COUNT))
        assert str(folder) in str(raised.value)
        assert client.status()["counters"]["spill_failures"] > 0
        there = states(client)
        in_memory = [number for number, ref in enumerate(refs) if there[str(ref)] == "complete"]
        assert 5 <= len(refs) - len(in_memory) <= 11
        for number in in_memory:
            same(client.get(refs[number], timeout=SOON), value(number))
        client.delete(refs[in_memory[0]])
        for number, ref in enumerate(refs):
            if number != in_memory[0]:
                same(client.get(ref, timeout=SOON), value(number))


@pytest.mark.faults("the folder is removed")
def test_a_removed_folder_loses_only_the_objects_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    with embedded(folder) as client:
        refs = put_all(client)
        there = states(client)
        shutil.rmtree(folder)
        with pytest.raises(hoplite.StoreFull, match="No such file"):
            [client.put(value(number), timeout=1.5) for number in range(COUNT)]
        in_memory = [number for number, ref in enumerate(refs) if there[str(ref)] == "complete"]
        assert len(in_memory) >= CAPACITY // SIZE - 2
        gone = next(ref for ref in refs if there[str(ref)] == "spilled")
        client.delete(refs[in_memory.pop()])
        with pytest.raises(hoplite.ObjectLost, match=r"spill.*No such file"):
            client.get(gone, timeout=SOON)


@pytest.mark.faults("a byte on the disk changes")
def test_a_corrupt_file_is_never_read(tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    with (
        hoplite.Node(listen="127.0.0.1:0", capacity="256MiB", socket=tmp_path / "far.sock") as far,
        embedded(folder, join=[far.address]) as client,
    ):
        twice = client.put(value(0), replicas=2)
        once = client.put(value(1))
        put_all(client)
        corrupt(folder, client, twice)
        corrupt(folder, client, once)
        # Another node has a replica.
        same(client.get(twice, timeout=SOON), value(0))
        with pytest.raises(hoplite.ObjectLost, match=r"\.spill: checksum mismatch in bytes 0 to 1048576"):
            client.get(once, timeout=SOON)
        assert client.status()["counters"]["spill_failures"] == 2


def corrupt(folder: Path, client: Client, ref: Ref) -> None:
    """Flips a bit of the object in its file."""
    [row] = [row for row in client.objects() if row["ref"] == str(ref)]
    assert row["state"] == "spilled"
    node, serial = row["instance"].split("#")
    [path] = folder.glob(f"{node}-{serial}.*.spill")
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)


@pytest.mark.faults("a byte on the disk changes")
def test_a_sum_of_a_corrupt_file_fails(tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    with embedded(folder) as client:
        refs = put_all(client)
        corrupt(folder, client, refs[0])
        total = client.reduce(refs[:3], "sum")
        with pytest.raises(hoplite.ObjectLost):
            client.get(total, timeout=SOON)


def test_persistent_objects_survive_a_restart(tmp_path: Path) -> None:
    """Including objects that were in memory: small and large, with and without names, and with their metadata."""
    folder = tmp_path / "spill"
    with process(folder, "--spill-persistent") as node, node.client() as client:
        refs = put_all(client)
        name = client.put(value(100), name="weights/1")
        small = client.put({"epoch": 7})
        short = client.put(value(101), ttl=1000)
        gone = client.put(value(102), ttl=0.1)
        client.delete(refs.pop())
    with process(folder, "--spill-persistent") as node, node.client() as client:
        assert client.status()["objects"] >= len(refs) + 3
        for number, ref in enumerate(refs):
            same(client.get(ref, timeout=SOON), value(number))
        same(client.get("weights/1", timeout=SOON), value(100))
        assert client.get(small, timeout=SOON) == {"epoch": 7}
        same(client.get(short, timeout=SOON), value(101))
        [row] = [row for row in client.objects() if row["ref"] == str(short)]
        assert 0 < (row["ttl"] or 0) < 1000
        eventually(lambda: str(gone) not in states(client))
        with pytest.raises(hoplite.NameTaken):
            client.put(value(5), name="weights/1")
        client.delete([*refs, name, small, short])
        eventually(lambda: files(folder) == [])


def test_objects_are_deleted_with_the_node_by_default(tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    with process(folder) as node, node.client() as client:
        put_all(client)
        assert files(folder)
    assert files(folder) == []


def test_objects_handed_over_to_another_node_do_not_persist(tmp_path: Path) -> None:
    """The other node may delete it before this one restarts."""
    folder = tmp_path / "spill"
    with testing.node_process("--capacity", "256MiB") as far, far.client() as client:
        with process(folder, "--spill-persistent", "--join", far.address) as node, node.client() as own:
            refs = put_all(own)
        assert files(folder) == []
        for number, ref in enumerate(refs):
            same(client.get(ref, timeout=SOON), value(number))


@pytest.mark.faults("a node leaves with objects that fit on no other")
def test_later_puts_take_precedence_over_persistent_objects(tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    with testing.node_process("--capacity", "3MiB") as far, far.client() as client:
        leaving = ["--leave-timeout", "1"]
        with process(folder, "--spill-persistent", "--join", far.address, *leaving) as node, node.client() as own:
            own.put(value(1), name="weights/1")
            own.put(value(2), name="weights/2")
            away = own.put(value(3), name="weights/3")
            client.put(np.ones(2 * MIB, np.uint8), name="full/1")
        assert len(files(folder)) == 3
        client.delete("full/1")
        # Its only holder is gone, so the name is free.
        eventually(lambda: len(client.status()["members"]) == 1)
        client.put(value(7), name="weights/1")
        client.delete("weights/2")
        with process(folder, "--spill-persistent", "--join", far.address) as node, node.client() as own:
            same(own.get("weights/1", timeout=SOON), value(7))
            same(own.get(away, timeout=SOON), value(3))
            eventually(lambda: len(files(folder)) == 1)
            with pytest.raises(hoplite.Timeout, match="no client has put it"):
                own.get("weights/2", timeout=0.2)


@pytest.mark.faults("a node is killed")
@pytest.mark.parametrize("keep", [True, False])
def test_a_node_killed_while_it_spills_leaves_no_partial_object(keep: bool, tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    options = ["--spill-persistent"] if keep else []
    with process(folder, *options) as node:
        refs: list[Ref] = []
        is_over = threading.Event()

        def fill() -> None:
            with contextlib.suppress(hoplite.HopliteError), node.client() as client:
                while True:
                    refs.append(client.put(value(len(refs)), name=f"group/{len(refs)}", timeout=SOON))
                    if len(refs) == COUNT // 2:
                        is_over.set()

        filling = Later(fill)
        assert is_over.wait(SOON)
        kill(node.process)
        filling.result()
    assert files(folder)
    # As if the node had been killed while it wrote this file, regardless of what it wrote.
    half = files(folder)[0].with_name("1-1.1-1.spill")
    half.write_bytes(files(folder)[0].read_bytes()[: SIZE // 2])
    with process(folder, *options) as node, node.client() as client:
        assert not half.exists()
        back = {row["ref"] for row in client.objects()}
        assert len(back) == len(files(folder))
        assert bool(back) == keep
        for ref in back:
            same(client.get(ref, timeout=SOON), value(int(ref.rpartition("/")[2])))


def test_two_nodes_do_not_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    with embedded(folder):
        with pytest.raises(hoplite.InvalidArgument, match=f"can't spill to {folder}: another node spills there"):
            hoplite.Node(spill=folder, socket=tmp_path / "other.sock")
        with pytest.raises(hoplite.HopliteError, match="another node spills there"), process(folder):
            pass
    with embedded(folder) as client:
        assert client.status()["store"]["spill_limit"] > 0


def test_an_unusable_spill_folder_is_rejected_at_the_start(tmp_path: Path) -> None:
    def refused(folder: Path | str, why: str) -> None:
        with pytest.raises(hoplite.InvalidArgument, match=why) as raised:
            hoplite.Node(spill=folder, socket=tmp_path / "own.sock")
        assert str(folder) in str(raised.value)
        assert not (tmp_path / "own.sock").exists()

    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "not a folder")
    refused(tmp_path / "file" / "below", "Not a directory")
    refused(f"/dev/shm/hoplite-spill-{os.getpid()}", r"it is in memory \(tmpfs\)")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    refused(tmp_path / "open", "run chmod go-w on it")
    if os.geteuid() == 0:
        (tmp_path / "foreign").mkdir(mode=0o700)
        os.chown(tmp_path / "foreign", 12345, -1)
        refused(tmp_path / "foreign", "it belongs to user 12345")
    else:
        (tmp_path / "closed").mkdir(mode=0o500)
        refused(tmp_path / "closed", "Permission denied")


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    folder.mkdir(mode=0o700)
    (folder / "notes.txt").write_text("mine")
    (folder / "strange.spill").write_text("no object")
    with embedded(folder, spill_persistent=True) as client:
        assert client.objects() == []
        assert (folder / "notes.txt").read_text() == "mine"
        assert not (folder / "strange.spill").exists()
