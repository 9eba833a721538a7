"""Which backend of torch runs an operation: a plan without torch.

A backend that a rank lacks is replaced by the fastest of the others, by the times in the plan. All ranks have the same
plan, the same members and the same sizes, so that they decide alike without a message.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from hoplite_bench.select.plan import Plan

DEFAULT = "gloo"
MPI = "torch-mpi"
# Backends of torch, by the names of systems in plans.
BACKENDS = {"torch-gloo": DEFAULT, "torch-hoplite": "hoplite", MPI: "mpi4py"}
# The variant with tensors in host memory.
VARIANT = "default"
# States of candidates that have no valid time.
UNUSABLE = ("excluded", "unavailable")


class Routes:
    """The choices of a plan.

    Args:
        plan: the plan; None sends every operation to the default.
        members: backends that every rank has.
    """

    def __init__(self, plan: Plan | None, members: Collection[str]) -> None:
        self.plan = plan
        self._members = members
        self._fastest = {} if plan is None else {op: _fastest(plan, op, members) for op in plan.ops}

    def chosen(self, op: str, nbytes: int) -> str:
        """Returns the backend of the plan for an operation; empty if the plan has no rule for it.

        Args:
            op: the operation, by its name in plans.
            nbytes: size of each rank's array in bytes, the same on all ranks.
        """
        if self.plan is None or op not in self.plan.ops:
            return ""
        return BACKENDS[self.plan.rule(op, nbytes).system]

    def member(self, op: str, nbytes: int) -> str:
        """Returns the backend that runs an operation.

        That is the chosen one. If a rank lacks it, it is the fastest member at the nearest size that has a time of a
        member. Without rule or times, it is the default.
        """
        chosen = self.chosen(op, nbytes)
        if chosen in self._members:
            return chosen
        times = self._fastest.get(op)
        if not times:
            return DEFAULT
        return times[min(times, key=lambda size: (abs(math.log(size / max(nbytes, 1))), size))]

    def used(self) -> set[str]:
        """Returns the members that can run an operation of the plan."""
        found: set[str] = set()
        for rule in self.plan.rules if self.plan else ():
            chosen = BACKENDS[rule.system]
            found.update([chosen] if chosen in self._members else self._fastest[rule.op].values())
        return found


def _fastest(plan: Plan, op: str, members: Collection[str]) -> dict[int, str]:
    """Returns the fastest member at each size in bytes for which the plan has a time of one."""
    found: dict[int, list[tuple[float, str]]] = {}
    for one in plan.candidates:
        name = BACKENDS.get(one.library, "")
        is_usable = name in members and one.variant == VARIANT and one.state not in UNUSABLE
        if one.op == op and is_usable and one.seconds is not None and one.nbytes > 0:
            found.setdefault(one.nbytes, []).append((one.seconds, name))
    return {size: min(times)[1] for size, times in found.items()}


def needed(plan: Plan, left_out: Collection[str]) -> list[str]:
    """Returns the backends that a plan uses, besides the default, in a fixed order.

    Args:
        plan: the plan.
        left_out: backends that a rank lacks; others replace them.
    """
    there = [name for name in BACKENDS.values() if name not in left_out]
    used = Routes(plan, there).used()
    return [name for name in there if name in used and name != DEFAULT]


def wrong(plan: Plan) -> str:
    """Returns why a plan does not fit torch; empty if it does."""
    if plan.layer != "torch":
        return f"it is for the layer {plan.layer}: run hoplite select with --layer torch"
    if strange := sorted({rule.system for rule in plan.rules} - BACKENDS.keys()):
        return f"torch has no backend for {', '.join(strange)}: run hoplite select with --layer torch"
    return ""
