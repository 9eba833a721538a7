"""Commands of other packages: available if the package is installed, otherwise named, and loaded only when used."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hoplite
from commands import run
from hoplite.extras import install_package
from hoplite.tools.cli.packages import COMMANDS
from support import SOON

PACKAGES = {
    "bench": "hoplite-bench",
    "lab": "hoplite-bench",
    "select": "hoplite-bench",
    "study": "hoplite-bench",
    "topology": "hoplite-topology",
}
# The command finds such packages by their entry points alone.
NONE_INSTALLED = "import importlib.metadata as m; m.entry_points = lambda **_: (); from hoplite.tools.cli import main; "


def run_alone(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs `hoplite` as if no other package were installed."""
    script = f"{NONE_INSTALLED}import sys; sys.argv = ['hoplite', *{list(words)!r}]; main()"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SOON, check=False)


@pytest.mark.parametrize(
    ("name", "words"),
    [("bench", []), ("lab", ["--help"]), ("select", ["any", "--json"]), ("study", []), ("topology", ["--help"])],
)
def test_a_command_that_is_not_installed_names_its_package(name: str, words: list[str]) -> None:
    package = PACKAGES[name]
    done = run_alone(name, *words)
    assert (done.returncode, done.stdout) == (2, "")
    problem = f"hoplite {name} is in the package {package}, which is not installed"
    assert done.stderr == f"error: {problem}\ntry: {install_package(package)}\n"


@pytest.mark.parametrize(
    ("version", "value", "problem"),
    [
        ("0.0.1", "hoplite_bench.cli.bench:bench", "hoplite-bench 0.0.1 does not match hoplite-collectives "),
        (hoplite.__version__, "hoplite_bench.no_such:bench", "hoplite-bench can't be imported: No module named "),
    ],
    ids=["another version", "broken"],
)
def test_an_incompatible_package_is_reported(version: str, value: str, problem: str) -> None:
    script = f"""
import importlib.metadata as m, sys, types
entry = m.EntryPoint("bench", {value!r}, "hoplite.commands")
vars(entry)["dist"] = types.SimpleNamespace(version={version!r})
m.entry_points = lambda **_: (entry,)
from hoplite.tools.cli import main
sys.argv = ["hoplite", "bench", "--help"]
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SOON, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {problem}")
    assert done.stderr.endswith(f"try: {install_package('hoplite-bench')}\n")


def test_all_packages_have_and_require_the_version_of_the_workspace() -> None:
    version = tomllib.loads(Path("Cargo.toml").read_text())["workspace"]["package"]["version"]
    for name in ("bench", "topology"):
        project = tomllib.loads(Path(f"packages/{name}/pyproject.toml").read_text())["project"]
        assert project.get("version", version) == version
        extras = [each for extra in project["optional-dependencies"].values() for each in extra]
        pinned = {each.partition("==")[2] for each in project["dependencies"] + extras if each.startswith("hoplite-")}
        assert pinned == {version}


def test_the_help_lists_installed_and_missing_packages() -> None:
    there, alone = run("--help").stdout, run_alone("--help").stdout
    assert [str(command.name) for command in COMMANDS] == list(PACKAGES)
    for name, package in PACKAGES.items():
        assert re.search(rf"^  {name} +Not installed: in the package {package}$", alone, re.MULTILINE)
        assert f"\n  {name} " in there
    assert "Not installed" not in there


def test_commands_of_packages_are_loaded_only_when_used() -> None:
    script = "import sys; from hoplite.tools.cli import main; sys.argv = ['hoplite', '--help']\ntry: main()\n"
    script += "except SystemExit: pass\nprint(sorted(name for name in sys.modules if name.startswith('hoplite_')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SOON, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_shell_completes_commands_of_packages() -> None:
    done = run(_HOPLITE_COMPLETE="bash_complete", COMP_WORDS="hoplite topology pl", COMP_CWORD="2")
    assert done.stdout == "plain,plan\n"
