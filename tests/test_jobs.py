"""Jobs and leases: objects that exist while a client does, and are deleted after the last one has ended in any way."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hoplite
from hoplite import testing
from support import SOON, eventually, numbers
from test_lifetime import is_gone, processes

# How long objects outlive the last client, as in crates/proto/src/limits.rs.
GRACE_S = 5.0

WORKER = """
import sys
import numpy as np
import hoplite
job = sys.argv[2] or None
hp = hoplite.connect(sys.argv[1], job=job)
refs = [hp.put(b"small"), hp.put(np.ones(50_000)), hp.put(np.ones(50_000), name=sys.argv[3])]
lease = hp.lease(refs[0]) if job is None else None
print(*refs, flush=True)
sys.stdin.read()
"""


class Worker:
    """A process with a client that has a job, or a lease of the first of its objects."""

    def __init__(self, socket: str, *, job: str = "", name: str = "worker/1") -> None:
        arguments = [sys.executable, "-c", WORKER, f"unix:{socket}", job, name]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.refs = self.process.stdout.readline().split()
        assert len(self.refs) == 3

    def end(self, number: signal.Signals) -> None:
        """Ends the process with a signal."""
        self.process.send_signal(number)
        self.process.communicate()


def all_exist(client: hoplite.Client, refs: list[str]) -> bool:
    """Returns whether all of these objects exist."""
    return not any(is_gone(client, ref) for ref in refs)


def none_exist(client: hoplite.Client, refs: list[str]) -> bool:
    """Returns whether none of these objects exists."""
    return all(is_gone(client, ref) for ref in refs)


def test_a_job_ends_with_its_last_client(nodes: list[hoplite.Node]) -> None:
    one, two, other = nodes[0].client(job="run-7"), nodes[1].client(job="run-7"), nodes[2].client()
    assert (one.job, other.job) == ("run-7", None)
    refs = [str(client.put(numbers(size))) for client in (one, two) for size in (10, 50_000)]
    named = str(one.put(numbers(50_000), name="of-job/1"))
    total = str(two.reduce(refs[1::2]))
    stays = str(other.put(numbers(10)))
    value = other.get(refs[1], timeout=SOON)
    rows = {row["ref"]: row["job"] for row in other.directory(timeout=SOON)}
    assert all(rows[ref] == "run-7" for ref in [*refs, named])
    assert rows[stays] is None
    one.close()
    time.sleep(GRACE_S + 1)
    assert all_exist(other, [*refs, named, total, stays]), "a client of the job still exists"
    begun = time.monotonic()
    two.close()
    eventually(lambda: none_exist(other, [*refs, named, total]))
    assert time.monotonic() - begun >= GRACE_S, "it ended before the grace period was over"
    assert all_exist(other, [stays])
    assert (value == numbers(50_000)).all(), "views must stay valid"
    del value
    eventually(lambda: [row["ref"] for row in nodes[0].client().objects()] == [])


def test_a_job_continues_if_a_new_client_starts_in_time(nodes: list[hoplite.Node]) -> None:
    first = nodes[0].client(job="run-7")
    ref = str(first.put(numbers(50_000)))
    first.close()
    with nodes[1].client(job="run-7"):
        time.sleep(GRACE_S + 2)
        assert all_exist(nodes[2].client(), [ref])
    eventually(lambda: none_exist(nodes[2].client(), [ref]))


def test_init_takes_the_job_of_the_environment(node: hoplite.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_JOB", "run-8")
    client = hoplite.init()
    try:
        assert client.job == "run-8"
        assert node.client().job is None
        ref = str(client.put(b"of the job"))
    finally:
        hoplite.shutdown()
    eventually(lambda: none_exist(node.client(), [ref]))


@pytest.mark.parametrize("job", ["", "@1", "a\nb", 7, b"run"])
def test_an_invalid_job_name_is_rejected(node: hoplite.Node, job: object) -> None:
    with pytest.raises(hoplite.InvalidArgument, match=r"job|name"):
        node.client(job=job)  # type: ignore[arg-type]
    with pytest.raises(hoplite.InvalidArgument, match=r"job|name"):
        hoplite.connect(f"unix:{node.socket}", job=job)  # type: ignore[arg-type]


def test_a_killed_client_leaves_its_job() -> None:
    with processes(2) as nodes:
        client = nodes[1].client()
        worker = Worker(nodes[0].socket, job="run-7")
        assert all_exist(client, worker.refs)
        worker.end(signal.SIGKILL)
        eventually(lambda: none_exist(client, worker.refs))


@pytest.mark.faults("a node with the last clients of a job is killed")
def test_a_killed_node_removes_its_clients_from_their_job() -> None:
    with processes(3) as nodes:
        client = nodes[2].client()
        worker = Worker(nodes[0].socket, job="run-7")
        with hoplite.connect(f"unix:{nodes[1].socket}", job="run-7") as member:
            kept = str(member.put(numbers(50_000), name="job/kept"))
        values = [client.get(ref, timeout=SOON) for ref in [*worker.refs, kept]]
        nodes[0].process.kill()
        nodes[0].process.wait()
        eventually(lambda: len(client.status()["members"]) == 2)
        # This node has copies of the objects of the failed node, and of an object of another node.
        eventually(lambda: none_exist(client, [worker.refs[2], kept]))
        assert len(values) == 4
        worker.end(signal.SIGKILL)


def test_a_leased_object_ends_with_its_last_lease(nodes: list[hoplite.Node]) -> None:
    clients = [node.client() for node in nodes]
    ref, other = clients[0].put(numbers(50_000)), clients[0].put(numbers(10))
    first = clients[1].lease(ref)
    with clients[2].lease(ref) as second:
        assert (second.ref, second.released) == (ref, False)
        first.release()
        first.release()
        time.sleep(GRACE_S + 1)
        assert all_exist(clients[0], [str(ref)])
    assert first.released
    assert second.released
    eventually(lambda: none_exist(clients[0], [str(ref)]))
    assert all_exist(clients[1], [str(other)]), "it had no lease"


def test_dropped_leases_and_leases_of_closed_clients_are_released(nodes: list[hoplite.Node]) -> None:
    client, other = nodes[0].client(), nodes[1].client()
    refs = [str(client.put(numbers(10))) for _ in range(2)]
    lease, kept = client.lease(refs[0]), other.lease(refs[1])
    del lease
    other.close()
    assert kept.released
    kept.release()
    eventually(lambda: none_exist(client, refs))


def test_a_reservation_can_be_leased_before_its_put(nodes: list[hoplite.Node]) -> None:
    client = nodes[0].client()
    ref = client.reserve()
    with client.lease(ref):
        client.put(numbers(50_000), name=ref)
        assert all_exist(nodes[1].client(), [str(ref)])
    eventually(lambda: none_exist(nodes[1].client(), [str(ref)]))


def test_a_killed_client_releases_its_leases() -> None:
    with processes(2) as nodes:
        client = nodes[1].client()
        worker = Worker(nodes[0].socket)
        assert all_exist(client, worker.refs)
        worker.end(signal.SIGKILL)
        eventually(lambda: none_exist(client, worker.refs[:1]))
        assert all_exist(client, worker.refs[1:])


@pytest.mark.faults("the node with the last lease is killed")
def test_a_killed_node_releases_the_leases_of_its_clients() -> None:
    with processes(3) as nodes:
        client = nodes[2].client()
        ref = client.put(numbers(50_000))
        holder = nodes[0].client()
        lease = holder.lease(ref)
        nodes[0].process.kill()
        nodes[0].process.wait()
        eventually(lambda: none_exist(client, [str(ref)]))
        lease.release()


@pytest.mark.faults("a node is killed")
def test_a_killed_node_leaves_only_the_memory_of_open_views() -> None:
    """Its memory is an anonymous file. The next node at its path replaces its socket."""
    maps = _maps()
    with testing.node_process("--capacity", "64MiB") as node:
        client = node.client()
        value = client.get(client.put(np.arange(1_000_000)), timeout=SOON)
        node.process.kill()
        node.process.wait()
        assert int(value.sum()) == sum(range(1_000_000)), "views must stay valid"
        assert _maps() > maps
        del value
        client.close()
        del client
        eventually(lambda: _maps() <= maps)
        assert Path(node.socket).exists()
        with hoplite.Node(socket=node.socket, capacity="64MiB") as again:
            assert bytes(hoplite.connect(f"unix:{again.socket}").get(again.client().put(b"x"))) == b"x"


def _maps() -> int:
    """Returns the number of mappings of nodes' memory in this process."""
    return Path("/proc/self/maps").read_text().count("memfd:hoplite")
