"""Writes docs/messages.md: every message and help text of the product, by the file that it is in.

`python docs/messages.py` writes the page, `python docs/messages.py --check` fails if it is out of date. Reads string
literals and the docstrings of commands; imports nothing. A message is a literal of at least `WORDS_MIN` words. The page
exists to be read as a whole: a message that needs a second reading is a bug.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "messages.md"

OPENING = """\
# Messages

All error messages, warnings, log lines and help texts, by the file that contains them. `make docs` generates this page
from the source. Text in braces is a value. Use it to find the place of a message, or to search for its fix.
"""

# Parts of the product, and where their source is.
PARTS = {
    "Library": (
        ":(glob)python/hoplite/*.py",
        "python/hoplite/_verbs",
        "python/hoplite/settings",
        "python/hoplite/values",
    ),
    "Command line": ("python/hoplite/tools",),
    "vLLM": ("python/hoplite/vllm",),
    "Ray, Dask and ProxyStore": ("python/hoplite/ray", "python/hoplite/dask", "python/hoplite/proxystore.py"),
    "Node": ("crates/node/src", "crates/proto/src", "crates/shm/src", "crates/certs/src"),
    "Native clients": ("crates/client/src", "crates/c/src", "crates/py/src"),
    "Benchmarks": ("packages/bench/python",),
    "Topology": ("packages/topology/python", "crates/topology"),
}

WORDS_MIN = 3
WORD = re.compile(r"[A-Za-z']{2,}")

# Rust: comments, strings, raw strings and characters, so that a quote in one does not open another.
RUST = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<hashes>\#*)"(?P<raw>.*?)"(?P=hashes)|b?"(?P<text>(?:[^"\\]|\\.)*)"|'(?:[^'\\\n]|\\.)+'""",
    re.DOTALL,
)
# What a string follows that no user reads: the reasons of expectations and of allowances.
NOT_SHOWN = re.compile(r"(?:\.expect(?:_err)?\(|(?:assert\w*|unreachable|panic|todo)!\([^;]*|reason\s*=|doc\s*=)\s*$")
RUST_TESTS = re.compile(
    r"^#\[cfg\((?:all\()?(?:any\()?test[^\n]*\]\n(?:#\[.*\]\n)*(?:pub )?mod \w+ \{.*", re.MULTILINE | re.DOTALL
)


def page() -> str:
    """The whole page."""
    blocks = [OPENING]
    for part, paths in PARTS.items():
        blocks.append(f"## {part}\n")
        for file in files(*paths):
            source = (ROOT / file).read_text()
            found = list(dict.fromkeys(of_python(source) if file.endswith(".py") else of_rust(source)))
            if found:
                blocks.append(f"### {file}\n")
                blocks.append("\n".join(f"- {shown(text)}" for text in found) + "\n")
    return "\n".join(blocks)


def files(*paths: str) -> list[str]:
    """Source files below paths, without tests."""
    listed = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [
        file
        for file in listed.splitlines()
        if file.endswith((".py", ".rs"))
        and not re.search(r"(^|/)(tests?|benches|fuzzed)(/|\.rs)|_tests?\.rs$", file)
        and (ROOT / file).exists()
    ]


def of_python(source: str) -> Iterator[str]:
    """Messages of a Python file: docstrings of commands, and string literals."""
    tree = ast.parse(source)
    docstrings: set[ast.expr] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            docstrings.add(first.value)
            if isinstance(node, ast.FunctionDef) and any(is_command(one) for one in node.decorator_list):
                yield first.value.value
        # A string below an attribute is its docstring.
        docstrings.update(
            one.value for one in node.body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
        )
    pieces = {piece for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for piece in ast.walk(node)}
    literals = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and node not in pieces | docstrings)
    ]
    for node in sorted(literals, key=lambda node: (node.lineno, node.col_offset)):
        text = "".join(map(_piece, node.values)) if isinstance(node, ast.JoinedStr) else node.value
        # A text of several paragraphs is a page or a script.
        if isinstance(text, str) and is_message(text) and "\n\n" not in text.strip():
            yield text


def _piece(piece: ast.expr) -> str:
    if isinstance(piece, ast.FormattedValue):
        return "{" + ast.unparse(piece.value) + "}"
    return str(piece.value) if isinstance(piece, ast.Constant) else ""


def is_command(decorator: ast.expr) -> bool:
    """Whether a decorator makes a function a command of click."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(function, ast.Attribute) and function.attr in ("command", "group")


def of_rust(source: str) -> Iterator[str]:
    """Messages of a Rust file: string literals, but those that only a bug would show."""
    source = RUST_TESTS.sub("", source)
    for match in RUST.finditer(source):
        text = match["text"] if match["text"] is not None else match["raw"]
        if text is None or NOT_SHOWN.search(source[max(0, match.start() - 200) : match.start()]):
            continue
        text = re.sub(r"\\\n\s*", "", text).replace('\\"', '"')
        if is_message(text):
            yield text


def is_message(text: str) -> bool:
    """Whether a literal is prose, not code or a key."""
    return len(WORD.findall(re.sub(r"\{[^}]*\}", "", text))) >= WORDS_MIN and " " in text.strip()


def shown(text: str) -> str:
    """A message on one line, as Markdown that shows it unchanged."""
    line = " ".join(text.replace("\b", "").split())
    fence = "``" if "`" in line else "`"
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def main() -> int:
    """Writes or checks the page."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    sys.stderr.write("docs/messages.md is out of date: run make docs\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
