"""Ports of the bench's systems for tests on loopback: different ones in each pytest process."""

from __future__ import annotations

import os

from hoplite_bench.systems import hoplite, wire

# "gw0", "gw1" and so on; without pytest-xdist there is one process.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def take() -> None:
    """Moves the ports of systems with fixed ports; programs that a test starts call it too."""
    wire.PORT = 17420 + 100 * WORKER
    hoplite.PORT = 17421 + 100 * WORKER
