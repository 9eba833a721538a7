"""What all tests share: a cluster of three nodes, no trace of this user's own nodes, and peace if no fault is made."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

import pytest

import hoplite
import peace
from hoplite import testing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any


# Ray is in the environment of `make test-ray` alone.
HAS_RAY = importlib.util.find_spec("ray") is not None
pytest_plugins = ["rays"] if HAS_RAY else []
collect_ignore_glob = [] if HAS_RAY else ["tests/test_ray_*.py"]


@pytest.fixture(autouse=True)
def _own_runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test neither finds nor serves the default socket of the user who runs it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for variable in [name for name in os.environ if name.startswith(("HOPLITE_", "SLURM_"))]:
        monkeypatch.delenv(variable)


@pytest.fixture(autouse=True)
def _peace(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without a fault nothing restarts, fails or is refused: a test that makes one says so by `faults`."""
    marker = request.node.get_closest_marker("faults")
    if marker is not None:
        assert marker.args, f"{request.node.name}: faults() needs the reason: which fault does it make?"
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
    said = peace.disturbances(noted, file)
    assert not said, f"{'; '.join(said)}: without a fault this is wrong; a test that makes one is marked faults(WHICH)"


@pytest.fixture
def nodes() -> Iterator[list[hoplite.Node]]:
    """Three embedded nodes on loopback."""
    with testing.cluster(3) as nodes:
        yield nodes


@pytest.fixture
def clients(nodes: list[hoplite.Node]) -> list[hoplite.Client]:
    """A client of each of the three nodes."""
    return [node.client() for node in nodes]


@pytest.fixture
def node() -> Iterator[hoplite.Node]:
    """This user's node, as far as a test's processes can see."""
    with hoplite.Node(capacity="256MiB") as node:
        yield node


@pytest.fixture
def client(node: hoplite.Node) -> hoplite.Client:
    """A client of this user's node."""
    return node.client()
