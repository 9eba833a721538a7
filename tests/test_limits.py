"""Limits of what a member or process may cost a node: the status reports which were reached."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import hoplite
from commands import run

if TYPE_CHECKING:
    from hoplite import Client, Node


def test_the_command_shows_only_limits_that_were_reached(node: Node, client: Client) -> None:
    text = run("status", "--socket", node.socket).stdout
    assert "turned away" not in text
    with pytest.raises(hoplite.InvalidArgument):
        client.wait([f"none/{number}" for number in range(65_537)], timeout=0)
    row = client.status()["limits"][0]
    assert (row["member"], row["limit"], row["count"]) == (None, "WAIT_OBJECTS_MAX", 1)
    facts = json.loads(run("status", "--json", "--socket", node.socket).stdout)
    assert facts["limits"] == [row]
    text = run("status", "--socket", node.socket).stdout
    assert f"WAIT_OBJECTS_MAX  process {row['process']}" in text
