"""Dask clusters of real processes for tests: workers on one host, or on several simulated hosts.

Hoplite identifies a host by its runtime folder of sockets, so a worker with its own folder acts as a separate host.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from distributed import Client, LocalCluster, Nanny, Scheduler
from distributed.deploy.spec import SpecCluster

import hoplite
from hoplite.tools.peace import disturbances
from support import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hoplite.dask import Installation

WORKER = {"nthreads": 1, "memory_limit": 0, "dashboard": False}


@contextlib.contextmanager
def one_host(folder: Path, workers: int = 3) -> Iterator[Client]:
    """Starts a cluster whose workers share this host."""
    environment = {"XDG_RUNTIME_DIR": str(folder)}
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None, memory_limit=0, env=environment
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextlib.contextmanager
def hosts(folders: Sequence[Path]) -> Iterator[Client]:
    """Starts a cluster with one worker per folder. Each folder acts as a host, and a nanny restarts the worker."""
    workers = {
        number: {
            "cls": Nanny,
            "options": {
                **WORKER,
                "env": {"XDG_RUNTIME_DIR": str(folder)},
                "local_directory": str(folder),
                "host": "127.0.0.1",
            },
        }
        for number, folder in enumerate(folders)
    }
    scheduler = {"cls": Scheduler, "options": {"host": "127.0.0.1", "dashboard": False, "dashboard_address": None}}
    with SpecCluster(workers=workers, scheduler=scheduler) as cluster, Client(cluster) as client:
        client.wait_for_workers(len(folders), timeout=60)
        yield client


def folders(base: Path, count: int) -> list[Path]:
    """Creates the runtime folders of `count` simulated hosts."""
    found = [base / str(number) for number in range(count)]
    for folder in found:
        folder.mkdir(mode=0o700)
    return found


def workers(client: Client) -> dict[str, int]:
    """Returns the workers' addresses and process ids."""
    # A worker that is shutting down may still be listed.
    found: dict[str, int] = client.run(os.getpid, on_error="ignore")
    return found


def on_each(client: Client, function: Any, future: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """Runs a task that takes a future on each worker."""
    return client.gather(  # type: ignore[no-any-return]
        [client.submit(function, future, workers=[worker], pure=False) for worker in workers(client)]
    )


@contextlib.contextmanager
def node_clients(installation: Installation) -> Iterator[list[hoplite.Client]]:
    """Connects a client to each node."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(hoplite.connect(row["socket"])) for row in installation.nodes]


def eventually_none_is_left(installation: Installation) -> None:
    """Waits until no node holds an object."""
    with node_clients(installation) as clients:
        eventually(lambda: not any(client.objects() for client in clients))


def at_peace(installation: Installation) -> None:
    """Asserts that no node restarted or rejected anything."""
    with node_clients(installation) as clients:
        found = [line for client in clients for line in disturbances(client.status()["counters"])]
    assert not found
