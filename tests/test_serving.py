"""The front end and the models of docs/serving.md, whose processes and nodes are killed and restarted."""

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
from programs import frozen, kill
from support import SOON, Later, eventually, same

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parent.parent / "docs" / "serving.md"

PROGRAMS = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))

MODELS = ["a", "b", "c"]

MODEL = f"""
import sys
{PROGRAMS}
def answer(batch):
    time.sleep(0.005)
    return 2 * batch

serve(hoplite.connect(sys.argv[1]), sys.argv[2], answer)
"""

# Writes a byte to a file for each batch that was answered correctly.
FRONT_END = f"""
import itertools, sys
import numpy as np
{PROGRAMS}
hp = hoplite.connect(sys.argv[1])
with open(sys.argv[4], "ab", buffering=0) as log:
    for step in itertools.count():
        batch = np.full(int(sys.argv[2]), step, "float32")
        mean = ask(hp, batch, {MODELS}, int(sys.argv[3]))
        assert (mean == 2 * batch).all(), (step, mean)
        log.write(b".")
"""


class Serving:
    """A front end on a node, a model on a second and two on a third, and a fourth node for the client that looks on."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, size: int, count: int) -> None:
        self._stack = stack
        self._folder = folder
        self._log = folder / "log"
        self._arguments = [str(size), str(count), str(self._log)]
        self._safe = stack.enter_context(testing.node_process())
        self.client = stack.enter_context(self._safe.client())
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._nodes: dict[str, testing.NodeProcess] = {}
        self._log.touch()
        for where in ("front", "one", "two"):
            self.start_node(where)
        eventually(lambda: len(self.client.status()["members"]) == 4)
        for name in ["front", *MODELS]:
            self.start(name)

    def start_node(self, where: str) -> None:
        """Starts a node, or starts it again at the same socket, as systemd does."""
        options = ("--socket", str(self._folder / f"{where}.sock"), "--join", self._safe.address)
        self._nodes[where] = self._stack.enter_context(testing.node_process(*options))

    def kill_node(self, where: str) -> None:
        kill(self._nodes[where].process)

    def start(self, name: str) -> None:
        """Starts the front end or a model, as a supervisor does."""
        where = {"front": "front", "a": "one"}.get(name, "two")
        socket = self._nodes[where].socket
        program = [FRONT_END, socket, *self._arguments] if name == "front" else [MODEL, socket, name]
        self._processes[name] = subprocess.Popen([sys.executable, "-c", *program], text=True)
        self._stack.callback(self.kill, name)

    def kill(self, name: str) -> None:
        kill(self._processes[name])

    def process(self, name: str) -> subprocess.Popen[str]:
        return self._processes[name]

    def goes_on(self) -> None:
        """Waits until several more batches were answered."""
        start = self._log.stat().st_size
        eventually(lambda: self._log.stat().st_size >= start + 5)


@contextlib.contextmanager
def serving(folder: Path, size: int, count: int) -> Iterator[Serving]:
    with contextlib.ExitStack() as stack:
        found = Serving(stack, folder, size, count)
        found.goes_on()
        yield found
        found.goes_on()
        for name in ["front", *MODELS]:
            assert found.process(name).poll() is None, name
            found.kill(name)
        # Nothing grows with the number of batches. The answers of killed front ends are deleted by their ttl, and this
        # does not wait as long. The last front end may be killed before the request before its last one is deleted. All
        # earlier requests are deleted, or are being deleted.
        eventually(lambda: len(found.client.directory("request/", timeout=SOON)) <= 2)
        eventually(lambda: len(found.client.directory(timeout=SOON)) <= 5 * (len(MODELS) + 2))


# Elements of float32: answers inside messages, and in their own memory.
SIZES = pytest.mark.parametrize("size", [100, 50_000], ids=["small", "large"])

# All answers are required, or the first two.
COUNTS = pytest.mark.parametrize("count", [2, 3], ids=["the first two", "all"])


@SIZES
@COUNTS
@pytest.mark.faults("kills programs")
def test_requests_are_answered_when_models_and_the_front_end_are_killed(size: int, count: int, tmp_path: Path) -> None:
    with serving(tmp_path, size, count) as running:
        for name in ("a", "b"):
            running.kill(name)
            if count == 2:
                running.goes_on()
            running.start(name)
            running.goes_on()
        running.kill("front")
        running.start("front")
        running.goes_on()
        # All of them at once.
        for name in ["front", *MODELS]:
            running.kill(name)
        for name in ["front", *MODELS]:
            running.start(name)


@SIZES
@COUNTS
@pytest.mark.parametrize("where", ["front", "one", "two"])
@pytest.mark.faults("kills a node")
def test_requests_are_answered_when_a_node_is_killed(where: str, size: int, count: int, tmp_path: Path) -> None:
    """The programs keep running: they reconnect to the node that replaces it."""
    with serving(tmp_path, size, count) as running:
        running.kill_node(where)
        if count == 2 and where == "one":
            running.goes_on()
        running.start_node(where)
        running.goes_on()


@pytest.mark.faults("pauses a program")
def test_requests_are_answered_while_a_model_is_paused(tmp_path: Path) -> None:
    with serving(tmp_path, 50_000, 2) as running, frozen(running.process("a")):
        running.goes_on()


def test_answers_are_used_as_they_arrive() -> None:
    """Those that do not arrive in time are left out. Nothing stays behind."""
    module: dict[str, Any] = {}
    exec(PROGRAMS, module)
    batch = np.arange(10, dtype="float32")
    with Node() as node, node.client() as hp:
        models = [subprocess.Popen([sys.executable, "-c", MODEL, node.socket, name], text=True) for name in MODELS]
        try:
            arrived = Later(lambda: dict(module["stream"](hp, batch, MODELS, SOON))).result()
            assert arrived.keys() == set(MODELS)
            for each in arrived.values():
                same(each, 2 * batch)
            kill(models[0])
            found = module["stream"](hp, batch, MODELS, 1.0)
            assert {name for name, _ in found} <= {"b", "c"}
            # A generator that is closed early deletes its slots too.
            found = module["stream"](hp, batch, MODELS, SOON)
            assert next(found)[0] in {"b", "c"}
            found.close()
            assert all(str(row["ref"]).startswith("request/") for row in hp.directory(timeout=SOON))
        finally:
            for process in models:
                kill(process)
        with pytest.raises(hoplite.Timeout):
            hp.latest("request/", after=2**62, timeout=0)
