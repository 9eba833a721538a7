"""The stub of the extension says what the extension has."""

from __future__ import annotations

import stubs


def test_the_stub_agrees_with_the_extension() -> None:
    """Only the buffer protocol, which Python 3.11 has in C alone, is not to be seen there."""
    assert stubs.differences("hoplite._native", r"hoplite._native.(View|Space).__(release_)?buffer__") == ""
