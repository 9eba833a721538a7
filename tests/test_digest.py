"""Objects put with a digest: every node that receives one verifies it.

crates/node/tests/mutants.rs tests what happens to corrupt copies.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from commands import run
from hoplite import Node, testing
from support import SOON, numbers, same

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 1 << 20

VALUES: dict[str, Callable[[], Any]] = {
    "empty": lambda: np.zeros(0),
    "small": lambda: numbers(100),
    "just in messages": lambda: np.zeros(32 * 1024, np.uint8),
    "just in memory": lambda: np.zeros(32 * 1024 + 1, np.uint8),
    "several runs": lambda: numbers(5 * MIB + 1),
    "several parts": lambda: {"weights": numbers(2 * MIB), "bias": numbers(100), "step": 7},
}


def check(value: Any, expected: Any) -> None:  # noqa: ANN401 - any value
    if isinstance(expected, dict):
        assert value.keys() == expected.keys()
        for key in expected:
            check(value[key], expected[key])
    elif isinstance(expected, np.ndarray):
        same(value, expected)
    else:
        assert value == expected


@pytest.mark.parametrize("what", VALUES)
def test_values_of_every_size_arrive(nodes: list[Node], what: str) -> None:
    """On a node that gets them from the putter, and on one that may get them from that node."""
    value = VALUES[what]()
    with nodes[0].client(digest=True) as maker:
        ref = maker.put(value)
        for node in nodes:
            with node.client() as client:
                check(client.get(ref, timeout=SOON), value)
                assert client.status()["counters"]["copies_corrupt"] == 0


def test_out_is_filled_after_the_verification(nodes: list[Node]) -> None:
    value = numbers(5 * MIB)
    ref = nodes[0].client(digest=True).put(value)
    out = np.empty_like(value)
    with nodes[1].client() as client:
        assert client.get(ref, out=out, timeout=SOON) is out
    same(out, value)


def test_digests_work_with_asyncio(nodes: list[Node]) -> None:
    async def main() -> None:
        maker, reader = nodes[0].client(digest=True), nodes[2].client()
        for value in (numbers(100), numbers(2 * MIB)):
            ref = await maker.put_async(value)
            same(await reader.get_async(ref, timeout=SOON), value)

    asyncio.run(main())


def test_replicas_have_the_digest_too() -> None:
    """A keeper that takes over sends its copy, which is verified with the digest of the putter."""
    with testing.cluster(3) as nodes:
        value = numbers(MIB)
        ref = nodes[0].client(digest=True).put(value, name="kept/1", replicas=2, timeout=SOON)
        nodes[0].close(SOON)
        for node in nodes[1:]:
            same(node.client().get(ref, timeout=SOON), value)


@pytest.mark.parametrize("size", [100, MIB])
def test_arrays_with_and_without_a_digest_are_summed(nodes: list[Node], size: int) -> None:
    """The digest does not affect the shape. The sum has no digest."""
    refs = [node.client(digest=number > 0).put(np.full(size, number)) for number, node in enumerate(nodes)]
    with nodes[0].client() as client:
        total = client.reduce(refs, "sum", timeout=SOON)
        same(client.get(total, timeout=SOON), np.full(size, sum(range(len(nodes)))))
    with nodes[1].client() as client:
        same(client.get(total, timeout=SOON), np.full(size, sum(range(len(nodes)))))


def test_the_command_puts_with_a_digest(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"x" * 100_000)
    with testing.node_process() as one, testing.node_process("--join", one.address) as other:
        row = json.loads(run("put", file, "--digest", "--json", "--socket", one.socket).stdout)
        with other.client() as client:
            assert bytes(client.get(row["ref"], timeout=SOON)) == file.read_bytes()


def test_a_taken_name_is_rejected(nodes: list[Node]) -> None:
    with nodes[0].client(digest=True) as client:
        client.put(b"x", name="taken")
        with pytest.raises(hoplite.NameTaken):
            client.put(b"y", name="taken")
