"""Plans as files for the libraries that they choose.

Each form has its own module. A form has only what the plan has: if it can't express a rule, the export fails and names
the rule. The files depend on the plan alone, not on this machine.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument
from hoplite_bench.select.exports import environment, mpich, nccl, openmpi, ucc
from hoplite_bench.select.exports.fit import DoesNotFit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hoplite_bench.select.plan import Plan

__all__ = ["FORMS", "DoesNotFit", "export"]


def _plan(plan: Plan) -> dict[str, bytes]:
    """The plan itself, for HOPLITE_PLAN."""
    return {"plan.json": (json.dumps(plan.to_json(), indent=1) + "\n").encode()}


# The forms and what writes them.
FORMS: Mapping[str, Callable[[Plan], dict[str, bytes]]] = {
    "plan": _plan,
    "env": environment.export,
    "openmpi": openmpi.export,
    "mpich": mpich.export,
    "nccl": nccl.export,
    "ucc": ucc.export,
}


def export(plan: Plan, form: str) -> dict[str, bytes]:
    """Converts a plan to the files of one form.

    Args:
        plan: the plan.
        form: a key of `FORMS`.

    Returns:
        The content of each file, by its name.

    Raises:
        InvalidArgument: the form is unknown.
        DoesNotFit: the form can't express a rule of the plan.
    """
    if form not in FORMS:
        raise InvalidArgument(f"unknown form {form!r} of an export: set one of {', '.join(FORMS)}")
    return FORMS[form](plan)
