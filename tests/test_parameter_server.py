"""The parameter server of docs/parameter-server.md, with a node that is killed while a worker uses it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hoplite
from hoplite import Node, testing
from support import SOON, Later, eventually, numbers, same

PAGE = Path(__file__).parent.parent / "docs" / "parameter-server.md"

PROGRAMS = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))

WORKER = f"""
import sys
import numpy as np
{PROGRAMS}
hp = hoplite.connect(sys.argv[1])
seat, stuck_at = sys.argv[2], int(sys.argv[3])
count = 0

def compute(weights):
    global count
    count += 1
    if count == stuck_at:
        # Its gradient is reserved, and is never put.
        print("stuck", flush=True)
        time.sleep(600)
    return np.ones_like(weights)

work(hp, seat, compute)
"""


def worker(node: Any, seat: str, stuck_at: int = 0) -> subprocess.Popen[str]:  # noqa: ANN401 - a node of any kind
    arguments = [sys.executable, "-c", WORKER, node.socket, seat, str(stuck_at)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


class Gate:
    """A client that delays the put of one name until it is allowed."""

    def __init__(self, client: hoplite.Client, name: str) -> None:
        self._client = client
        self._name = name
        self.is_open = threading.Event()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a verb
        return getattr(self._client, name)

    def put(self, value: object, *, name: str, retain: int) -> hoplite.Ref:
        if name == self._name:
            assert self.is_open.wait(SOON)
        return self._client.put(value, name=name, retain=retain)


@pytest.mark.parametrize(("size", "count"), [(100, 2), (50_000, 3)], ids=["the others continue", "all are required"])
@pytest.mark.faults("kills a node")
def test_the_seat_of_a_worker_on_a_killed_node_is_reused(size: int, count: int) -> None:
    module: dict[str, Any] = {}
    exec(PROGRAMS, module)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(testing.node_process())
        safe, doomed = (stack.enter_context(testing.node_process("--join", server.address)) for _ in range(2))
        hp = stack.enter_context(server.client())
        eventually(lambda: len(hp.status()["members"]) == 3)
        workers = [worker(safe, "a"), worker(safe, "b"), worker(doomed, "c", stuck_at=3)]
        try:
            # A new owner reports after 0.75 s that an object is lost, so the steps behind the gate must take longer.
            steps = 300 if count == 2 else 60
            gate = Gate(hp, "weights/30" if count == 2 else "")
            serving = Later(module["serve"], gate, np.zeros(size, np.int32), ["a", "b", "c"], count, steps)
            assert workers[2].stdout is not None
            assert workers[2].stdout.readline() == "stuck\n"
            doomed.process.kill()
            workers[2].kill()
            eventually(lambda: len(hp.status()["members"]) == 2)
            gate.is_open.set()
            # A worker manager would start this one.
            workers.append(worker(safe, "c"))
            weights, vacated = serving.result(2 * SOON)
            assert vacated == ["c"]
            # One sum failed: that of all three, or of two that include the lost worker.
            sums = int(weights[0]) // count
            assert sums in ({steps - 1} if count == 3 else {steps - 1, steps})
            same(weights, np.full(size, count * sums, np.int32))
            # Three were announced before, and the numbers of the seat continue.
            assert hp.latest("seat/c/", after=3, timeout=SOON).number > 3
        finally:
            for process in workers:
                process.kill()
                process.communicate()


def test_unused_gradients_are_deleted() -> None:
    """Each sum takes one of three workers, so the others create gradients that are never waited for."""
    size = 50_000
    module: dict[str, Any] = {}
    exec(PROGRAMS, module)
    with Node() as node, node.client() as hp:
        workers = [worker(node, seat) for seat in "abc"]
        try:
            serving = Later(module["serve"], hp, np.zeros(size, np.int32), ["a", "b", "c"], 1, 200)
            same(serving.result(2 * SOON)[0], np.full(size, 200, np.int32))
        finally:
            for process in workers:
                process.kill()
                process.communicate()
        # Per seat: one gradient that is waited for, some later ones, a reservation, and as many names.
        assert len(hp.objects()) <= 60


@pytest.mark.faults("kills a node")
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_sum_names_its_lost_inputs_and_whether_it_failed(how: str) -> None:
    import asyncio

    def lost(ref: hoplite.Ref) -> list[hoplite.Ref]:
        return ref.lost(timeout=SOON) if how == "sync" else asyncio.run(ref.lost_async(timeout=SOON))

    with (
        testing.node_process() as one,
        testing.node_process("--join", one.address) as two,
        one.client() as hp,
        two.client() as far,
    ):
        eventually(lambda: len(hp.status()["members"]) == 2)
        named = far.put(numbers(50_000), name="gradient/7")
        reserved = far.reserve()
        here = hp.put(numbers(50_000))
        first, all_of_them = hp.reduce([here, named, reserved, "late/1"], count=2), [here, named, reserved]
        same(hp.get(first, timeout=SOON), 2 * numbers(50_000))
        second = hp.reduce([*all_of_them, "late/1", "late/2"], count=3)
        third = hp.reduce(all_of_them)
        assert lost(second) == lost(third) == []
        two.process.kill()
        eventually(lambda: set(lost(second)) == {named, reserved})
        with pytest.raises(hoplite.ObjectLost, match=r"gradient/7|@"):
            hp.get(third, timeout=SOON)
        assert set(lost(third)) <= {named, reserved}
        assert lost(third)
        for number in (1, 2):
            hp.put(numbers(50_000), name=f"late/{number}")
        same(hp.get(second, timeout=SOON), 3 * numbers(50_000))
        assert set(lost(second)) == {named, reserved}
        # When it finished, nothing was lost.
        assert lost(first) == []
    with pytest.raises(hoplite.InvalidArgument, match="has no client"):
        hoplite.Ref("x").lost()
