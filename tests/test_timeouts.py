"""Calls of the integrations without a timeout take `default_timeout`, as the verbs of a client do."""

from __future__ import annotations

import ast
import copy
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hoplite
from hoplite import _timeouts
from hoplite._timeouts import DEFAULT, limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite import Node

FILES = Path(hoplite.__file__).parent
INTEGRATIONS = ["dask", "ray", "torch", "torchft", "torchrl", "sglang", "vllm", "proxystore.py", "trl.py", "verl.py"]

# Timeouts with another meaning: those of a start, of an internal call, and of an interface of a framework.
OTHERS = {
    "ray/again.py: put_again",
    "ray/cluster.py: start",
    "ray/place.py: client",
    "ray/place.py: facts",
    "ray/transport.py: wait_fetch_complete",
    "torch/backend/process_group.py: monitored_barrier",
    "torch/backend/work.py: wait",
    "torchrl/scheme.py: _wait_for_instruction",
    "torchrl/transport.py: receive_weights",
}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("HOPLITE_TIMEOUT", raising=False)
    hoplite.shutdown()
    _timeouts._configured.cache_clear()
    yield
    _timeouts._configured.cache_clear()


def test_an_explicit_timeout_counts(node: Node) -> None:
    with hoplite.connect(node.socket or "", default_timeout=7) as client:
        assert limit(3, client, otherwise=60) == 3
        assert limit(None, client, otherwise=60) is None


def test_an_omitted_timeout_is_that_of_the_client(node: Node) -> None:
    with hoplite.connect(node.socket or "", default_timeout=7) as client:
        assert limit(DEFAULT, client, otherwise=60) == 7
    with hoplite.connect(node.socket or "") as client:
        assert limit(DEFAULT, client) is None
        assert limit(DEFAULT, client, otherwise=60) == 60


def test_without_a_client_it_is_that_of_init_or_of_the_variable(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert limit(DEFAULT, otherwise=60) == 60
    _timeouts._configured.cache_clear()
    monkeypatch.setenv("HOPLITE_TIMEOUT", "9")
    assert limit(DEFAULT, otherwise=60) == 9
    hoplite.init(node=node, default_timeout=7)
    try:
        assert limit(DEFAULT, otherwise=60) == 7
    finally:
        hoplite.shutdown()


def test_an_omitted_timeout_stays_omitted_in_another_process() -> None:
    assert pickle.loads(pickle.dumps(DEFAULT)) is DEFAULT
    assert copy.deepcopy({"timeout": DEFAULT})["timeout"] is DEFAULT


def defaults(tree: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Yields the functions and classes of a file with a `timeout`, and its default."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            of = node.args
            positional = [*of.posonlyargs, *of.args]
            pairs = [*zip(reversed(positional), reversed(of.defaults), strict=False)]
            for argument, default in [*pairs, *zip(of.kwonlyargs, of.kw_defaults, strict=True)]:
                if argument.arg == "timeout":
                    yield node.name, default
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if (
                    isinstance(each, ast.AnnAssign)
                    and isinstance(each.target, ast.Name)
                    and each.target.id == "timeout"
                ):
                    yield node.name, each.value


def test_no_integration_has_a_default_of_its_own() -> None:
    found = {}
    for name in INTEGRATIONS:
        for file in [FILES / name] if name.endswith(".py") else sorted((FILES / name).rglob("*.py")):
            for function, default in defaults(ast.parse(file.read_text())):
                if default is not None:
                    found[f"{file.relative_to(FILES)}: {function}"] = ast.unparse(default)
    assert sum(default == "DEFAULT" for default in found.values()) >= 18
    assert {name for name, default in found.items() if default != "DEFAULT"} == OTHERS
