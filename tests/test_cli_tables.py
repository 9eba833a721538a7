"""Listings without a terminal: each row on its own line, complete, and a final newline."""

from __future__ import annotations

import pytest

from commands import run
from hoplite import Node
from hoplite.tools.cli import output
from support import numbers


def test_each_row_of_a_table_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Each line is complete at any length and has no trailing blanks; the output ends with a newline."""
    output.print_table(["name", "what"], [["x" * 300, "a\nb"], ["short", ""]])
    # One long name does not move the columns of all rows.
    assert capsys.readouterr().out.split("\n") == [f"{'name':64}  what", f"{'x' * 300}  a b", "short", ""]
    output.print_table(["name", "what"], [])
    assert capsys.readouterr().out == "name  what\n"


def test_invisible_characters_of_a_name_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """A character that reverses the direction or is invisible makes a name look like another."""
    output.print_table(["name"], [["a\u202eb/1"], ["a\u200bb/1"], ["a\x1b[31m"], ["\u00e9 \u6f22/1"]])
    assert capsys.readouterr().out == "name\na\\u202eb/1\na\\u200bb/1\na\\x1b[31m\n\u00e9 \u6f22/1\n"
    with Node() as node:
        node.client().put(b"x", name="a\u202e/1")
        assert "a\\u202e/1" in run("objects").stdout
        assert "did you mean a\\u202e/1?" in run("story", "a/1", code=1).stderr


@pytest.mark.parametrize(
    "command",
    [("objects",), ("objects", "--all"), ("objects", "none"), ("status",), ("locations", "policy/1")],
    ids=" ".join,
)
def test_listings_end_with_a_newline(command: tuple[str, ...]) -> None:
    with Node() as node:
        node.client().put(numbers(1000), name="policy/1")
        done = run(*command)
    text = done.stdout
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert all(line == line.rstrip() for line in text.splitlines())
