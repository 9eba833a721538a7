"""The C, C++ and Rust programs of the pages are examples. They compile without warnings, and print what is shown.

A comment before a block names the program:

  <!-- example: native NAME -->       the block is a part of this file in one of the folders of EXAMPLES
  <!-- example: output of NAME -->    the block is what the program prints; "..." matches anything

Programs run on a node of this process, so each shows an exchange between two languages.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hoplite
from native.conftest import CHECKOUT, INCLUDE, LIBRARY, NATIVE, WARNINGS
from support import SOON
from test_docs import PAGES, blocks, matches

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

EXAMPLES = (NATIVE / "examples", CHECKOUT / "crates" / "client" / "examples")
PROGRAMS = {file.name: file for folder in EXAMPLES for file in sorted(folder.iterdir())}

COMPILERS = {".c": ["cc", "-std=c11"], ".cpp": ["c++", "-std=c++20"]}

# The array that a program gets or adds to.
WEIGHTS = np.arange(6, dtype="float32").reshape(2, 3)


@functools.cache
def crates() -> dict[str, str]:
    """Builds the Rust examples. Returns the executable of each."""
    done = subprocess.run(
        ["cargo", "build", "--locked", "--package", "hoplite-collectives", "--examples", "--message-format", "json"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    artifacts = [json.loads(line) for line in done.stdout.splitlines()]
    return {entry["target"]["name"]: entry["executable"] for entry in artifacts if entry.get("executable")}


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for executables."""
    return tmp_path_factory.mktemp("native")


def executable(name: str, build: Path) -> str:
    """Compiles a program once. Returns its executable."""
    source = PROGRAMS[name]
    if source.suffix == ".rs":
        return crates()[source.stem]
    if not Path(LIBRARY, "libhoplite.so").exists():
        pytest.skip(f"no libhoplite.so in {LIBRARY}: run make native, or set HOPLITE_NATIVE_LIB")
    output = build / name.replace(".", "-")
    if not output.exists():
        options = [*WARNINGS, f"-I{INCLUDE}", f"-L{LIBRARY}", f"-Wl,-rpath,{LIBRARY}"]
        command = [*COMPILERS[source.suffix], *options, str(source), "-lhoplite", "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return str(output)


def run(name: str, build: Path) -> str:
    """Runs a program to its end. Returns what it prints."""
    done = subprocess.run([executable(name, build)], capture_output=True, text=True, timeout=SOON, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown() -> Iterator[tuple[str, str]]:
    """The blocks with an output: the program that prints it, and the output."""
    for page in PAGES:
        for block in blocks(page):
            if block.how.startswith("output of "):
                yield block.how.removeprefix("output of "), block.text


OUTPUTS = dict(shown())


@pytest.fixture
def hp() -> Iterator[hoplite.Client]:
    """A client of the node that programs find."""
    with hoplite.Node() as node, node.client() as client:
        yield client


def unindented(text: str) -> str:
    """The text without indentation, as a page may show the inner lines of a program."""
    return re.sub(r"^ +", "", text, flags=re.MULTILINE)


def test_the_programs_of_the_pages_are_examples() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.how.startswith("native "):
                name, where = block.how.removeprefix("native "), f"{page.name}:{block.line}"
                assert unindented(block.text) in unindented(PROGRAMS[name].read_text()), f"{where}: {name}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_print_the_shown_output(name: str, build: Path, request: pytest.FixtureRequest) -> None:
    assert name in OUTPUTS, f"no page shows what {name} prints"
    # A program with a node of its own has the names to itself.
    if "init(" in PROGRAMS[name].read_text():
        hp: hoplite.Client = request.getfixturevalue("hp")
        if name != "put.c":
            hp.put(WEIGHTS, name="weights/1")
    output = run(name, build)
    assert matches(OUTPUTS[name], output), output


def test_programs_of_all_languages_exchange_an_array(hp: hoplite.Client, build: Path) -> None:
    run("put.c", build)
    assert (hp.get("weights/1", timeout=SOON) == WEIGHTS).all()
    for name in ("get.cpp", "get.rs"):
        assert matches(OUTPUTS[name], run(name, build))


@pytest.mark.parametrize(
    "settings",
    [
        [],
        # Everything in C has a description. In C++, the forms of a verb share one.
        ["INPUT = include/hoplite/hoplite.h", "EXTRACT_ALL = NO"],
    ],
    ids=["all", "c"],
)
def test_the_reference_is_complete(settings: list[str], tmp_path: Path) -> None:
    if shutil.which("doxygen") is None:
        pytest.skip("needs doxygen")
    configuration = [(NATIVE / "Doxyfile").read_text(), f"OUTPUT_DIRECTORY = {tmp_path}", *settings]
    done = subprocess.run(
        ["doxygen", "-"], cwd=NATIVE, input="\n".join(configuration), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "html" / "hoplite_8h.html").exists()
