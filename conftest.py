"""Fixtures of all tests: a cluster, isolation from this user's own nodes, and a check for unexpected failures."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

import pytest

import hoplite
import peace
import shared
from hoplite import testing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any


# Ray is in the environments of `make test-ray` and `make test-rl`; torch is in that of `make test-torch`, too.
HAS_RAY = importlib.util.find_spec("ray") is not None
pytest_plugins = ["rays"] if HAS_RAY else []
HAS_TORCH = importlib.util.find_spec("torch") is not None
OF_TORCH = ["tests/test_torch_*.py", "tests/test_rl_*.py", "packages/bench/tests/test_select_auto.py"]
collect_ignore_glob = ([] if HAS_RAY else ["tests/test_ray_*.py"]) + ([] if HAS_TORCH else OF_TORCH)


@pytest.fixture(autouse=True)
def _own_runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolates a test from the default socket and the settings of the user that runs it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for variable in [name for name in os.environ if name.startswith(("HOPLITE_", "SLURM_"))]:
        monkeypatch.delenv(variable)


@pytest.fixture(autouse=True)
def _peace(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test in which nodes restart, fail or reject something, unless its mark `faults` names the fault."""
    marker = request.node.get_closest_marker("faults")
    if marker is not None:
        assert marker.args, f"{request.node.name}: faults() needs a reason: which fault does it inject?"
        assert isinstance(marker.args[0], str), f"{request.node.name}: the reason of faults() is text"
        yield
        return
    noted: list[dict[str, Any]] = []
    file = tmp_path / "peace.jsonl"
    watch = peace.Watch(noted.append)
    with monkeypatch.context() as replaced:
        watch.install(replaced.setattr)
        replaced.setenv(peace.FILE_VARIABLE, str(file))
        yield
        watch.look_at_all()
    found = peace.disturbances(noted, file)
    assert not found, f"{'; '.join(found)}: unexpected without a fault; if the test injects one, mark it faults(REASON)"


@pytest.fixture
def nodes() -> Iterator[list[hoplite.Node]]:
    """Three embedded nodes on loopback."""
    with testing.cluster(3) as nodes:
        yield nodes


@pytest.fixture
def clients(nodes: list[hoplite.Node]) -> list[hoplite.Client]:
    """A client of each of the three nodes."""
    return [node.client() for node in nodes]


@pytest.fixture(scope="module")
def _cluster() -> Iterator[shared.Cluster]:
    with shared.Cluster() as cluster:
        yield cluster


@pytest.fixture
def shared_nodes(request: pytest.FixtureRequest, _cluster: shared.Cluster) -> Iterator[list[hoplite.Node]]:
    """Three embedded nodes that tests of a module share. A test must not stop them; it fails if it leaves something."""
    with _cluster.lent(request.node.get_closest_marker("faults") is not None) as nodes:
        yield nodes


@pytest.fixture
def node() -> Iterator[hoplite.Node]:
    """The default node of this user, for the processes of a test."""
    with hoplite.Node(capacity="256MiB") as node:
        yield node


@pytest.fixture
def client(node: hoplite.Node) -> hoplite.Client:
    """A client of this user's node."""
    return node.client()
