"""The baseline: the bytes of one array over one plain TCP connection between the first two hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_bench.row import STREAM, WIRE
from hoplite_bench.systems.base import RANKS, System, Variant, this_python

if TYPE_CHECKING:
    from hoplite_bench.environments import Environments
    from hoplite_bench.systems.base import Launch

PORT = 17420
ROUND_TRIP = "round trip"


class Wire(System):
    """One stream, whatever the operation; for rtt also a round trip."""

    name = WIRE
    # One stream is the baseline for any number of inputs.
    several_inputs = True

    def prepare(self, environments: Environments) -> None:
        """Does nothing: only NumPy is needed."""

    def variants(self, op: str) -> list[Variant]:
        """The stream, with which every other row is compared."""
        return [Variant(STREAM), Variant(ROUND_TRIP)] if op == "rtt" else [Variant(STREAM)]

    def start(self, launch: Launch, group: str) -> None:  # noqa: ARG002 - it has one group
        """Starts a rank on each host; only the first two transfer data."""
        peer = f"{launch.hosts[0].address}:{launch.port(PORT)}"
        for host in launch.hosts:
            launch.spawn(host, [*this_python(), RANKS / "wire_rank.py", "--peer", peer, *launch.rank_options(host)])

    def memory(self, op: str, hosts: int, nbytes: int) -> int:  # noqa: ARG002
        """One array at each of two hosts, and the arrays to compare with."""
        return 4 * nbytes
