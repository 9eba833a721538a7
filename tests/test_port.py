"""A TCP port is opened only by a node that others are to join; one that is alone is reached by its Unix socket."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import hoplite
import programs
from hoplite import Node, testing
from support import SOON, numbers, same


def ports(pid: int | str = "self") -> list[str]:
    """Where a process listens for TCP, as /proc has it."""
    links = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        # That of the folder itself is gone.
        with contextlib.suppress(FileNotFoundError):
            links.add(str(link.readlink()))
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links]


ALONE = """
import sys
import hoplite
hp = hoplite.init()
assert hp.node is not None
hp.put({"step": 7}, name="step/7")
print(hp.node.socket, hp.status()["address"], hp.status()["members"][0]["address"], flush=True)
sys.stdin.readline()
"""

# Of the same host and user, with the same defaults.
SECOND = """
import hoplite
hp = hoplite.init()
assert hp.node is None
assert hp.get("step/7", timeout=30) == {"step": 7}
print(hp.locations("step/7")[0].address)
"""


def test_init_alone_opens_no_port_and_others_of_this_host_attach() -> None:
    with programs.started(ALONE) as first:
        path, *addresses = programs.line(first).split()
        assert addresses == ["None", "None"]
        assert ports(first.pid) == []
        assert programs.run(SECOND) == "None\n"
        with hoplite.connect(path) as client:
            assert client.get("step/7") == {"step": 7}
        programs.go(first)
        assert first.wait(SOON) == 0


def test_a_node_alone_opens_no_port_and_says_how_to_join_it() -> None:
    with Node() as node, node.client() as client:
        assert ports() == []
        same(client.get(client.put(numbers(100_000))), numbers(100_000))
        assert client.locations(client.put(b"x"))[0].address is None
        assert f"unix:{node.socket}" in repr(node)
        with pytest.raises(hoplite.JoinError, match=r'without a TCP port; start it with listen="127\.0\.0\.1:0"'):
            Node(join=[node.address])


ASKED: list[dict[str, Any]] = [
    {"listen": "127.0.0.1:0"},
    {"advertise": "127.0.0.1"},
    {"cluster": "mine"},
    {"token": hoplite.new_token()},
    {"no_auth": True},
    {"no_encryption": True},
]


@pytest.mark.parametrize("options", ASKED, ids=[next(iter(options)) for options in ASKED])
def test_what_asks_for_a_cluster_opens_one_port(options: dict[str, Any]) -> None:
    with Node(**options) as node:
        assert len(ports()) == 1
        assert node.address.startswith("127.0.0.1:")


def test_what_does_not_ask_for_one_opens_none() -> None:
    asked: list[dict[str, Any]] = [{"capacity": "64MiB"}, {"no_auth": False}, {"join": []}, {"rack": "7"}]
    for options in asked:
        with Node(**options):
            assert ports() == []


EMBEDDED = "import hoplite; print(hoplite.init(node=hoplite.Node()).status()['address'], flush=True); input()"


def test_a_cluster_in_the_environment_opens_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with testing.cluster(1) as (other,):
        for name, value in (("JOIN", other.address), ("LISTEN", "127.0.0.1:0"), ("TOKEN", hoplite.new_token())):
            with monkeypatch.context() as environment:
                environment.setenv(f"HOPLITE_{name}", value)
                with programs.started(EMBEDDED) as process:
                    assert programs.line(process).startswith("127.0.0.1:"), name
                    assert len(ports(process.pid)) == 1
                    programs.go(process)
                    assert process.wait(SOON) == 0


def test_the_command_runs_a_node_for_others_to_join() -> None:
    """At the port of its default too, which a test must not take."""
    with testing.node_process() as node, node.client() as client:
        assert client.status()["address"] == node.address
        assert len(ports(node.process.pid)) == 1
