"""The stub of the extension matches the extension."""

from __future__ import annotations

import stubs


def test_the_stub_agrees_with_the_extension() -> None:
    assert stubs.differences("hoplite_topology._native") == ""
