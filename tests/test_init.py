"""Init and connect: how a script finds its node, each in a process of its own as scripts are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hoplite
from hoplite import Node, Ref, testing
from support import numbers

TELL = 'import hoplite; hp = hoplite.init(); print(hp.status()["id"], hp.node is not None)'


def run(script: str, **environment: str) -> str:
    """Runs a script in another process of this test's runtime folder; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_alone_it_starts_a_node_at_the_default_socket(tmp_path: Path) -> None:
    """And takes it away at the end of the process."""
    script = TELL + '; print(hp.node.socket); print(hp.get(hp.put(b"x")) == b"x")'
    lines = run(script).splitlines()
    assert lines[0].endswith("True")
    assert lines[1:] == [str(tmp_path / "hoplite" / "node.sock"), "True"]
    assert not Path(lines[1]).exists()


def test_it_finds_the_node_that_runs_here() -> None:
    with Node() as node:
        assert run(TELL) == f"{node.id} False"
        assert hoplite.connect(node.socket).status()["id"] == node.id


def test_embedded_starts_a_node_of_ones_own_all_the_same() -> None:
    with Node() as node:
        told = run(TELL.replace("init()", "init(embedded=True)"))
        assert told.endswith("True")
        assert node.id not in told


def test_an_address_in_the_environment_comes_first() -> None:
    """A socket to attach to, or a cluster to join."""
    with Node(), testing.cluster(2) as nodes:
        assert run(TELL, HOPLITE_ADDRESS=f"unix:{nodes[0].socket}") == f"{nodes[0].id} False"
        joined = run(TELL + '; print(len(hp.status()["members"]))', HOPLITE_ADDRESS=nodes[1].address)
        assert joined.splitlines()[0].endswith("True")
        assert int(joined.splitlines()[1]) >= 2
        both = ",".join(node.address for node in nodes)
        assert run(TELL, HOPLITE_ADDRESS=both).endswith("True")


def test_twice_in_a_process_is_one_node() -> None:
    script = """
import hoplite
first, second = hoplite.init(), hoplite.init()
assert first.node is second.node is not None
ref = first.put(b"x")
first.close()
assert second.get(ref) == b"x"
second.node.close()
third = hoplite.init()
assert third.node is not second.node
"""
    run(script)


def test_options_of_a_node_are_not_dropped_silently() -> None:
    with Node() as node:
        for address in (None, f"unix:{node.socket}"):
            with pytest.raises(hoplite.InvalidArgument, match="capacity"):
                hoplite.init(address, capacity="1GiB")


@pytest.mark.parametrize("address", ["nonsense", "unix:", "host:", ":7420", "host:port", 7])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(hoplite.InvalidArgument):
        hoplite.init(address)


def test_connect_to_nobody(tmp_path: Path) -> None:
    with pytest.raises(hoplite.ConnectError, match="nobody"):
        hoplite.connect(f"unix:{tmp_path / 'nobody'}")
    with pytest.raises(hoplite.ConnectError, match="nobody"):
        hoplite.init(f"unix:{tmp_path / 'nobody'}")
    with pytest.raises(hoplite.InvalidArgument, match="init"):
        hoplite.connect("10.0.0.1:7420")


def test_an_unpickled_ref_asks_the_client_of_init(nodes: list[Node]) -> None:
    client = nodes[0].client()
    part = client.put(numbers(10))
    total = client.reduce([part])
    with hoplite.init(f"unix:{nodes[0].socket}"):
        assert Ref(str(total)).inputs(timeout=30) == [part]
    with pytest.raises(hoplite.InvalidArgument, match="client"):
        Ref(str(total)).inputs(timeout=30)


def test_a_runtime_folder_of_another_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "hoplite").mkdir(mode=0o755)
    with pytest.raises(hoplite.HopliteError, match="not a folder of this user's alone"):
        hoplite.init()


def test_importing_hoplite_does_not_import_numpy() -> None:
    assert run("import sys, hoplite; print('numpy' in sys.modules)") == "False"


def test_a_debug_build_warns_and_measures_nothing() -> None:
    script = """
import importlib, warnings
import hoplite
hoplite._native.DEBUG_BUILD = True
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    importlib.reload(hoplite)
assert "without optimisation" in str(caught[0].message)
from hoplite.bench import machine
try:
    machine.refuse_debug_build()
except hoplite.HopliteError as error:
    print(error)
"""
    assert "make build" in run(script)
