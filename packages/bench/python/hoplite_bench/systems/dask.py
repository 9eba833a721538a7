"""Dask as its users write it: one worker on each host, futures of arrays, one client that submits tasks.

The scheduler and the driver run on the first host, a worker on each host. This module has command lines and memory
estimates; `ranks/dask_driver.py` submits the tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_bench.systems.base import OPS, Driven, Variant

if TYPE_CHECKING:
    from hoplite_bench.systems.base import Host, Launch

# Not Dask's default 8786, because another user's cluster may run on the hosts.
PORT = 17440
REPLICATE = "replicate"

SETTINGS = {
    # Groups are frozen while others are measured; no worker may be declared dead because of that.
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "null",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1 hour",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "1 day",
    # A nanny would set these for the worker that it starts; see the comment on --no-nanny.
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class Dask(Driven):
    """Tasks of a client; Dask transfers their arguments to the workers that run them."""

    name = "dask"
    requirements = ("distributed==2026.8.0", "numpy==2.4.6")
    program = "dask_driver.py"
    settings = SETTINGS

    def variants(self, op: str) -> list[Variant]:
        """Tasks that take the array; for a broadcast also the client's replicate, which uses a tree."""
        if op == "broadcast":
            return [Variant(), Variant(REPLICATE)]
        return [Variant()] if op in OPS else []

    def start(self, launch: Launch, group: str) -> None:  # noqa: ARG002 - it has one group
        """Starts the scheduler, a worker on each host, and the driver."""
        head = launch.hosts[0]
        scheduler = f"tcp://{head.address}:{PORT}"
        commands = [
            (head, ["scheduler", "--host", head.address, "--port", str(PORT)]),
            *((host, ["worker", scheduler, *worker_options(launch, host)]) for host in launch.hosts),
        ]
        for host, (what, *command) in commands:
            # Any free port for the web server, which runs without its pages.
            command += ["--no-dashboard", "--dashboard-address", f"{host.address}:0"]
            launch.spawn(host, [self.python, "-m", f"distributed.cli.dask_{what}", *command], env=self.environment)
        self.drive(launch, "--scheduler", scheduler)

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """Inputs, received arrays and sums in the workers' own memory, and two arrays per host for the comparison.

        Dask receives an array in pieces of 64 MiB and joins them, so a received array briefly exists twice.
        """
        arrays = {
            "rtt": 1 + 2 * 2,
            "broadcast": 1 + 2 * (hosts - 1),
            "gather": hosts + 2 * (hosts - 1),
            "reduce": hosts + 2 * (hosts - 1) + 1,
            "allreduce": hosts + 2 * (hosts - 1) + 1 + 2 * (hosts - 1),
        }
        return (arrays[op] + 2 * hosts) * nbytes


def worker_options(launch: Launch, host: Host) -> list[str]:
    """Returns the options of a host's worker."""
    return [
        "--host",
        host.address,
        "--name",
        f"rank{host.number}",
        "--nthreads",
        "1",
        # A nanny is another Python process per host that starts the worker, sets the variables in SETTINGS and restarts
        # the worker when it dies. No array passes through it.
        "--no-nanny",
        # The limit applies to the memory of the whole machine, which all hosts of a lab share, and beyond it Dask would
        # write to disk. `memory` determines what fits.
        "--memory-limit",
        "0",
        "--local-directory",
        str(launch.folder / str(host.number)),
    ]
