"""No test of `make test` depends on the speed of the machine: clocks are used only for lower bounds and timeouts.

Only tests marked long assert upper bounds on times, or measured rates and round trips. `bounded` of `support` makes
such a test out of one that also asserts other facts.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent

CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}
MEASURES = {"measure_rate", "measure_rates_at_once", "measure_rtt"}

# The argument of a `bounded` test, which is infinite in `make test`.
WITHIN = "within"

# Rust tests have no marks; there `LONG` and `SOON` are the timeouts of tests that hang.
RUST = re.compile(r"assert!\([^;]*\belapsed\(\)\s*<=?(?!\s*(?:LONG|SOON)\b)[^;]*;")


def calls(node: ast.AST, names: set[str]) -> bool:
    """Returns whether an expression calls a method, or a function of the module `time`, with one of these names."""
    return any(
        isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in names
        for part in ast.walk(node)
    )


def is_long(node: ast.stmt) -> bool:
    """Returns whether a test or a module of tests is marked long."""
    if isinstance(node, ast.Assign):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        return names == ["pytestmark"] and "pytest.mark.long" in ast.unparse(node.value)
    marks = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any(ast.unparse(mark) == "pytest.mark.long" for mark in marks)


def timed(source: str) -> Iterator[int]:
    """Yields the lines that assert a speed in tests that are not marked long."""
    module = ast.parse(source)
    if any(is_long(node) for node in module.body if isinstance(node, ast.Assign)):
        return
    for function in module.body:
        if is_long(function):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Assert) and is_timed(node.test):
                yield node.lineno


def is_timed(test: ast.expr) -> bool:
    """Returns whether an assertion bounds a time from above, or a rate at all."""
    compares = [part for part in ast.walk(test) if isinstance(part, ast.Compare)]
    bounds = [bound for compare in compares for bound in ordered(compare)]
    if calls(test, MEASURES):
        return any(ast.unparse(less) != "0" for less, _ in bounds)
    return any(calls(less, CLOCKS) and ast.unparse(more) != WITHIN for less, more in bounds)


def ordered(compare: ast.Compare) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yields the pairs of sides of a comparison, the lesser side first."""
    sides = [compare.left, *compare.comparators]
    for left, operator, right in zip(sides[:-1], compare.ops, sides[1:], strict=True):
        if isinstance(operator, ast.Lt | ast.LtE):
            yield left, right
        elif isinstance(operator, ast.Gt | ast.GtE):
            yield right, left


TESTS = [*ROOT.glob("tests/test_*.py"), *ROOT.glob("packages/*/tests/test_*.py")]


def test_no_test_asserts_a_speed() -> None:
    found = [f"{path.name}:{line}" for path in sorted(TESTS) for line in timed(path.read_text())]
    assert not found, f"{found}: assert on events, counters or order, or mark the test long; see CONTRIBUTING.md"


def test_no_rust_test_asserts_a_speed() -> None:
    crates = [*ROOT.glob("crates/*"), *ROOT.glob("packages/*/src")]
    sources = [path for crate in crates for path in crate.rglob("*.rs") if "benches" not in path.parts]
    found = [f"{path}: {one}" for path in sources for one in RUST.findall(path.read_text())]
    assert sources
    assert not found, f"{found}: assert on events, counters or order; see CONTRIBUTING.md"


def test_the_check_finds_speed_assertions() -> None:
    for source, lines in [
        ("def test_a():\n    assert time.monotonic() - begun < 5", [2]),
        ("def test_a():\n    assert 0.25 < time.monotonic() - begun < 10", [2]),
        ("class TestA:\n    def test_a(self):\n        assert 5 >= time.perf_counter() - begun", [3]),
        ("def test_a():\n    assert lab.measure_rate(a, b) > 1e6", [2]),
        ("def test_a():\n    assert all(rate < 8e6 for rate in lab.measure_rates_at_once(pairs))", [2]),
        ("def test_a():\n    assert sum(lab.measure_rates_at_once(pairs)) < 8e6", [2]),
        ("def test_a():\n    assert lab.measure_rtt(a, b) > 0", []),
        ("def test_a():\n    assert time.monotonic() - begun >= 5", []),
        ("def test_a():\n    assert seconds <= time.monotonic() - begun - 0.5", []),
        ("def test_a(within):\n    assert 5 <= time.monotonic() - begun < within", []),
        ("@pytest.mark.long\ndef test_a():\n    assert time.monotonic() - begun < 5", []),
        ("pytestmark = pytest.mark.long\ndef test_a():\n    assert time.monotonic() - begun < 5", []),
    ]:
        assert list(timed(source)) == lines, source
