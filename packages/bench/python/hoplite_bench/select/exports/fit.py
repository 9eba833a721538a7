"""What all forms of an export share: which rules fit, and how ranges and comments read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hoplite.errors import HopliteError
from hoplite_bench.select.request import OF_LAYER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from hoplite_bench.select.plan import Plan, Rule

# Names of the operations in the variables of MPI libraries.
MPI_NAMES = {
    "broadcast": "bcast", "gather": "gather", "reduce": "reduce", "allreduce": "allreduce", "allgather": "allgather",
}  # fmt: skip


# Candidates that only have a row with the reason why they can't run.
UNMEASURED = ("ucc",)


class DoesNotFit(HopliteError):
    """A form of an export can't express rules of the plan; the message names each of them."""


class Range(NamedTuple):
    """A rule and the sizes of each rank's array for which it applies.

    Attributes:
        start: smallest size in bytes.
        rule: the rule, which ends at `rule.below`.
    """

    start: int
    rule: Rule

    def __str__(self) -> str:
        """The rule in words, such as "allreduce from 65536 bytes: openmpi (ring)"."""
        rule = self.rule
        sizes = [f"from {self.start}"] * (self.start > 0) + [f"below {rule.below}"] * (rule.below is not None)
        within = f" {' and '.join(sizes)} bytes" if sizes else ""
        variant = f" ({rule.variant})" if rule.variant != "default" else ""
        return printable(f"{rule.op}{within}: {rule.system}{variant}")


def ranges(plan: Plan) -> list[Range]:
    """Returns the rules of a plan with their ranges, by operation."""
    found = []
    for op in plan.ops:
        start = 0
        for rule in plan.rules:
            if rule.op == op:
                found.append(Range(start, rule))
                start = rule.below or 0
    return found


def fitting(plan: Plan, form: str, systems: Collection[str], reason: Callable[[Rule], str]) -> list[Range]:
    """Returns the rules of a plan with their ranges, if all fit a form.

    Args:
        plan: the plan.
        form: the form in words, such as "rules of Open MPI".
        systems: the systems that the form configures.
        reason: why a rule of these systems does not fit; empty if it does.

    Raises:
        DoesNotFit: some do not fit.
    """
    found = ranges(plan)
    wrong = []
    for one in found:
        why = reason(one.rule) if one.rule.system in systems else "another library"
        if why:
            wrong.append(f"{one}: {why}")
    if wrong:
        raise DoesNotFit(
            f"the plan can't be exported as {form}, which can't express {'; '.join(wrong)}: {instead(plan, systems)}"
        )
    return found


def instead(plan: Plan, systems: Collection[str]) -> str:
    """What to do with a plan whose rules do not fit, in the imperative.

    Args:
        plan: the plan.
        systems: the systems whose rules would fit.
    """
    own = [name for name in OF_LAYER[plan.layer] if name in systems and name not in UNMEASURED]
    steps = [f"select with --systems {name}" for name in own]
    if plan.layer == "torch":
        steps.append("export it as plan for hoplite_auto")
    return " or ".join(steps) or f"export another form, because hoplite select does not measure {' or '.join(systems)}"


def title(plan: Plan, library: str) -> str:
    """Returns the first comment of a file."""
    return f"# {library} for {plan.ranks} ranks, from hoplite select in environment {printable(plan.fingerprint)}."


def printable(text: str) -> str:
    """Returns a text of a plan for a comment, which a line break would end."""
    return "".join(character if character.isprintable() else "?" for character in text)


def lacks_settings(rule: Rule) -> str:
    """Returns why a variant without settings does not fit a form that consists of settings; empty if it fits."""
    return "" if rule.settings or rule.variant == "default" else "no variable selects this variant"
