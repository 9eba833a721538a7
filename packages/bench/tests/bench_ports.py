"""Ports of the bench's systems for tests on loopback: other ones in each process that pytest runs tests in."""

from __future__ import annotations

import os

from hoplite_bench.systems import hoplite, wire

# "gw0", "gw1" and so on; of a run without pytest-xdist there is one process.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def take() -> None:
    """Moves the ports of systems that listen on fixed ones; what a test starts as a program of its own calls it too."""
    wire.PORT = 17420 + 100 * WORKER
    hoplite.PORT = 17421 + 100 * WORKER
