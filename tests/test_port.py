"""A node listens on TCP only if other nodes may join it; an isolated node is reached through its Unix socket."""

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
    """Returns the TCP addresses on which a process listens, from /proc."""
    links = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        # The descriptor of the directory itself is closed by now.
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

# On the same host, as the same user, with the same defaults.
SECOND = """
import hoplite
hp = hoplite.init()
assert hp.node is None
assert hp.get("step/7", timeout=30) == {"step": 7}
print(hp.locations("step/7")[0].address)
"""


def test_init_without_settings_opens_no_port_and_accepts_local_clients() -> None:
    with programs.started(ALONE) as first:
        path, *addresses = programs.line(first).split()
        assert addresses == ["None", "None"]
        assert ports(first.pid) == []
        assert programs.run(SECOND) == "None\n"
        with hoplite.connect(path) as client:
            assert client.get("step/7") == {"step": 7}
        programs.go(first)
        assert first.wait(SOON) == 0


def test_a_node_without_settings_opens_no_port_and_names_the_setting() -> None:
    with Node() as node, node.client() as client:
        assert ports() == []
        same(client.get(client.put(numbers(100_000))), numbers(100_000))
        assert client.locations(client.put(b"x"))[0].address is None
        assert f"unix:{node.socket}" in repr(node)
        with pytest.raises(hoplite.JoinError, match=r'without a TCP port; start it with listen="127\.0\.0\.1:0"'):
            Node(join=[node.address])


CLUSTER_OPTIONS: list[dict[str, Any]] = [
    {"listen": "127.0.0.1:0"},
    {"advertise": "127.0.0.1"},
    {"cluster": "mine"},
    {"token": hoplite.new_token()},
    {"no_auth": True},
    {"no_encryption": True},
]


@pytest.mark.parametrize("options", CLUSTER_OPTIONS, ids=[next(iter(options)) for options in CLUSTER_OPTIONS])
def test_settings_of_a_cluster_open_one_port(options: dict[str, Any]) -> None:
    with Node(**options) as node:
        assert len(ports()) == 1
        assert node.address.startswith("127.0.0.1:")


def test_other_settings_open_no_port() -> None:
    other_options: list[dict[str, Any]] = [{"capacity": "64MiB"}, {"no_auth": False}, {"join": []}, {"rack": "7"}]
    for options in other_options:
        with Node(**options):
            assert ports() == []


EMBEDDED = "import hoplite; print(hoplite.init(node=hoplite.Node()).status()['address'], flush=True); input()"


def test_cluster_settings_of_the_environment_open_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with testing.cluster(1) as (other,):
        for name, value in (("JOIN", other.address), ("LISTEN", "127.0.0.1:0"), ("TOKEN", hoplite.new_token())):
            with monkeypatch.context() as environment:
                environment.setenv(f"HOPLITE_{name}", value)
                with programs.started(EMBEDDED) as process:
                    assert programs.line(process).startswith("127.0.0.1:"), name
                    assert len(ports(process.pid)) == 1
                    programs.go(process)
                    assert process.wait(SOON) == 0


def test_the_command_starts_a_node_that_others_can_join() -> None:
    """Also at its default port, which a test must not use."""
    with testing.node_process() as node, node.client() as client:
        assert client.status()["address"] == node.address
        assert len(ports(node.process.pid)) == 1
