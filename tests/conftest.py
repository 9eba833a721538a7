"""What all tests share: a cluster of three nodes, and no trace of this user's own nodes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from hoplite import testing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import hoplite


@pytest.fixture(autouse=True)
def _own_runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test neither finds nor serves the default socket of the user who runs it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for variable in [name for name in os.environ if name.startswith("HOPLITE_")]:
        monkeypatch.delenv(variable)


@pytest.fixture
def nodes() -> Iterator[list[hoplite.Node]]:
    """Three embedded nodes on loopback."""
    with testing.cluster(3) as nodes:
        yield nodes


@pytest.fixture
def clients(nodes: list[hoplite.Node]) -> list[hoplite.Client]:
    """A client of each of the three nodes."""
    return [node.client() for node in nodes]
