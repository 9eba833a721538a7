"""`hoplite topology` as a command of `hoplite`, and the versions of both packages."""

from __future__ import annotations

import sys
from importlib.metadata import requires, version

import pytest
from click.testing import CliRunner

from hoplite.tools.cli.output import Failure
from hoplite.tools.cli.packages import COMMANDS
from hoplite_topology.cli.topology import topology


@pytest.mark.parametrize("width", [20, 45, 100])
def test_the_list_of_commands_has_the_help_of_the_command(width: int) -> None:
    (listed,) = [command for command in COMMANDS if command.name == topology.name]
    assert listed.get_short_help_str(width) == topology.get_short_help_str(width)


def test_it_requires_the_library_of_its_version() -> None:
    assert version("hoplite-topology") == version("hoplite-collectives")
    assert f"hoplite-collectives=={version('hoplite-topology')}" in (requires("hoplite-topology") or [])


def test_a_lab_is_of_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hoplite_bench.lab", None)
    done = CliRunner().invoke(topology, ["probe", "--lab", "2"])
    assert isinstance(done.exception, Failure)
    assert str(done.exception) == "a lab requires hoplite-bench, which is not installed"
    assert done.exception.step == "pip install 'hoplite-topology[lab]'"
