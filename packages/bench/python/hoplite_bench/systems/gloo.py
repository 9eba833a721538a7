"""Gloo as Debian packages it: a small C++ program of this package, compiled on this host against libgloo-dev."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoplite_bench.systems.base import ALLGATHER, COLLECTIVES, RANKS, System, Unavailable, Variant
from hoplite_bench.systems.compiled import SHARED, compiled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hoplite_bench.environments import Environments
    from hoplite_bench.systems.base import Host, Launch

# The first is compiled and includes the others.
SOURCES = (RANKS / "gloo_rank.cpp", RANKS / "gloo_exchange.hpp", *SHARED)
HEADERS = Path("/usr/include/gloo/context.h")
COMPILE = ("g++", "-std=c++17", "-O2")
LIBRARIES = ("-lgloo", "-pthread")
INSTALL = "`apt-get install libgloo-dev g++` or `make bench-packages`"
# Port at which rank 0 distributes the addresses of all ranks while a group starts.
STORE_PORT = 17430
# Number of ranks that exchange data in one round of a BCube, as in gloo_rank.cpp.
BCUBE_BASE = 4


class Gloo(System):
    """Broadcast, gather, reduce and allreduce are functions of Gloo; the other allreduce variants are classes."""

    name = "gloo"

    def __init__(self) -> None:
        self.program: Path | None = None
        self.version = ""
        self.hosts = 0

    def adapt(
        self,
        hosts: Sequence[Host],
        topology: Mapping[str, Any] | None,  # noqa: ARG002 - not needed
        *,
        plain: bool,  # noqa: ARG002 - it does not encrypt
        transports: str = "tcp",  # noqa: ARG002 - `start` gets them too
    ) -> None:
        """Records the number of hosts, because not every number forms a BCube."""
        self.hosts = len(hosts)

    def prepare(self, environments: Environments) -> None:
        """Compiles the program, unless the same sources were compiled against this library before.

        Raises:
            Unavailable: a compiler or the headers are missing, or compilation fails.
        """
        if not HEADERS.exists():
            raise Unavailable(f"{HEADERS} is missing; install it with {INSTALL}")
        self.version = package_version()
        self.program = compiled(
            environments, COMPILE, SOURCES, LIBRARIES, library=self.version, advice=f"install a compiler with {INSTALL}"
        )

    def variants(self, op: str) -> list[Variant]:
        """Gloo has one variant of each operation except allreduce; all are in one group."""
        if op != "allreduce":
            return [Variant()] if op in COLLECTIVES else []
        found = [Variant(), Variant("ring chunked"), Variant("halving-doubling")]
        return [*found, Variant("bcube")] if makes_bcube(self.hosts) else found

    def start(self, launch: Launch, group: str) -> None:  # noqa: ARG002 - it has one group
        """Starts a rank on each host, bound to the host's address on the measured network."""
        assert self.program is not None, "start was called before prepare"
        store = f"{launch.hosts[0].address}:{launch.port(STORE_PORT)}"
        for host in launch.hosts:
            here = ["--address", host.address, "--store", store, "--version", self.version]
            launch.spawn(host, [self.program, *here, *launch.rank_options(host)])

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """Results are compared and folded in place; one variant of allreduce receives into an additional array."""
        arrays = {"rtt": 3, "broadcast": hosts, "gather": 2 * hosts, "reduce": hosts, "allreduce": 2 * hosts}
        arrays[ALLGATHER] = hosts + hosts * hosts
        return arrays[op] * nbytes


def makes_bcube(hosts: int) -> bool:
    """Whether Gloo's BCube supports this number of hosts: a power of the base, or that times a smaller number."""
    rest = hosts
    while rest and rest % BCUBE_BASE == 0:
        rest //= BCUBE_BASE
    return hosts >= BCUBE_BASE and rest < BCUBE_BASE


def package_version() -> str:
    """The version of Debian's package, because the library has none; without Debian, the path of its headers."""
    try:
        found = subprocess.run(
            ["dpkg-query", "--show", "--showformat", "${Version}", "libgloo-dev"],
            check=True,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return f"of {HEADERS.parent}"
    return found.stdout.strip()
