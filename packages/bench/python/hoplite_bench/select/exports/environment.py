"""A plan as a file of environment variables, KEY=value, for the libraries that it chooses.

Variables apply to all sizes of an operation. The file is for a shell (`set -a; . ./hoplite-select.env`) and for
launchers that read such files. A plan may come from somebody else: it can set only what selects algorithms and
transports of the measured libraries, not what loads code, such as LD_PRELOAD.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from hoplite_bench.select.exports import fit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hoplite_bench.select.plan import Plan

NAME = "hoplite-select.env"

# The variables that a file may set, and their values, which are no paths.
_OPS = "|".join(fit.MPI_NAMES.values())
VARIABLES = re.compile(
    rf"OMPI_MCA_(mpi_yield_when_idle|coll|coll_tuned_use_dynamic_rules|coll_tuned_({_OPS})_algorithm\w*)"
    rf"|MPIR_CVAR_I?({_OPS.upper()})_\w+"
    "|NCCL_(ALGO|PROTO)|UCC_TL_UCP_TUNE|UCX_TLS",
    re.ASCII,
)
VALUES = re.compile(r"[\w^,.:;@#+-]*", re.ASCII)


def export(plan: Plan) -> dict[str, bytes]:
    """Returns the file.

    Raises:
        DoesNotFit: two rules need different settings of one library at once.
    """
    found = fit.ranges(plan)
    if wrong := [f"{one}: {why}" for one in found if (why := fit.lacks_settings(one.rule))]:
        raise fit.DoesNotFit(
            f"the plan can't be exported as environment variables: {'; '.join(wrong)}; choose it in the program, or "
            "select with --systems among libraries that have variables"
        )
    comments = [fit.title(plan, "Libraries"), "# Measured with ranks that are not bound to cores."]
    return {NAME: file(comments, found, variables(plan, found))}


def file(comments: Sequence[str], found: Sequence[fit.Range], values: Mapping[str, str]) -> bytes:
    """Returns the content of a file: comments, the rules as comments, and variables, quoted for a shell."""
    lines = [*comments, *(f"# {one}" for one in found)]
    lines += [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return ("\n".join(lines) + "\n").encode()


def variables(plan: Plan, found: Sequence[fit.Range]) -> dict[str, str]:
    """Returns the variables of all rules.

    Raises:
        DoesNotFit: a library needs different variables for two sizes of one operation, or for two operations; or a
            setting is not on the list of variables.
    """
    merged: dict[str, str] = {}
    owners: dict[str, fit.Range] = {}
    first: dict[tuple[str, str], fit.Range] = {}
    for one in found:
        settings = one.rule.settings
        before = first.setdefault((one.rule.op, one.rule.system), one)
        if before.rule.settings != settings:
            raise _conflict(plan, before, one, "settings")
        for name, value in settings.items():
            if not VARIABLES.fullmatch(name) or not VALUES.fullmatch(value):
                raise fit.DoesNotFit(
                    f"the setting {name!r} = {value!r} of {one} does not select an algorithm or transport of a "
                    "library: export only plans that hoplite select has measured, and select again with --refresh"
                )
            if merged.setdefault(name, value) != value:
                raise _conflict(plan, owners[name], one, name)
            owners.setdefault(name, one)
    return merged


def _conflict(plan: Plan, left: fit.Range, right: fit.Range, what: str) -> fit.DoesNotFit:
    step = "export it as plan for hoplite_auto"
    if plan.layer == "shell":
        step = "select with --systems openmpi and export it as openmpi, which has rules for sizes"
    return fit.DoesNotFit(
        f"the plan can't be exported as environment variables, which apply to all sizes: {left} and {right} need "
        f"different {what}; {step}"
    )
