"""docs/native-reference.md names each call and error of Python, C, C++ and Rust, and no other."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import hoplite

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "native-reference.md").read_text()
INCLUDE = ROOT / "packages" / "native" / "include" / "hoplite"
HEADER = (INCLUDE / "hoplite.h").read_text()
CPP = "\n".join(file.read_text() for file in sorted(INCLUDE.rglob("*.hpp")))
RUST = "\n".join(file.read_text() for file in sorted((ROOT / "crates" / "client" / "src").rglob("*.rs")))

# Rows with a column for each language: Python, C, C++ and Rust.
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| `") and line.count(" | ") == 3
]

FUNCTIONS = set(re.findall(r"\b(hoplite_\w+)\(", re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL)))
CODES = set(re.findall(r"\b(HOPLITE_\w+) = \d+,", HEADER))

# Errors that Python has alone, and that it lacks.
PYTHON_ONLY = {"DecodeError", "HopliteError"}
NATIVE_ONLY = {"HostError", "InvalidHandle", "Cancelled", "NotReady", "Internal"}


def called(column: int) -> set[str]:
    """The functions and methods that a column calls."""
    return {name for row in ROWS for name in re.findall(r"(?<!hoplite_)\b([a-z]\w*)(?:<\w+>)?\(", row[column])}


def test_every_function_and_code_of_c_is_named() -> None:
    assert len(FUNCTIONS) > 50
    assert FUNCTIONS - set(re.findall(r"`(hoplite_\w+)", PAGE)) == set()
    assert set(re.findall(r"`(HOPLITE_\w+)`", PAGE)) == CODES


def test_only_names_of_c_are_named() -> None:
    for name in re.findall(r"`(hoplite_\w+)", PAGE):
        assert re.search(rf"\b{name}", HEADER), name


@pytest.mark.parametrize("kind", [hoplite.Client, hoplite.Node, hoplite.Buffer, hoplite.Lease, hoplite.Ref])
def test_every_call_of_python_is_named(kind: type) -> None:
    named = " ".join(row[0] for row in ROWS)
    for name, _ in inspect.getmembers(kind, lambda member: callable(member) or isinstance(member, property)):
        if not name.startswith("_") and not name.endswith("_async"):
            assert re.search(rf"\b{name}\b", named), f"{kind.__name__}.{name}"


def test_only_calls_of_cpp_are_named() -> None:
    names = called(2)
    assert len(names) > 20
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\(", CPP + HEADER)] == []


def test_only_calls_of_rust_are_named() -> None:
    names = called(3)
    assert len(names) > 20
    assert [name for name in sorted(names) if not re.search(rf"\bpub (?:const )?fn {name}\b", RUST)] == []


def test_every_error_is_named() -> None:
    of_python = {
        name
        for name in hoplite.__all__
        if isinstance(kind := getattr(hoplite, name), type) and issubclass(kind, hoplite.HopliteError)
    }
    named = {name for _, name in re.findall(r"^\| `(HOPLITE_\w+)` \|.*?`(\w+)` \|", PAGE, re.MULTILINE)}
    assert named == of_python - PYTHON_ONLY | NATIVE_ONLY
    for name in named:
        assert re.search(rf"\busing {name} = ErrorOf<HOPLITE_", CPP), name
    for name in named - {"InvalidHandle", "Cancelled", "NotReady"}:
        assert re.search(rf"^ +{name},$", RUST, re.MULTILINE), name
