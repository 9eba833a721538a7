"""`hoplite.ray` with Ray Client (`ray://`): the outside process gets an error, its tasks use Hoplite."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rays import RAY_SOON, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ray.cluster_utils import Cluster

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(180),
    pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="Ray Client needs grpcio"),
]

REFUSED = """
import sys
import numpy as np
import ray
import hoplite
import hoplite.ray

ray.init(sys.argv[1])
own = ray.put(1)
for what in (
    hoplite.ray.start,
    hoplite.ray.stop,
    hoplite.ray.status,
    hoplite.ray.client,
    hoplite.ray.register,
    lambda: hoplite.ray.put(np.zeros(3)),
    lambda: hoplite.ray.get(own),
    lambda: hoplite.ray.get("name"),
    lambda: hoplite.ray.ref(own),
    lambda: hoplite.ray.wait([own]),
    lambda: hoplite.ray.reduce([own]),
):
    try:
        what()
    except hoplite.ConnectError as error:
        assert "connected by Ray Client (ray://)" in str(error), error
    else:
        raise AssertionError(what)
"""

TASKS = """
import sys
import numpy as np
import ray
import hoplite.ray

ray.init(sys.argv[1])

@ray.remote(num_cpus=0)
class Owner:
    def put(self, number):
        self.own = hoplite.ray.put(np.full(300_000, number))
        return [self.own]

@ray.remote(num_cpus=0)
def add(refs):
    return ray.get(hoplite.ray.reduce(refs))

owners = [Owner.remote() for _ in range(2)]
refs = [ref for owner in owners for ref in ray.get(owner.put.remote(1))]
assert ray.get(refs[0])[-1] == 1
total = ray.get(add.remote(refs))
assert total.shape == (300_000,) and (total == 2).all()
"""


@pytest.fixture
def address(started: Cluster) -> Iterator[str]:
    """The address of a Ray Client server for the cluster."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = [sys.executable, "-m", "ray.util.client.server", "--address", started.address]
    with subprocess.Popen([*server, "--host", "127.0.0.1", "--port", str(port), "--mode", "legacy"]) as process:
        try:
            wait_until(lambda: process.poll() is not None or _accepts(port), "the server of Ray Client answers")
            yield f"ray://127.0.0.1:{port}"
        finally:
            process.terminate()


def _accepts(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("program", [REFUSED, TASKS], ids=["its process is rejected", "its tasks use Hoplite"])
def test_programs_with_ray_client(address: str, program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, address], capture_output=True, text=True, timeout=RAY_SOON, check=False
    )
    assert done.returncode == 0, done.stderr
