"""Names in files of hosts, and in launchers' files: each is one word for shells and terminals."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from hoplite.errors import InvalidArgument
from hoplite_topology import launchers
from hoplite_topology.hosts import Host, read_hosts
from hoplite_topology.problem import Wanted
from host_names import ONE_WORD

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_no_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    for name in ONE_WORD:
        path.write_text(f"{name} 10.0.0.9\n")
        with pytest.raises(InvalidArgument, match=r"host|name|address") as told:
            read_hosts(path)
        assert str(told.value).isprintable()


@pytest.mark.parametrize("form", ["torchrun", "env", "gloo", "nccl"])
def test_a_name_in_a_command_is_quoted_for_its_shell(form: str) -> None:
    """Including names that every reader rejects."""
    text = launchers.write(form, [Host("a; touch x #"), Host("b")], Wanted("ring")).text
    for line in text.splitlines():
        command = line.split(": ", 1)[1]
        assert ";" not in "".join(word for word in shlex.split(command, comments=True) if "a; touch x #" not in word)
        assert "touch" not in shlex.split(command, comments=True)
