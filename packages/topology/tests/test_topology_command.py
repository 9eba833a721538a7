"""`hoplite topology` as `hoplite` finds it, and the package beside it."""

from __future__ import annotations

from importlib.metadata import requires, version

import pytest

from hoplite.tools.cli.packages import COMMANDS
from hoplite_topology.cli.topology import topology


@pytest.mark.parametrize("width", [20, 45, 100])
def test_the_list_of_commands_says_what_the_command_says(width: int) -> None:
    (listed,) = [command for command in COMMANDS if command.name == topology.name]
    assert listed.get_short_help_str(width) == topology.get_short_help_str(width)


def test_it_asks_for_the_library_of_its_version() -> None:
    assert version("hoplite-topology") == version("hoplite-collectives")
    assert f"hoplite-collectives=={version('hoplite-topology')}" in (requires("hoplite-topology") or [])
