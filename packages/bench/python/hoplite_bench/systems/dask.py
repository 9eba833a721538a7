"""Dask, the way its users write it: one worker on every host, futures of arrays, one client that submits tasks.

A scheduler on the first host, a worker on every one, and the driver beside the scheduler. Knows the command lines and
the memory; what is submitted is in `ranks/dask_driver.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_bench.systems.base import OPS, Driven, Variant

if TYPE_CHECKING:
    from hoplite_bench.systems.base import Host, Launch

# Not Dask's own 8786, for a cluster of another user may run on the hosts.
PORT = 17440
REPLICATE = "replicate"

SETTINGS = {
    # Groups are frozen while others are measured, and no worker shall be taken for dead because of that.
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "null",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1 hour",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "1 day",
    # What a nanny sets for the worker that it starts; see the comment on --no-nanny.
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class Dask(Driven):
    """A client's tasks, whose arguments Dask brings to where they run."""

    name = "dask"
    requirements = ("distributed==2026.8.0", "numpy==2.4.6")
    program = "dask_driver.py"
    settings = SETTINGS

    def variants(self, op: str) -> list[Variant]:
        """Tasks that take the array; and for a broadcast also the client's replicate, which makes a tree."""
        if op == "broadcast":
            return [Variant(), Variant(REPLICATE)]
        return [Variant()] if op in OPS else []

    def start(self, launch: Launch, group: str) -> None:  # noqa: ARG002 - it has one
        """Starts the scheduler, a worker on every host and the driver."""
        head = launch.hosts[0]
        scheduler = f"tcp://{head.address}:{PORT}"
        commands = [
            (head, ["scheduler", "--host", head.address, "--port", str(PORT)]),
            *((host, ["worker", scheduler, *worker_options(launch, host)]) for host in launch.hosts),
        ]
        for host, (what, *command) in commands:
            # Any port for what is left of the web server without its pages.
            command += ["--no-dashboard", "--dashboard-address", f"{host.address}:0"]
            launch.spawn(host, [self.python, "-m", f"distributed.cli.dask_{what}", *command], env=self.environment)
        self.drive(launch, "--scheduler", scheduler)

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """Inputs, what came over the network, and sums, all in the workers' own memory; and the comparison's two.

        Dask receives an array in pieces of 64 MiB and joins them, so one that arrives is there twice for a moment.
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
    """The options of the worker of a host."""
    return [
        "--host",
        host.address,
        "--name",
        f"rank{host.number}",
        "--nthreads",
        "1",
        # A nanny is one more Python process for each host, which starts the worker, sets what is in SETTINGS for it and
        # restarts it when it dies; no array passes through it.
        "--no-nanny",
        # It is measured by what its process takes of the machine, which in a lab is shared by all hosts, and would
        # write to disk; what fits is told by `memory`.
        "--memory-limit",
        "0",
        "--local-directory",
        str(launch.folder / str(host.number)),
    ]
