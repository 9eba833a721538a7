"""Limits of what a member or process may cost a node: the status reports which were reached."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hoplite
from commands import run

if TYPE_CHECKING:
    from hoplite import Client, Node

TOP = Path(__file__).parent.parent


def test_the_security_page_documents_every_counted_limit() -> None:
    page = (TOP / "docs" / "security-model.md").read_text()
    table = page.partition("\n## Limits\n")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`([A-Z_]+)`", table))
    sources = [path.read_text() for crate in ("proto", "node") for path in (TOP / "crates" / crate).glob("src/**/*.rs")]
    counted = {name for text in sources for name in re.findall(r"limit_name!\((\w+)\)|\"([A-Z_]{4,}_MAX)\"", text)}
    assert documented == {one or other for one, other in counted}
    limits = "".join((TOP / "crates" / each / "limits.rs").read_text() for each in ("proto/src", "node/src/local"))
    assert documented <= set(re.findall(r"const (\w+):", limits))


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
