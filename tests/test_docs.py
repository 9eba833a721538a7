"""README.md and docs/: their examples run, their links resolve, and generated files are up to date.

A page's ```python blocks are one program. Its ```console blocks are typed into one terminal and must print the shown
output; "..." matches anything. A comment before the block marks exceptions:

  <!-- example: file NAME -->         the block is written to that file, for a console block to run
  <!-- example: torch -->             the block needs torch; run by `make test-torch`
  <!-- example: dask -->              the block needs Dask; run by `make test-dask`
  <!-- example: ray -->               the block needs Ray; run by `make test-ray` (test_ray_docs.py)
  <!-- example: framework NAME -->    the block needs that package, and is a program of its own (test_rl_docs.py)
  <!-- example: server NAME -->       the block needs a server of that package; run by test_torch_NAME.py
  <!-- example: native NAME -->       the block is part of a C, C++ or Rust example; run by `make test-native`
  <!-- example: output of NAME -->    the output of that example
  <!-- example: not run: REASON -->
"""

from __future__ import annotations

import doctest
import functools
import importlib.util
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import hoplite
import hoplite_bench
import hoplite_topology
from hoplite import testing
from support import SOON

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "deploy").glob("*.md"))]

BLOCK = re.compile(
    r"(?:^<!-- example: (?P<how>.*?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page.

    Attributes:
        language: the word after the fence, such as python.
        how: the content of the comment before it, "" without one.
        line: the line of the page where its text begins.
        text: its content.
    """

    language: str
    how: str
    line: int
    text: str


def blocks(page: Path) -> list[Block]:
    """Returns the fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(match["language"], match["how"] or "", text[: match.start("text")].count("\n") + 1, match["text"])
        for match in BLOCK.finditer(text)
    ]


def program(page: Path, *, torch: bool) -> str:
    """Returns the ```python blocks of a page as one program, with the page's line numbers."""
    wanted = {"", "torch"} if torch else {""}
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python" and block.how in wanted:
            lines += [""] * (block.line - 1 - len(lines))
            lines += block.text.splitlines()
    return "\n".join(lines) + "\n"


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment of a user with a separate runtime folder."""
    folder.mkdir(mode=0o700)
    return {**os.environ, "XDG_RUNTIME_DIR": str(folder)}


def run_program(page: Path, folder: Path, *, torch: bool = False) -> None:
    """Runs a page's program. A traceback names the page and its line."""
    script = folder / page.name
    script.write_text(program(page, torch=torch))
    done = subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env=environment(folder / "r"),
        capture_output=True,
        text=True,
        # An import of torch takes seconds.
        timeout=4 * SOON if torch else SOON,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "page", [page for page in PAGES if program(page, torch=False).strip()], ids=lambda page: page.name
)
def test_the_programs_of_the_pages_run(page: Path, tmp_path: Path) -> None:
    run_program(page, tmp_path)


@pytest.mark.torch
@pytest.mark.frameworks
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.how == "torch" for block in blocks(page))], ids=lambda page: page.name
)
def test_the_programs_with_torch_run(page: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("the program needs PyTorch; make test-torch has it")
    run_program(page, tmp_path, torch=True)


def commands(page: Path) -> list[tuple[str, str]]:
    """Returns the commands of a page's console blocks, each with its expected output."""
    found: list[tuple[str, str]] = []
    for block in blocks(page):
        if block.language == "console" and not block.how.startswith("not run"):
            for line in block.text.splitlines(keepends=True):
                if line.startswith("$ "):
                    found.append((line[2:].strip(), ""))
                else:
                    found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def matches(expected: str, output: str) -> bool:
    """Returns whether the output matches.

    "..." matches anything within a line, and lines at the end may be left out.
    """
    wanted = [".*".join(map(re.escape, line.split("..."))) for line in expected.splitlines()]
    lines = output.splitlines()
    return len(lines) >= len(wanted) and all(re.fullmatch(*pair) for pair in zip(wanted, lines, strict=False))


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_the_commands_of_the_pages_print_the_shown_output(page: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.how.startswith("file "):
            (tmp_path / block.how.removeprefix("file ")).write_text(block.text)
    surroundings = environment(tmp_path / "r")
    python = {"hoplite": [sys.executable, "-m", "hoplite.tools.cli"], "python": [sys.executable]}
    with ExitStack() as stack:
        for command, expected in commands(page):
            name, *arguments = shlex.split(command)
            if (name, arguments) == ("hoplite", ["node"]):
                # Another process may use the default port on this machine.
                node = subprocess.Popen(
                    [*python[name], "node", "--listen", "127.0.0.1:0"],
                    env=surroundings,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                stack.enter_context(node)
                stack.callback(node.wait, SOON)
                stack.callback(node.terminate)
                assert node.stdout is not None
                assert matches(expected.replace("7420", "..."), node.stdout.readline())
                continue
            done = subprocess.run(
                [*python[name], *arguments],
                cwd=tmp_path,
                env=surroundings,
                capture_output=True,
                text=True,
                timeout=SOON,
                check=False,
            )
            assert done.returncode == 0, f"{command}: {done.stderr}"
            assert matches(expected, done.stdout), f"{command} printed:\n{done.stdout}"


def test_few_blocks_are_not_run() -> None:
    allowed = re.compile(r"|torch|dask|ray|framework \w+|server \w+|file [\w.]+|(native|output of) [\w.]+|not run: .+")
    for page in PAGES:
        for block in blocks(page):
            assert allowed.fullmatch(block.how), f"{page.name}:{block.line}: {block.how}"
    skipped = [block for page in PAGES for block in blocks(page) if block.how.startswith("not run")]
    assert len(skipped) <= 4


@functools.cache
def anchors(page: Path) -> set[str]:
    """Returns the anchors that a code host creates for a page's headings. It numbers repeated ones."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    texts = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
    repeats = [texts[:at].count(text) for at, text in enumerate(texts)]
    return {f"{text}-{number}" if number else text for text, number in zip(texts, repeats, strict=True)}


def test_links_resolve() -> None:
    pages = {
        *PAGES,
        *(ROOT / "docs").glob("*/*.md"),
        *(ROOT / "packages").glob("*/README.md"),
        *(ROOT / "examples").rglob("README.md"),
        ROOT / "CONTRIBUTING.md",
        ROOT / "ARCHITECTURE.md",
        ROOT / "CHANGELOG.md",
    }
    broken = [f"{page.relative_to(ROOT)}: {target}" for page in sorted(pages) for target in broken_links(page)]
    assert not broken, broken


def broken_links(page: Path) -> list[str]:
    """Returns the links of a page to files or headings that do not exist."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = page if not path else (page.parent / path).resolve()
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    return broken


def test_the_index_has_every_page() -> None:
    linked = set(re.findall(r"\]\(((?:deploy/)?\w[\w-]*\.md)\)", (ROOT / "docs" / "README.md").read_text()))
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert linked == pages - {"README.md"}


@pytest.mark.parametrize("script", ["docs/api.py", "docs/metrics.py", "docs/pictures/draw.py"])
def test_generated_files_are_up_to_date(script: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / script, "--check"], capture_output=True, text=True, timeout=SOON, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_reference_has_every_public_name() -> None:
    reference = (ROOT / "docs" / "api.md").read_text()
    missing = [
        name for name in hoplite.__all__ if f"`hoplite.{name}`" not in reference and f"| `{name}` |" not in reference
    ]
    assert missing == []


# Modules that need these can't be imported here.
NEED_OTHERS = (
    "hoplite.dask",
    "hoplite.ray",
    "hoplite.torch",
    "hoplite.sglang",
    "hoplite.trl",
    "hoplite.verl",
    "hoplite.vllm",
    "hoplite._held",
    "hoplite._policy",
    "hoplite.tools.http",
    "hoplite.tools.top.app",
    "hoplite.tools.trace.otlp",
    "hoplite_bench.select.torch_auto",
)


def modules() -> list[str]:
    """Returns the names of all modules with docstrings that run here."""
    found = ["hoplite"]
    for package in (hoplite, hoplite_bench, hoplite_topology):
        # It imports packages, of which an old PyTorch does not suffice for some.
        found += [
            module.name
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda _: None)
            if "__main__" not in module.name and not module.name.startswith(NEED_OTHERS)
        ]
    return found


def test_examples_in_docstrings_print_the_shown_output() -> None:
    """Each may use `hp`, the client of an empty node."""
    finder = doctest.DocTestFinder()
    examples = [test for name in modules() for test in finder.find(importlib.import_module(name)) if test.examples]
    attempted: dict[str, int] = {}
    failed: list[str] = []
    for test in examples:
        module = str(test.globs["__name__"])
        with testing.cluster(1) as nodes, nodes[0].client() as hp:
            test.globs |= {"hoplite": hoplite, "hp": hp}
            try:
                results = doctest.DocTestRunner().run(test, out=failed.append)
            finally:
                # The examples of `init` and `client` leave a shared client and its node.
                hoplite.shutdown()
        attempted[module] = attempted.get(module, 0) + results.attempted
    assert not failed, "".join(failed)
    # Check that the examples of the verbs are found.
    assert attempted["hoplite._verbs.making"] > 10
