"""The parameter server of docs/parameter-server.md, whose processes and nodes are killed and restarted."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from hoplite import Node, testing
from programs import kill
from support import SOON, Later, eventually, numbers, same

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parent.parent / "docs" / "parameter-server.md"

PROGRAMS = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))

WORKERS = ["a", "b", "c"]

SIZE = 50_000

WORKER = f"""
import sys
import numpy as np
{PROGRAMS}
def compute(weights):
    time.sleep(0.005)
    return np.ones_like(weights)

work(hoplite.connect(sys.argv[1]), sys.argv[2], compute)
"""

SERVER = f"""
import sys
import numpy as np
{PROGRAMS}
serve(hoplite.connect(sys.argv[1]), np.zeros({SIZE}, np.int32), {WORKERS}, int(sys.argv[2]), 1_000_000)
"""


class Training:
    """A server and three workers on two nodes, and a third node for the client that looks on."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, count: int) -> None:
        self._stack = stack
        self._folder = folder
        self._count = count
        self._safe = stack.enter_context(testing.node_process())
        self.client = stack.enter_context(self._safe.client())
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.nodes: dict[str, testing.NodeProcess] = {}
        for where in ("server", "workers"):
            self.start_node(where)
        eventually(lambda: len(self.client.status()["members"]) == 3)
        for name in ["server", *WORKERS]:
            self.start(name)

    def start_node(self, where: str) -> None:
        """Starts a node, or starts it again at the same socket, as systemd does."""
        options = ("--socket", str(self._folder / f"{where}.sock"), "--join", self._safe.address)
        self.nodes[where] = self._stack.enter_context(testing.node_process(*options))

    def kill_node(self, where: str) -> None:
        kill(self.nodes[where].process)

    def start(self, name: str) -> None:
        """Starts the server or a worker, as a supervisor does."""
        is_server = name == "server"
        socket = self.nodes["server" if is_server else "workers"].socket
        program = [SERVER, socket, str(self._count)] if is_server else [WORKER, socket, name]
        self._processes[name] = subprocess.Popen([sys.executable, "-c", *program], text=True)
        self._stack.callback(self.kill, name)

    def kill(self, name: str) -> None:
        kill(self._processes[name])

    def is_running(self, name: str) -> bool:
        return self._processes[name].poll() is None

    def goes_on(self) -> None:
        """Waits for several steps, and checks that the weights are the sum of `count` gradients of each."""
        start = self.client.latest("weights/", timeout=SOON).number
        assert start is not None
        number = self.client.latest("weights/", after=start + 5, timeout=SOON).number
        assert number is not None
        with contextlib.suppress(hoplite.ObjectDeleted):
            weights = self.client.get(f"weights/{number}", timeout=SOON)
            same(weights, np.full(SIZE, self._count * number, np.int32))


@contextlib.contextmanager
def training(folder: Path, count: int) -> Iterator[Training]:
    with contextlib.ExitStack() as stack:
        found = Training(stack, folder, count)
        found.goes_on()
        yield found
        found.goes_on()
        for name in ["server", *WORKERS]:
            assert found.is_running(name), name
            found.kill(name)
        # Two versions, and one that was being put; per worker a gradient, and one that was being put; sums.
        eventually(lambda: len(found.client.directory(timeout=SOON)) <= 3 + 2 * len(WORKERS) + 5)
        assert len(found.client.directory("weights/", timeout=SOON)) <= 3


# All gradients are required, or the sum of a step takes the first two.
COUNTS = pytest.mark.parametrize("count", [2, 3], ids=["the first two", "all"])


@COUNTS
@pytest.mark.faults("kills programs")
def test_training_goes_on_when_its_programs_are_killed(count: int, tmp_path: Path) -> None:
    with training(tmp_path, count) as running:
        for _ in range(3):
            running.kill("server")
            running.start("server")
            running.goes_on()
        running.kill("b")
        if count == 2:
            running.goes_on()
        running.start("b")
        running.goes_on()
        # Two at once.
        running.kill("server")
        running.kill("a")
        running.start("server")
        running.start("a")


@COUNTS
@pytest.mark.parametrize("where", ["server", "workers"])
@pytest.mark.faults("kills a node")
def test_training_goes_on_when_a_node_is_killed(where: str, count: int, tmp_path: Path) -> None:
    """The programs keep running: they reconnect to the node that replaces it."""
    with training(tmp_path, count) as running:
        for _ in range(2):
            running.kill_node(where)
            running.start_node(where)
            running.goes_on()


@pytest.mark.faults("kills a node and its programs")
def test_training_goes_on_when_a_host_is_killed(tmp_path: Path) -> None:
    with training(tmp_path, 2) as running:
        running.kill_node("server")
        running.kill("server")
        running.start_node("server")
        running.start("server")
        running.goes_on()
        running.kill_node("workers")
        for name in WORKERS:
            running.kill(name)
        running.start_node("workers")
        for name in WORKERS:
            running.start(name)


def test_training_ends_after_its_steps() -> None:
    module: dict[str, Any] = {}
    exec(PROGRAMS, module)
    with Node() as node, node.client() as hp:
        workers = [subprocess.Popen([sys.executable, "-c", WORKER, node.socket, name], text=True) for name in WORKERS]
        try:
            serving = Later(module["serve"], hp, np.zeros(SIZE, np.int32), WORKERS, 1, 50)
            same(serving.result(2 * SOON), np.full(SIZE, 50, np.int32))
        finally:
            for process in workers:
                kill(process)


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
