"""Which transport moved data, with a tiny program for each: TCP, CMA and shared memory, in containers and outside."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hoplite.errors import InvalidArgument
from hoplite_bench import transport
from hoplite_bench.agent import GROUP_VARIABLE
from hoplite_bench.containers import opened
from hoplite_bench.systems.base import Unavailable
from hoplite_bench.transport import network as network_module
from labs import missing
from programs import go, line
from support import SOON

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hoplite_bench.hosts import Network
    from hoplite_bench.transport import Transport

SIZE = 8 << 20

# Programs of rank 0 and of rank 1. Each prints a line when it is ready; rank 0's line is an argument of rank 1. Then
# both read a line, move SIZE bytes from rank 0 to rank 1, print "done" and wait for another line.
END = "\nprint('done', flush=True)\nsys.stdin.readline()\n"
START = f"import ctypes, mmap, os, socket, sys\nsize = {SIZE}\n"
TCP = (
    """
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
peer, _ = listener.accept()
sys.stdin.readline()
peer.sendall(bytes(size))
""",
    """
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print('ready', flush=True)
sys.stdin.readline()
left = size
while left:
    left -= len(peer.recv(left))
""",
)
CMA = (
    """
libc = ctypes.CDLL(None)
# Only a process that has been allowed to may read this one, where a security module restricts it.
libc.prctl(0x59616d61, ctypes.c_ulong(-1 & (1 << 64) - 1), 0, 0, 0)
content = ctypes.create_string_buffer(b'x' * size, size)
print(os.getpid(), ctypes.addressof(content), flush=True)
sys.stdin.readline()
""",
    """
class Vector(ctypes.Structure):
    _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
libc = ctypes.CDLL(None, use_errno=True)
libc.process_vm_readv.restype = ctypes.c_ssize_t
process, address = map(int, sys.argv[2].split())
target = ctypes.create_string_buffer(size)
print('ready', flush=True)
sys.stdin.readline()
part = size // 4
for number in range(4):
    mine = Vector(ctypes.addressof(target) + number * part, part)
    theirs = Vector(address + number * part, part)
    got = libc.process_vm_readv(process, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
    if got != part:
        print('refused', ctypes.get_errno(), flush=True)
        break
""",
)
WRITE = "print(name, flush=True)\nsys.stdin.readline()\nmemory[:] = b'x' * size\n"
READ = """
memory = mmap.mmap(os.open(sys.argv[2], os.O_RDONLY), size, prot=mmap.PROT_READ)
print('ready', flush=True)
sys.stdin.readline()
assert len(memory[:]) == size
"""
FILE = (
    f"""
name = '/dev/shm/hoplite-transport-{secrets.token_hex(4)}'
file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
os.truncate(file, size)
memory = mmap.mmap(file, size)
{WRITE}
os.unlink(name)
""",
    READ,
)
MEMFD = (
    f"""
file = os.memfd_create('transport')
os.truncate(file, size)
memory = mmap.mmap(file, size)
name = '/proc/%d/fd/%d' % (os.getpid(), file)
{WRITE}
""",
    READ,
)
SYSTEM_V = (
    """
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
segment = libc.shmget(0, ctypes.c_size_t(size), 0o1600)
address = libc.shmat(segment, None, 0)
print(segment, flush=True)
sys.stdin.readline()
ctypes.memset(address, 7, size)
libc.shmctl(segment, 0, None)
""",
    """
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
address = libc.shmat(int(sys.argv[2]), None, 0)
print('ready', flush=True)
sys.stdin.readline()
assert len(ctypes.string_at(address, size)) == size
""",
)


@contextlib.contextmanager
def started(network: Network, programs: tuple[str, str]) -> Iterator[tuple[str, list[subprocess.Popen[str]]]]:
    """Runs the two programs; yields the id of their group and both, which are ready."""
    group = f"transport-{secrets.token_hex(4)}"
    address = network.hosts[0].address
    with contextlib.ExitStack() as undo:
        ranks: list[subprocess.Popen[str]] = []
        told: list[str] = []
        for host, program in zip(network.hosts, programs, strict=True):
            python = [sys.executable, "-c", START + program + END, address, *told]
            command = shlex.join(["exec", "env", f"{GROUP_VARIABLE}={group}", *python])
            rank = subprocess.Popen(
                [network.rsh, host.name, command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            undo.enter_context(rank)
            undo.callback(rank.kill)
            told.append(line(rank))
            ranks.append(rank)
        yield group, ranks


def moved(network: Network, programs: tuple[str, str]) -> tuple[Transport, list[str]]:
    """Runs both programs; returns the transport, and what rank 1 printed."""
    with started(network, programs) as (group, ranks):
        processes = transport.processes_of(group)
        assert len(processes) == 2
        said: list[str] = []

        def run() -> None:
            # Rank 0 first, because it may write what rank 1 reads.
            for rank in ranks:
                go(rank)
                said.append(line(rank))

        def run_at_once() -> None:
            for rank in ranks:
                go(rank)
            said.extend(line(rank) for rank in ranks)

        found = transport.used(processes, SIZE, run_at_once if programs is TCP else run)
        for rank in ranks:
            go(rank)
            rank.communicate(timeout=SOON)
        return found, said


def need(name: str) -> None:
    if name != "bare" and (reason := missing()):
        pytest.skip(reason)
    try:
        with opened(name, 1):
            pass
    except Unavailable as error:
        pytest.skip(str(error))


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is missing")
SHARED = {"file": FILE, "memfd": MEMFD, "System V": SYSTEM_V}
CONTAINERS = [pytest.param(name, marks=pytest.mark.lab) for name in ("hpc", "single")]


@needs_strace
@pytest.mark.parametrize("name", ["bare", *CONTAINERS])
def test_tcp_of_one_machine_is_on_the_loopback(name: str) -> None:
    need(name)
    with opened(name, 2) as network:
        found, _ = moved(network, TCP)
    assert found.names == ("loopback TCP",)
    assert found.evidence["loopback_bytes"] >= SIZE
    assert found.evidence["tcp_segments"] > 0
    assert found.evidence["cma_calls"] == found.evidence["shared_segments"] == 0
    assert found.reason == ""


@needs_strace
@pytest.mark.lab
def test_tcp_between_containers_is_on_their_interfaces() -> None:
    need("cross")
    with opened("cross", 2) as network:
        found, _ = moved(network, TCP)
    assert found.names == ("TCP",)
    assert SIZE <= found.evidence["interface_bytes"] < SIZE * 1.2
    assert found.evidence["loopback_bytes"] == 0


@needs_strace
@pytest.mark.parametrize("name", ["bare", *CONTAINERS])
def test_bytes_of_cma_are_counted(name: str) -> None:
    need(name)
    with opened(name, 2) as network:
        found, said = moved(network, CMA)
    assert said == ["done", "done"]
    assert found.names == ("CMA",)
    assert (found.evidence["cma_bytes"], found.evidence["cma_calls"]) == (SIZE, 4)
    assert found.evidence["cma_refused"] == 0


@needs_strace
@pytest.mark.lab
def test_cma_between_containers_is_refused_and_counted() -> None:
    need("cross")
    with opened("cross", 2) as network:
        found, said = moved(network, CMA)
    assert said[1].startswith("refused")
    assert found.names == ("unknown",)
    assert (found.evidence["cma_bytes"], found.evidence["cma_calls"], found.evidence["cma_refused"]) == (0, 0, 1)
    assert found.reason == "neither network interfaces nor shared memory explain the payload"


@needs_strace
@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("name", ["bare", *CONTAINERS])
def test_shared_memory_is_mapped_and_used_by_both(name: str, kind: str) -> None:
    need(name)
    with opened(name, 2) as network:
        found, said = moved(network, SHARED[kind])
    assert said == ["done", "done"]
    assert found.names == ("shared memory",)
    assert found.evidence["shared_segments"] == 1
    # Each of the two used every page.
    assert found.evidence["shared_touched_bytes"] >= 2 * SIZE


@needs_strace
@pytest.mark.lab
def test_equal_ids_of_system_v_in_two_containers_are_not_shared() -> None:
    need("cross")
    with opened("cross", 2) as network:
        found, said = moved(network, (SYSTEM_V[0], SYSTEM_V[0]))
    assert said == ["done", "done"]
    assert found.names == ("unknown",)
    assert found.evidence["shared_segments"] == 0


@needs_strace
def test_bytes_of_other_programs_on_the_same_interface_are_not_counted() -> None:
    with opened("bare", 2) as network, contextlib.ExitStack() as undo:
        _, strangers = undo.enter_context(started(network, TCP))
        with started(network, MEMFD) as (group, ranks):

            def run() -> None:
                for rank in strangers:
                    go(rank)
                for rank in [*strangers, *ranks]:
                    if rank in ranks:
                        go(rank)
                    assert line(rank) == "done"

            found = transport.used(transport.processes_of(group), SIZE, run)
    assert found.names == ("shared memory",)
    assert found.evidence["loopback_bytes"] >= SIZE
    assert found.evidence["socket_loopback_bytes"] == 0


def test_a_closed_socket_makes_the_bytes_of_sockets_unknown() -> None:
    unknown = {"socket_interface_bytes": -1, "socket_loopback_bytes": -1}
    assert network_module.received({1: (True, 5)}, {2: (True, 5)}) == unknown
    assert network_module.received(None, {}) == unknown
    seen = network_module.received({1: (True, 5)}, {1: (True, 9), 2: (True, 10), 3: (False, 7)})
    assert seen == {"socket_interface_bytes": 7, "socket_loopback_bytes": 14}


def test_without_strace_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with opened("bare", 2) as network:
        found, _ = moved(network, CMA)
    assert found.names == ("unknown",)
    assert found.evidence["cma_calls"] == -1
    assert found.reason == "calls of CMA were not counted, because strace is missing: apt-get install strace"


def test_a_refused_strace_is_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "strace"
    fake.write_text(
        "#!/bin/sh\necho 'strace: attach: ptrace(PTRACE_SEIZE, 1): Operation not permitted' >&2\nexec sleep 0\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with opened("bare", 2) as network:
        found, _ = moved(network, CMA)
    assert found.names == ("unknown",)
    assert "PTRACE_SEIZE, 1): Operation not permitted; run as root with CAP_SYS_PTRACE" in found.reason


def test_processes_of_a_group_have_its_mark() -> None:
    assert transport.processes_of("transport-nobody") == []


EVIDENCE = {
    "payload_bytes": 100 << 20,
    "interface_bytes": 0,
    "loopback_bytes": 0,
    "tcp_segments": 10,
    "socket_interface_bytes": -1,
    "socket_loopback_bytes": -1,
    "cma_bytes": 0,
    "cma_calls": 0,
    "cma_refused": 0,
    "shared_segments": 0,
    "shared_touched_bytes": 0,
}


@pytest.mark.parametrize(
    ("seen", "names"),
    [
        ({"interface_bytes": 104 << 20}, ("TCP",)),
        # Another program's megabyte is no transport.
        ({"interface_bytes": 1 << 20, "loopback_bytes": 104 << 20}, ("loopback TCP",)),
        # Other programs of the machine use the same interface; the processes' own sockets carried nothing.
        (
            {
                "loopback_bytes": 104 << 20,
                "socket_loopback_bytes": 0,
                "socket_interface_bytes": 0,
                "cma_bytes": 100 << 20,
            },
            ("CMA",),
        ),
        # Packets without a segment of TCP.
        ({"interface_bytes": 104 << 20, "tcp_segments": 0}, ("unknown",)),
        # A ring through which everything passed.
        ({"shared_segments": 1, "shared_touched_bytes": 1 << 20}, ("shared memory",)),
        # Mapped, but the kernel does not report how much was used.
        ({"shared_segments": 1, "shared_touched_bytes": -1}, ("unknown",)),
        # Mapped, but not used.
        ({"shared_segments": 1}, ("unknown",)),
        # Small messages in shared memory, large ones by CMA.
        ({"shared_segments": 1, "shared_touched_bytes": 1 << 20, "cma_bytes": 95 << 20}, ("CMA",)),
        (
            {"shared_segments": 1, "shared_touched_bytes": 9 << 20, "cma_bytes": 50 << 20, "interface_bytes": 20 << 20},
            ("shared memory", "CMA", "TCP"),
        ),
        # Without a count of CMA, a small ring is no evidence; a large memory is, but does not exclude CMA.
        ({"shared_segments": 1, "shared_touched_bytes": 1 << 20, "cma_bytes": -1}, ("unknown",)),
        ({"shared_segments": 1, "shared_touched_bytes": 90 << 20, "cma_bytes": -1}, ("shared memory", "unknown")),
        # What interfaces carried leaves nothing to explain.
        ({"loopback_bytes": 104 << 20, "cma_bytes": -1}, ("loopback TCP",)),
    ],
)
def test_names_follow_from_the_evidence(seen: dict[str, int], names: tuple[str, ...]) -> None:
    assert transport.judged(EVIDENCE | seen).names == names


def test_an_unknown_use_of_shared_memory_is_named() -> None:
    found = transport.judged(EVIDENCE | {"shared_segments": 1, "shared_touched_bytes": -1})
    assert found.reason == "the kernel does not report the use of shared memory (/proc/PID/smaps)"


@pytest.mark.parametrize(
    ("op", "arrays"),
    [("broadcast", 3), ("gather", 3), ("reduce", 3), ("allreduce", 6), ("allgather", 12), ("train-ps", 6), ("rtt", 2)],
)
def test_payload_is_what_must_get_to_another_rank(op: str, arrays: int) -> None:
    assert transport.payload(op, 4, 1000) == arrays * 1000


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InvalidArgument, match="no payload is known for the operation 'scatter': choose from"):
        transport.payload("scatter", 4, 1000)
    with pytest.raises(InvalidArgument, match="a payload of 4 B is too small to be recognized: use at least 1 MiB"):
        transport.used([], 4, lambda: None)


@pytest.mark.parametrize(
    ("container", "transports", "more", "said"),
    [
        ("bare", ["shared memory"], {}, []),
        ("single", ["CMA"], {"refused": 3}, []),
        ("bare", ["loopback TCP"], {}, ["library with a transport for shared memory"]),
        ("cross", ["TCP"], {}, []),
        ("cross", ["TCP"], {"elsewhere": ["loopback TCP"]}, []),
        ("cross", ["TCP"], {"elsewhere": ["CMA"]}, ["--ipc=host", "--pid=host", "may let the library", "not measured"]),
        ("cross", ["TCP"], {"elsewhere": ["shared memory"], "attaches": True}, ["node per host", "may let", "mount"]),
        ("cross", ["TCP"], {"gpus": 2}, ["--gpus all"]),
        ("single", ["shared memory"], {"refused": 3}, ["--cap-add=SYS_PTRACE"]),
    ],
)
def test_advice_fixes_what_is_slow(
    container: str, transports: list[str], more: dict[str, Any], said: list[str]
) -> None:
    advice = transport.advice(container, transports, **more)
    assert bool(advice) == bool(said)
    assert all(one in advice for one in said)
