"""The environments of `make build` and `make test-operations`: they have what the extras need."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# `make build` installs what the help of the command line offers; `make test-operations` installs the rest.
EXTRAS = {
    **dict.fromkeys(("arrow", "bfloat16", "demo", "http", "top"), "requirements-dev.txt"),
    "otel": ".ci/requirements-operations.txt",
}


def requirements(extra: str) -> list[str]:
    """Returns the names of the packages that an extra requires."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [re.split(r"[><=]", text)[0] for text in project["optional-dependencies"][extra]]


def pins(file: str) -> dict[str, str]:
    """Returns the pinned version of each package of a file."""
    lines = (ROOT / file).read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


@pytest.mark.parametrize(("extra", "file"), EXTRAS.items(), ids=EXTRAS.keys())
def test_each_package_of_an_extra_is_pinned(extra: str, file: str) -> None:
    assert set(requirements(extra)) <= pins(file).keys()


@pytest.mark.operations
def test_the_environment_has_the_pinned_versions() -> None:
    wanted = pins("requirements-dev.txt") | pins(".ci/requirements-operations.txt")
    assert {name: importlib.metadata.version(name) for name in wanted} == wanted
