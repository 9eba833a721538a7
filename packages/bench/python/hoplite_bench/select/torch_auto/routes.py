"""Which backend of torch runs an operation: a plan without torch.

All ranks have the same plan, the same members and the same sizes, so that they decide alike without a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from hoplite_bench.select.plan import Plan

DEFAULT = "gloo"
# Backends of torch, by the names of systems in plans.
BACKENDS = {"torch-gloo": DEFAULT, "torch-hoplite": "hoplite", "torch-mpi": "mpi4py"}


class Routes:
    """The choices of a plan.

    Args:
        plan: the plan; None sends every operation to the default.
        members: backends that every rank has.
    """

    def __init__(self, plan: Plan | None, members: Collection[str]) -> None:
        self.plan = plan
        self._members = members

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
        """Returns the backend that runs an operation: the default if the plan has none, or a rank lacks that."""
        chosen = self.chosen(op, nbytes)
        return chosen if chosen in self._members else DEFAULT


def needed(plan: Plan) -> list[str]:
    """Returns the backends that a plan uses, besides the default."""
    found = dict.fromkeys(BACKENDS[rule.system] for rule in plan.rules)
    return [name for name in found if name != DEFAULT]


def wrong(plan: Plan) -> str:
    """Returns why a plan does not fit torch; empty if it does."""
    if plan.layer != "torch":
        return f"it is for the layer {plan.layer}: run hoplite select with --layer torch"
    if strange := sorted({rule.system for rule in plan.rules} - BACKENDS.keys()):
        return f"torch has no backend for {', '.join(strange)}: run hoplite select with --layer torch"
    return ""
