"""`hoplite bench` and `hoplite lab` as commands of `hoplite`, and the versions of both packages."""

from __future__ import annotations

from importlib.metadata import requires, version
from typing import TYPE_CHECKING

import pytest

from hoplite.tools.cli.packages import COMMANDS
from hoplite_bench.cli.bench import bench
from hoplite_bench.cli.lab import lab
from hoplite_bench.cli.study import study

if TYPE_CHECKING:
    import click


@pytest.mark.parametrize("width", [20, 45, 100])
@pytest.mark.parametrize("command", [bench, lab, study], ids=lambda command: command.name)
def test_the_list_of_commands_has_the_help_of_the_command(command: click.Command, width: int) -> None:
    (listed,) = [one for one in COMMANDS if one.name == command.name]
    assert listed.get_short_help_str(width) == command.get_short_help_str(width)


def test_it_requires_the_library_of_its_version() -> None:
    assert version("hoplite-bench") == version("hoplite-collectives")
    assert f"hoplite-collectives=={version('hoplite-bench')}" in (requires("hoplite-bench") or [])
