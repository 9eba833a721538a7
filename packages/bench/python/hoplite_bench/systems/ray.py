"""Ray as its users write it: one actor on each host, arrays in its object store, and one driver that calls the actors.

Each host has a node, started with `ray start`; the driver runs on the first host. This module has command lines and
memory estimates; `ranks/ray_driver.py` makes the calls.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from hoplite_bench.systems.base import OPS, RANKS, Driven, Unavailable, Variant

if TYPE_CHECKING:
    from pathlib import Path

    from hoplite_bench.systems.base import Host, Launch

# Not Ray's default 6379, because another user's cluster may run on the hosts; below 10002, the first port of workers.
PORT = 6389

# The path of a Unix socket has at most 107 bytes. Ray uses
# "/session_2026-01-31_12-30-59_123456_1234567/sockets/plasma_store" of it.
SOCKET_PATH_MAX = 107
SESSION_PATH_BYTES = 65

# Number of nodes that start at once if hosts share a machine; sixteen take a minute and a half on two busy cores.
TURNS = 2

# Minimum size of a store; Ray refuses less.
STORE_BYTES_MIN = 80 * 2**20

# Timeouts longer than any freeze of a group, during which its processes do not respond: several hundred times the
# defaults.
ONE_DAY_S = 24 * 60 * 60
PATIENCE = {
    "RAY_health_check_initial_delay_ms": ONE_DAY_S * 1000,
    "RAY_health_check_period_ms": ONE_DAY_S * 1000,
    "RAY_health_check_timeout_ms": ONE_DAY_S * 1000,
    "RAY_health_check_failure_threshold": 1000,
    "RAY_grpc_keepalive_timeout_ms": ONE_DAY_S * 1000,
    "RAY_grpc_client_keepalive_timeout_ms": ONE_DAY_S * 1000,
    "RAY_gcs_rpc_server_reconnect_timeout_s": ONE_DAY_S,
    "RAY_gcs_server_request_timeout_seconds": ONE_DAY_S,
    "RAY_agent_register_timeout_ms": ONE_DAY_S * 1000,
    "RAY_worker_register_timeout_seconds": ONE_DAY_S,
}
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Otherwise Ray leaves a token in the user's home, or uses one that exists on some hosts only.
    "RAY_AUTH_MODE": "disabled",
    # It monitors the whole machine, which in a lab all hosts and systems share, and would end workers.
    "RAY_memory_monitor_refresh_ms": "0",
    # An object that does not fit must fail rather than be timed at the speed of a disk.
    "RAY_automatic_object_spilling_enabled": "0",
    **{name: str(value) for name, value in PATIENCE.items()},
}


class Ray(Driven):
    """Calls of a driver; Ray transfers arguments and results to the hosts that need them."""

    name = "ray"
    # About 70 MB.
    requirements = ("ray==2.60.0", "numpy==2.4.6")
    program = "ray_driver.py"
    settings = SETTINGS

    def variants(self, op: str) -> list[Variant]:
        """One variant: Ray has no options for how an object is transferred."""
        return [Variant()] if op in OPS else []

    def start(self, launch: Launch, group: str) -> None:  # noqa: ARG002 - it has one group
        """Starts a node on every host and the driver."""
        if launch.memory_bytes < STORE_BYTES_MIN:
            raise Unavailable(
                f"Ray's object store needs {STORE_BYTES_MIN} bytes on each host, but {launch.memory_bytes} are "
                "available: free memory on the hosts"
            )
        # All commands are checked before the first is started.
        commands = [(host, node_command(self.python, launch, host)) for host in launch.hosts]
        for host, command in commands:
            launch.spawn(host, command, env=self.environment)
        self.drive(launch, "--address", address(launch), "--host", launch.hosts[0].address)

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """The memory of the stores, of NumPy arrays outside them, and of the arrays that results are compared with.

        Inputs are created in an array and then copied into the store, so each exists twice. A copy that was received is
        read in the store.
        """
        inputs = 2 * (hosts if op in ("gather", "reduce", "allreduce") else 1)
        stored = {
            # What A returns, its copy at B, what B returns, and its copy at A.
            "rtt": 4,
            "broadcast": hosts - 1,
            "gather": hosts - 1,
            # The last one is the sum, outside the store.
            "reduce": hosts - 1 + 1,
            # In addition, the sum in the store and its copies at all other hosts.
            "allreduce": hosts - 1 + 1 + hosts,
        }
        return (inputs + stored[op] + 2 * hosts) * nbytes


def shared_memory_bytes() -> int:
    """The maximum size of a store that Ray accepts: about half of the free /dev/shm of this host, for all hosts."""
    free = os.statvfs("/dev/shm")
    return int(free.f_bavail * free.f_frsize * 0.45)


def address(launch: Launch) -> str:
    """The address of the head of the cluster."""
    return f"{launch.hosts[0].address}:{PORT}"


def node_command(python: Path, launch: Launch, host: Host) -> list[str | Path]:
    """Returns the command that runs a host's node until it is killed.

    Raises:
        Unavailable: the path of the folder is too long for Ray's sockets.
    """
    folder = launch.folder / str(host.number)
    if len(str(folder)) + SESSION_PATH_BYTES > SOCKET_PATH_MAX:
        raise Unavailable(
            f"Ray's sockets in {folder} would have paths of more than {SOCKET_PATH_MAX} bytes: "
            f"set TMPDIR to a path of at most {SOCKET_PATH_MAX - SESSION_PATH_BYTES - 30} bytes, such as /tmp"
        )
    whose: list[str | Path]
    if host.number == 0:
        # All other nodes wait for it.
        whose = ["--", "--head", "--port", str(PORT), "--include-dashboard", "false"]
    else:
        whose = ["--turn", launch.folder / f"turn{host.number % TURNS}", "--", "--address", address(launch)]
    return [
        python,
        RANKS / "ray_node.py",
        *whose,
        "--node-ip-address",
        host.address,
        "--num-cpus",
        "1",
        "--resources",
        json.dumps({f"rank{host.number}": 1}),
        # A limit; pages are allocated as they are written.
        "--object-store-memory",
        str(min(launch.memory_bytes, shared_memory_bytes())),
        # Memory for tasks, none of which requests any. Otherwise Ray refuses a store for which there is no free memory.
        "--memory",
        "1",
        "--temp-dir",
        folder,
        # It sends the output of workers to the driver, which does not read it.
        "--include-log-monitor",
        "false",
        "--disable-usage-stats",
    ]
