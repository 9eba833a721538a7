"""Which systems do not survive a failed peer: the failure checks of all systems, side by side.

The checks mostly wait for timeouts, so those of several systems run at once; nothing is timed meanwhile. Their load can
delay an answer beyond the limit, so a system against which only that speaks is checked once more, alone.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time
from typing import TYPE_CHECKING

from hoplite.errors import Timeout
from hoplite_bench.group import START_TIMEOUT_S, GroupFailed
from hoplite_bench.hosts import AgentFailed, Agents
from hoplite_bench.select import failures
from hoplite_bench.systems.base import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.hosts import Network
    from hoplite_bench.select.verdict import Case
    from hoplite_bench.systems import System

# Every surviving rank must have an answer after this time. The timeouts of the libraries are set to half of it.
LIMIT_S = 8.0
# Three ranks are enough for trees and chains, in which rank 1 passes data on.
RANKS = 3
NBYTES = 8 << 20
# A verdict in the table.
WORDS = {"hangs": "hangs", "ended": "ends the surviving processes", "wrong": "returns wrong results"}


@dataclasses.dataclass(frozen=True)
class Checked:
    """The result of the checks of one system.

    Attributes:
        reason: why it is not safe; empty if it is.
        failed: whether a check failed, which is no verdict on the system.
        doubtful: whether load on the machine may be the reason.
    """

    reason: str
    failed: bool = False
    doubtful: bool = False


def unsafe(
    network: Network, systems: Sequence[System], arch: str, ops: Sequence[str], *, deadline: float = float("inf")
) -> dict[str, Checked]:
    """Checks which systems survive a killed and a frozen peer.

    Args:
        network: the hosts.
        systems: prepared systems.
        arch: "ps" or "allreduce".
        ops: the operations that must survive.
        deadline: time of the monotonic clock at which the checks are abandoned.

    Returns:
        The result of each system.

    Raises:
        Timeout: the deadline passed.
    """
    few = dataclasses.replace(network, hosts=list(network.hosts)[:RANKS])
    cases = failures.few_cases(arch, ops)
    with concurrent.futures.ThreadPoolExecutor(max(1, len(systems))) as pool:
        checked = pool.map(lambda system: _check(few, system, cases, deadline), systems)
        found = {system.name: one for system, one in zip(systems, checked, strict=True)}
    doubtful = [system for system in systems if found[system.name].doubtful]
    return found | {system.name: _check(few, system, cases, deadline) for system in doubtful}


def _check(network: Network, system: System, cases: Sequence[Case], deadline: float) -> Checked:
    """Runs all cases with a killed and with a frozen rank, each until one that is not safe."""
    states, reasons = set(), []
    try:
        with Agents(network) as agents:
            for how in failures.SIGNALS:
                for case in (case for case in cases if system.variants(case.op)):
                    remaining = deadline - time.monotonic()
                    if remaining <= 0:
                        raise Timeout("the failure checks did not end within the timeout: set a longer timeout")
                    verdict = failures.strike(
                        network,
                        agents,
                        system,
                        case,
                        how=how,
                        limit_s=LIMIT_S,
                        nbytes=NBYTES,
                        start_timeout_s=min(START_TIMEOUT_S, remaining),
                    )
                    if not verdict.safe:
                        states.add(verdict.state)
                        reasons.append(f"{WORDS[verdict.state]} when a peer is {how} ({verdict.text})")
                        break
    except (GroupFailed, AgentFailed, Unavailable) as error:
        # A verdict stays one.
        if not states - {"hangs"}:
            return Checked(f"the failure check failed: {error}; --refresh repeats it", failed=True, doubtful=True)
    return Checked("; ".join(reasons), doubtful=states == {"hangs"})
