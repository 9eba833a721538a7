"""Jobs and leases: objects that live as long as a client, and are gone when the last one is, however it went."""

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

# How long objects outlive the last client, as crates/proto/src/limits.rs says.
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
    """A process with a client of a node, of a job or with a lease of the first of its objects."""

    def __init__(self, socket: str, *, job: str = "", name: str = "worker/1") -> None:
        arguments = [sys.executable, "-c", WORKER, f"unix:{socket}", job, name]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.refs = self.process.stdout.readline().split()
        assert len(self.refs) == 3

    def end(self, number: signal.Signals) -> None:
        """Ends it by a signal."""
        self.process.send_signal(number)
        self.process.communicate()


def are_there(client: hoplite.Client, refs: list[str]) -> bool:
    """Whether all of these objects can be got."""
    return not any(is_gone(client, ref) for ref in refs)


def are_gone(client: hoplite.Client, refs: list[str]) -> bool:
    """Whether none of these objects can be got."""
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
    assert are_there(other, [*refs, named, total, stays]), "a client of the job lives"
    begun = time.monotonic()
    two.close()
    eventually(lambda: are_gone(other, [*refs, named, total]))
    assert time.monotonic() - begun >= GRACE_S, "it ended before a client could come again"
    assert are_there(other, [stays])
    assert (value == numbers(50_000)).all(), "readers keep what they have got"
    del value
    eventually(lambda: [row["ref"] for row in nodes[0].client().objects()] == [])


def test_a_job_goes_on_if_a_client_comes_in_time(nodes: list[hoplite.Node]) -> None:
    first = nodes[0].client(job="run-7")
    ref = str(first.put(numbers(50_000)))
    first.close()
    with nodes[1].client(job="run-7"):
        time.sleep(GRACE_S + 2)
        assert are_there(nodes[2].client(), [ref])
    eventually(lambda: are_gone(nodes[2].client(), [ref]))


def test_init_takes_the_job_of_the_environment(node: hoplite.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_JOB", "run-8")
    client = hoplite.init()
    try:
        assert client.job == "run-8"
        assert node.client().job is None
        ref = str(client.put(b"of the job"))
    finally:
        hoplite.shutdown()
    eventually(lambda: are_gone(node.client(), [ref]))


@pytest.mark.parametrize("job", ["", "@1", "a\nb", 7, b"run"])
def test_what_is_no_name_is_no_job(node: hoplite.Node, job: object) -> None:
    with pytest.raises(hoplite.InvalidArgument, match=r"job|name"):
        node.client(job=job)  # type: ignore[arg-type]
    with pytest.raises(hoplite.InvalidArgument, match=r"job|name"):
        hoplite.connect(f"unix:{node.socket}", job=job)  # type: ignore[arg-type]


def test_a_client_that_is_killed_leaves_its_job() -> None:
    with processes(2) as nodes:
        client = nodes[1].client()
        worker = Worker(nodes[0].socket, job="run-7")
        assert are_there(client, worker.refs)
        worker.end(signal.SIGKILL)
        eventually(lambda: are_gone(client, worker.refs))


@pytest.mark.faults("a node with the last clients of a job is killed")
def test_a_node_that_is_killed_takes_its_clients_out_of_their_job() -> None:
    with processes(3) as nodes:
        client = nodes[2].client()
        worker = Worker(nodes[0].socket, job="run-7")
        with hoplite.connect(f"unix:{nodes[1].socket}", job="run-7") as member:
            kept = str(member.put(numbers(50_000), name="job/kept"))
        values = [client.get(ref, timeout=SOON) for ref in [*worker.refs, kept]]
        nodes[0].process.kill()
        nodes[0].process.wait()
        eventually(lambda: len(client.status()["members"]) == 2)
        # What the dead node held, copies of it are here; and what another one held.
        eventually(lambda: are_gone(client, [worker.refs[2], kept]))
        assert len(values) == 4
        worker.end(signal.SIGKILL)


def test_a_held_object_ends_with_its_last_lease(nodes: list[hoplite.Node]) -> None:
    clients = [node.client() for node in nodes]
    ref, other = clients[0].put(numbers(50_000)), clients[0].put(numbers(10))
    first = clients[1].lease(ref)
    with clients[2].lease(ref) as second:
        assert (second.ref, second.released) == (ref, False)
        first.release()
        first.release()
        time.sleep(GRACE_S + 1)
        assert are_there(clients[0], [str(ref)])
    assert first.released
    assert second.released
    eventually(lambda: are_gone(clients[0], [str(ref)]))
    assert are_there(clients[1], [str(other)]), "of this no lease was taken"


def test_a_lease_that_is_dropped_is_released_and_so_is_that_of_a_closed_client(nodes: list[hoplite.Node]) -> None:
    client, other = nodes[0].client(), nodes[1].client()
    refs = [str(client.put(numbers(10))) for _ in range(2)]
    lease, kept = client.lease(refs[0]), other.lease(refs[1])
    del lease
    other.close()
    assert kept.released
    kept.release()
    eventually(lambda: are_gone(client, refs))


def test_what_is_promised_can_be_held_before_it_is_there(nodes: list[hoplite.Node]) -> None:
    client = nodes[0].client()
    ref = client.reserve()
    with client.lease(ref):
        client.put(numbers(50_000), name=ref)
        assert are_there(nodes[1].client(), [str(ref)])
    eventually(lambda: are_gone(nodes[1].client(), [str(ref)]))


def test_a_client_that_is_killed_lets_go_of_what_it_held() -> None:
    with processes(2) as nodes:
        client = nodes[1].client()
        worker = Worker(nodes[0].socket)
        assert are_there(client, worker.refs)
        worker.end(signal.SIGKILL)
        eventually(lambda: are_gone(client, worker.refs[:1]))
        assert are_there(client, worker.refs[1:])


@pytest.mark.faults("the node with the last lease is killed")
def test_a_node_that_is_killed_lets_go_of_what_its_clients_held() -> None:
    with processes(3) as nodes:
        client = nodes[2].client()
        ref = client.put(numbers(50_000))
        holder = nodes[0].client()
        lease = holder.lease(ref)
        nodes[0].process.kill()
        nodes[0].process.wait()
        eventually(lambda: are_gone(client, [str(ref)]))
        lease.release()


@pytest.mark.faults("a node is killed")
def test_of_a_node_that_was_killed_nothing_is_left_but_what_is_read() -> None:
    """Its memory is that of a file without a name; its socket is replaced by the next node there."""
    maps = _maps()
    with testing.node_process("--capacity", "64MiB") as node:
        client = node.client()
        value = client.get(client.put(np.arange(1_000_000)), timeout=SOON)
        node.process.kill()
        node.process.wait()
        assert list(Path("/dev/shm").glob("*hoplite*")) == []
        assert int(value.sum()) == sum(range(1_000_000)), "a reader keeps what it has got"
        assert _maps() > maps
        del value
        client.close()
        del client
        eventually(lambda: _maps() <= maps)
        assert Path(node.socket).exists()
        with hoplite.Node(socket=node.socket, capacity="64MiB") as again:
            assert bytes(hoplite.connect(f"unix:{again.socket}").get(again.client().put(b"x"))) == b"x"


def _maps() -> int:
    """How many mappings of nodes' memory this process has."""
    return Path("/proc/self/maps").read_text().count("memfd:hoplite")
