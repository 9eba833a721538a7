"""Ray, the way its users write it: one actor on every host, arrays in its object store, one driver that calls them.

A node on every host, by `ray start`, and the driver beside the first. Knows the command lines and the memory; what is
called is in `ranks/ray_driver.py`.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from hoplite_bench.systems.base import OPS, RANKS, Driven, Unavailable, Variant

if TYPE_CHECKING:
    from pathlib import Path

    from hoplite_bench.systems.base import Host, Launch

# Not Ray's own 6379, for a cluster of another user may run on the hosts; below 10002, where its workers' begin.
PORT = 6389

# A path of a Unix socket has at most 107 bytes, of which Ray takes
# "/session_2026-01-31_12-30-59_123456_1234567/sockets/plasma_store" for itself.
SOCKET_PATH_MAX = 107
SESSION_PATH_BYTES = 65

# So many nodes start at once where hosts share a machine; sixteen take a minute and a half on two busy cores.
TURNS = 2

# Ray refuses to start a store of less.
STORE_BYTES_MIN = 80 * 2**20

# Longer than a group is ever frozen, in which its processes answer nothing. Each is the default times some hundreds.
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
    # Else Ray leaves a token in the user's home, or takes up one that is there on some hosts and not on others.
    "RAY_AUTH_MODE": "disabled",
    # It looks at the whole machine, which in a lab is shared by all hosts and all systems, and would end workers.
    "RAY_memory_monitor_refresh_ms": "0",
    # What does not fit shall fail and not be timed at the speed of a disk.
    "RAY_automatic_object_spilling_enabled": "0",
    **{name: str(value) for name, value in PATIENCE.items()},
}


class Ray(Driven):
    """A driver's calls, whose arguments and results Ray brings to where they are needed."""

    name = "ray"
    # Some 70 MB.
    requirements = ("ray==2.60.0", "numpy==2.4.6")
    program = "ray_driver.py"
    settings = SETTINGS

    def variants(self, op: str) -> list[Variant]:
        """One: Ray leaves no choice of how an object travels."""
        return [Variant()] if op in OPS else []

    def start(self, launch: Launch, group: str) -> None:  # noqa: ARG002 - it has one
        """Starts a node on every host and the driver."""
        if launch.memory_bytes < STORE_BYTES_MIN:
            raise Unavailable(
                f"Ray's object store needs {STORE_BYTES_MIN} bytes on each host, and there are {launch.memory_bytes}"
            )
        # Checked before the first is started.
        commands = [(host, node_command(self.python, launch, host)) for host in launch.hosts]
        for host, command in commands:
            launch.spawn(host, command, env=self.environment)
        self.drive(launch, "--address", address(launch), "--host", launch.hosts[0].address)

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """What is in the stores, what numpy makes outside of them, and what the results are compared with.

        Inputs are made in an array and then copied into the store, so there are two of each; a copy that came over the
        network is read in the store.
        """
        inputs = 2 * (hosts if op in ("gather", "reduce", "allreduce") else 1)
        stored = {
            # What A returns, its copy at B, what B returns, its copy at A.
            "rtt": 4,
            "broadcast": hosts - 1,
            "gather": hosts - 1,
            # And the sum, beside the store.
            "reduce": hosts - 1 + 1,
            # And the sum in the store and its copy at all others.
            "allreduce": hosts - 1 + 1 + hosts,
        }
        return (inputs + stored[op] + 2 * hosts) * nbytes


def shared_memory_bytes() -> int:
    """What Ray accepts as the limit of a store: half of what /dev/shm has, taken from this host for all."""
    free = os.statvfs("/dev/shm")
    return int(free.f_bavail * free.f_frsize * 0.45)


def address(launch: Launch) -> str:
    """Where the head of the cluster listens."""
    return f"{launch.hosts[0].address}:{PORT}"


def node_command(python: Path, launch: Launch, host: Host) -> list[str | Path]:
    """The command that runs a host's node until it is killed.

    Raises:
        Unavailable: the folder's path is too long for Ray's sockets in it.
    """
    folder = launch.folder / str(host.number)
    if len(str(folder)) + SESSION_PATH_BYTES > SOCKET_PATH_MAX:
        raise Unavailable(
            f"Ray's sockets in {folder} would have paths of more than {SOCKET_PATH_MAX} bytes; "
            f"set TMPDIR to a folder of at most {SOCKET_PATH_MAX - SESSION_PATH_BYTES - 30} bytes, such as /tmp"
        )
    whose: list[str | Path]
    if host.number == 0:
        # All others wait for it.
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
        # A limit, of which pages are taken as they are written.
        "--object-store-memory",
        str(min(launch.memory_bytes, shared_memory_bytes())),
        # Of tasks, none of which asks for any: else Ray refuses a store that is not free at this moment.
        "--memory",
        "1",
        "--temp-dir",
        folder,
        # It sends what workers print to the driver, which does not read it.
        "--include-log-monitor",
        "false",
        "--disable-usage-stats",
    ]
