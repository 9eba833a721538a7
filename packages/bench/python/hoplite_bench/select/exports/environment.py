"""A plan as a file of environment variables, KEY=value, for the libraries that it chooses.

Variables apply to all sizes of an operation. The file is for a shell (`set -a; . ./hoplite-select.env`) and for
launchers that read such files.
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


def export(plan: Plan) -> dict[str, bytes]:
    """Returns the file.

    Raises:
        DoesNotFit: two rules need different settings of one library at once.
    """
    found = fit.ranges(plan)
    wrong = [f"{one}: the plan has no settings for this variant" for one in found if fit.lacks_settings(one.rule)]
    if wrong:
        raise fit.DoesNotFit(
            f"the plan can't be exported as environment variables: {'; '.join(wrong)}; select again with --refresh"
        )
    return {NAME: file([fit.title(plan, "Libraries")], found, variables(found))}


def file(comments: Sequence[str], found: Sequence[fit.Range], values: Mapping[str, str]) -> bytes:
    """Returns the content of a file: comments, the rules as comments, and variables, quoted for a shell."""
    lines = [*comments, *(f"# {one}" for one in found)]
    lines += [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return ("\n".join(lines) + "\n").encode()


def variables(found: Sequence[fit.Range]) -> dict[str, str]:
    """Returns the variables of all rules.

    Raises:
        DoesNotFit: a library needs different variables for two sizes of one operation, or for two operations; or a
            setting is not a variable.
    """
    merged: dict[str, str] = {}
    owners: dict[str, fit.Range] = {}
    first: dict[tuple[str, str], fit.Range] = {}
    for one in found:
        settings = one.rule.settings
        before = first.setdefault((one.rule.op, one.rule.system), one)
        if before.rule.settings != settings:
            raise _conflict(before, one, "settings")
        for name, value in settings.items():
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or not value.isprintable():
                raise fit.DoesNotFit(f"the setting {name!r} of {one} is not a variable: select again with --refresh")
            if merged.setdefault(name, value) != value:
                raise _conflict(owners[name], one, name)
            owners.setdefault(name, one)
    return merged


def _conflict(left: fit.Range, right: fit.Range, what: str) -> fit.DoesNotFit:
    return fit.DoesNotFit(
        f"the plan can't be exported as environment variables, which apply to all sizes: {left} and {right} need "
        f"different {what}; export it as plan for hoplite_auto, or as openmpi if all rules are of Open MPI"
    )
