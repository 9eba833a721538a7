"""`hoplite topology` as a command of `hoplite`, and the versions of both packages."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from click.testing import CliRunner

from hoplite.extras import install_package
from hoplite.tools.cli.output import Failure
from hoplite_topology.cli.topology import topology

if TYPE_CHECKING:
    import pytest


def test_a_lab_is_of_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hoplite_bench.lab", None)
    done = CliRunner().invoke(topology, ["probe", "--lab", "2"])
    assert isinstance(done.exception, Failure)
    assert str(done.exception) == "a lab requires hoplite-bench, which is not installed"
    assert done.exception.step == install_package("hoplite-bench")
