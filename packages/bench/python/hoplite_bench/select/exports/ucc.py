"""A plan as a tuning string of UCC: tokens collective:sizes:[ranks]:@algorithm for the layer UCP.

UCC_TL_UCP_TUNE of a rule's settings has the algorithm, such as "@knomial". UCC's own choice needs no token.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hoplite_bench.select.exports import environment, fit

if TYPE_CHECKING:
    from hoplite_bench.select.plan import Plan, Rule

NAME = "ucc.env"
SYSTEMS = ("ucc", "torch-ucc")
VARIABLE = "UCC_TL_UCP_TUNE"
# As UCC measures messages: an all-gather by the gathered array, a gather by that too.
OF_ALL_RANKS = ("allgather", "gather")


def export(plan: Plan) -> dict[str, bytes]:
    """Returns a file with the variable.

    Raises:
        DoesNotFit: a rule is of another library, or has settings that the string can't express.
    """
    found = fit.fitting(plan, "a tuning string of UCC", SYSTEMS, _reason)
    tokens = []
    for start, rule in found:
        if rule.settings:
            scale = plan.ranks if rule.op in OF_ALL_RANKS else 1
            end = "inf" if rule.below is None else rule.below * scale
            algorithm = rule.settings[VARIABLE].rpartition("@")[2]
            tokens.append(f"{fit.MPI_NAMES[rule.op]}:{start * scale}-{end}:[{plan.ranks}-{plan.ranks}]:@{algorithm}")
    # The file is for a shell, where an unquoted # starts a comment.
    return {NAME: environment.file([fit.title(plan, "UCC")], found, {VARIABLE: "#".join(tokens)} if tokens else {})}


def _reason(rule: Rule) -> str:
    """Returns why a rule of UCC does not fit; empty if it does."""
    if rule.op not in fit.MPI_NAMES:
        return "not a collective of UCC"
    if why := fit.lacks_settings(rule):
        return why
    if unknown := sorted(rule.settings.keys() - {VARIABLE}):
        return f"the string has no token for {', '.join(unknown)}"
    if rule.settings and not re.fullmatch(r"([\w,]+:)?@\w+", rule.settings[VARIABLE]):
        return f"{rule.settings[VARIABLE]!r} does not name one algorithm"
    return ""
