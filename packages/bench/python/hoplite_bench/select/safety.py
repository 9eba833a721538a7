"""Which systems do not survive a failed peer: the failure checks of all systems, side by side.

The checks mostly wait for timeouts, so those of several systems run at once; nothing is timed meanwhile.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from typing import TYPE_CHECKING

from hoplite_bench.group import GroupFailed
from hoplite_bench.hosts import AgentFailed, Agents
from hoplite_bench.select import failures
from hoplite_bench.systems.base import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.hosts import Network
    from hoplite_bench.systems import System

# Every surviving rank must have an answer after this time. The timeouts of the libraries are set to half of it.
LIMIT_S = 8.0
# Three ranks are enough for trees and chains, in which rank 1 passes data on.
RANKS = 3
NBYTES = 8 << 20
# The first cases of the failure checks, which show most: those in which others wait for the failed rank.
CASES = 2


def unsafe(network: Network, systems: Sequence[System], arch: str) -> dict[str, str]:
    """Checks which systems survive a killed and a frozen peer.

    Args:
        network: the hosts.
        systems: prepared systems.
        arch: "ps" or "allreduce": which operations must survive.

    Returns:
        For each system why it is not safe; an empty text if it is.
    """
    few = dataclasses.replace(network, hosts=list(network.hosts)[:RANKS])
    with concurrent.futures.ThreadPoolExecutor(max(1, len(systems))) as pool:
        reasons = pool.map(lambda system: _reason(few, system, arch), systems)
        return {system.name: reason for system, reason in zip(systems, reasons, strict=True)}


def _reason(network: Network, system: System, arch: str) -> str:
    found = []
    try:
        with Agents(network) as agents:
            for how in failures.SIGNALS:
                verdict = failures.survives(
                    network,
                    agents,
                    system,
                    how=how,
                    arch=arch,
                    limit_s=LIMIT_S,
                    cases=failures.CASES[arch][:CASES],
                    nbytes=NBYTES,
                )
                if not verdict.safe:
                    found.append(f"{WORDS[verdict.state]} when a peer is {how} ({verdict.text})")
    except (GroupFailed, AgentFailed, Unavailable) as error:
        found.append(f"the failure check failed: {error}")
    return "; ".join(found)


# A verdict in the table.
WORDS = {"hangs": "hangs", "ended": "ends the surviving processes", "wrong": "returns wrong results"}
