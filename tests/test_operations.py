"""The environment of `make test-operations`: it has what the extras of the operator's tools need."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Extras whose tests have the marker `operations`.
EXTRAS = ("http",)


def requirements(extra: str) -> list[str]:
    """Returns the names of the packages that an extra requires."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [re.split(r"[><=]", text)[0] for text in project["optional-dependencies"][extra]]


def pins() -> dict[str, str]:
    """Returns the pinned version of each package of the environment."""
    lines = (ROOT / ".ci" / "requirements-operations.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_package_of_an_extra_is_pinned(extra: str) -> None:
    assert set(requirements(extra)) <= pins().keys()


@pytest.mark.operations
def test_the_environment_has_the_pinned_versions() -> None:
    found = {name: importlib.metadata.version(name) for name in pins()}
    assert found == pins()
