"""The type stub matches the extension module."""

from __future__ import annotations

import stubs


def test_the_stub_matches_the_extension() -> None:
    """The buffer protocol is excluded: Python 3.11 has it only in C."""
    assert stubs.differences("hoplite._native", r"hoplite._native.(View|Space).__(release_)?buffer__") == ""
