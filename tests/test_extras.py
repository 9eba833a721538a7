"""The commands that errors propose for missing packages: they install the requirements of an extra, or a package."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hoplite.extras import install, install_package

ROOT = Path(__file__).parent.parent
FILES = [ROOT / "pyproject.toml", *sorted((ROOT / "packages").glob("*/pyproject.toml"))]
PROJECTS = {project["name"]: project for file in FILES for project in [tomllib.loads(file.read_text())["project"]]}
EXTRAS = [(name, extra) for name, project in PROJECTS.items() for extra in project["optional-dependencies"]]
GENERATED = {"api.md"}
PAGES = [
    *(page for page in (ROOT / "docs").rglob("*.md") if page.name not in GENERATED),
    *(page for folder in ("examples/*/", "packages/*/", "") for page in ROOT.glob(f"{folder}README.md")),
]


def requirements(words: list[str]) -> dict[str, Requirement]:
    """Returns parsed requirements by their normalized names."""
    return {canonicalize_name(each.name): each for each in map(Requirement, words)}


def versions(wanted: dict[str, Requirement]) -> dict[str, str]:
    """Returns the permitted versions by the names of packages."""
    return {name: str(each.specifier) for name, each in wanted.items()}


@pytest.mark.parametrize(("distribution", "extra"), EXTRAS)
def test_the_command_installs_the_requirements_of_the_extra(distribution: str, extra: str) -> None:
    pip, verb, *words = shlex.split(install(extra, distribution))
    assert (pip, verb) == ("pip", "install")
    declared = requirements(PROJECTS[distribution]["optional-dependencies"][extra])
    assert versions(requirements(words)) == versions(declared) != {}


@pytest.mark.parametrize("name", ["hoplite-bench", "hoplite-topology"])
def test_a_package_is_installed_from_the_clone(name: str) -> None:
    folder = Path(install_package(name).removeprefix("pip install "))
    assert tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"] == name


def test_pages_install_versions_that_the_extras_declare() -> None:
    declared = [Requirement(each) for name, extra in EXTRAS for each in PROJECTS[name]["optional-dependencies"][extra]]
    declared.append(Requirement("torch>=2.14"))  # the backend of torch.distributed
    wrong = []
    for page in PAGES:
        for command in re.findall(r"pip install ([^\n`#]*)", page.read_text()):
            found = requirements([word for word in shlex.split(command) if re.match(r"[a-z][^/]*$", word)])
            # No distribution of Hoplite is in an index yet.
            wrong += [
                f"{page.relative_to(ROOT)}: {each}"
                for name, each in found.items()
                if name.startswith("hoplite") or (each.specifier and each not in declared)
            ]
    assert wrong == []
