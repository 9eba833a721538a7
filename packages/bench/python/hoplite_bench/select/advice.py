"""What would make the chosen operations faster, or the choice better, from the plan and the environment. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hoplite_bench.select.plan import Plan
    from hoplite_bench.select.request import Request

MIB = 2**20


def advice(plan: Plan, request: Request, environment: Mapping[str, Any]) -> list[str]:
    """Returns the advice for a plan, the most effective first.

    Args:
        plan: the plan.
        request: what it was made for.
        environment: description of the environment, as of `fingerprint.environment`.
    """
    found = []
    on_one_machine = request.hosts is None
    shared = environment.get("shared memory", {}).get("mib")
    # The arrays of all ranks, and their results.
    needed = 2 * plan.ranks * plan.nbytes // MIB
    if on_one_machine and shared is not None and shared < needed:
        found.append(
            f"/dev/shm has {shared} MiB, and the arrays of {plan.ranks} ranks take {needed} MiB: enlarge it, for "
            f"example with --shm-size {needed}m of Docker"
        )
    if request.container == "cross" or (on_one_machine and environment.get("namespaces", {}).get("ipc") is False):
        found.append(
            "containers with their own IPC namespace and /dev/shm exchange data by TCP only: share both between "
            "containers of one host, for example with --ipc=host of Docker"
        )
    cpus = environment.get("limits", {}).get("cpus") or environment.get("cores")
    if on_one_machine and cpus and cpus < plan.ranks:
        found.append(f"{plan.ranks} ranks share {cpus:g} processors: give each rank one")
    if faster := _faster(plan, "excluded", "when a peer is"):
        found.append(f"{faster} did not survive a failed peer: --no-require-failures accepts that")
    if missing := sorted({one.library for one in plan.candidates if one.state == "unavailable"}):
        found.append(
            f"{', '.join(missing)} can't run here: see the reasons; --install installs what package indexes have, and "
            "measures again"
        )
    if plan.is_cut:
        found.append(
            f"the budget of {plan.budget_s:g} s ended the measurement of some candidates: a larger --budget measures "
            "again"
        )
    return found


def _faster(plan: Plan, state: str, reason: str) -> str:
    names = {one.library for one in plan.candidates if one.state == state and reason in one.reason}
    return ", ".join(sorted(names))
