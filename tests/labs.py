"""Whether a lab can be made here, for the tests that need one."""

from __future__ import annotations

import pytest

from hoplite.tools.lab import LabError, needs


def missing() -> str:
    """What a lab lacks here; nothing if one can be made."""
    try:
        needs.check()
    except LabError as error:
        return str(error)
    return ""


needs_lab = pytest.mark.skipif(bool(missing()), reason=missing())
