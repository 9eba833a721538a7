"""The network between containers: a bridge in a namespace of its own, and a cable to each container, without limits."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from hoplite_bench.lab import links
from hoplite_bench.lab.hosts import INTERFACE
from hoplite_bench.lab.namespaces import Keeper, start_of
from hoplite_bench.systems.base import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

# Containers use the addresses 10.78.0.NUMBER; the network has no connection to another one.
NETWORK = "10.78.0"
PREFIX = 24
BRIDGE = "study"
READY_S = 15.0


class Switch:
    """A process that holds the namespace of a bridge, until `close` or the end of this process.

    Raises:
        Unavailable: the namespace can't be created.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready; exec cat >/dev/null"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd="/",
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            assert self._process.stderr is not None
            said = self._process.stderr.read().strip()
            self.close()
            raise Unavailable(
                f"can't create a network namespace: {said}; it needs CAP_SYS_ADMIN and CAP_NET_ADMIN (in a container: "
                "docker run --privileged)"
            )
        self.keeper = Keeper(self._process.pid, start_of(self._process.pid) or 0)

    def connect(self, containers: Sequence[Keeper]) -> None:
        """Creates the bridge and the cables; containers get their addresses in order."""
        links.pass_filters(self.keeper)
        links.make_bridge(self.keeper, BRIDGE)
        for number, container in enumerate(containers):
            links.make_cable(self.keeper, BRIDGE, links.port_of(number), INTERFACE, container)
            links.set_address(container, INTERFACE, address_of(number), PREFIX)

    def close(self) -> None:
        """Removes the bridge; the kernel removes cables with either of their ends."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        self._process.wait(READY_S)


def address_of(number: int) -> str:
    """The address of a container."""
    return f"{NETWORK}.{number + 1}"
