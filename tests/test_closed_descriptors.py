"""Processes that start with descriptors 0, 1 or 2 closed, or close them: none of ours gets such a number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from commands import COMMAND, run
from support import SOON, eventually

if TYPE_CHECKING:
    from hoplite import Client, Node

CLOSED = [(0,), (1,), (2,), (1, 2), (0, 1, 2)]

# Closes descriptors after the import, attaches, prints to the closed numbers, and uses the attachment.
PRINTS = """
import contextlib, os, sys
import hoplite
printed, socket = [int(number) for number in sys.argv[1]], sys.argv[2]
if sys.argv[3] == "after the import":
    for descriptor in printed:
        os.close(descriptor)
hp = hoplite.connect(socket)
hp.put(bytes(1_000_000), name="large")
for descriptor in printed:
    os.write(descriptor, b"a line of text for nobody\\n")
assert bytes(hp.get("large")) == bytes(1_000_000)
hp.put(b"done", name="done")
assert {os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in printed} == {"/dev/null"}
"""


def without(closed: tuple[int, ...], command: list[str], **environment: str) -> subprocess.Popen[bytes]:
    """Starts a process with some of its descriptors 0 to 2 closed; the others are empty or pipes."""

    def close() -> None:
        for descriptor in closed:
            os.close(descriptor)

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=close,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("closed", CLOSED, ids=str)
def test_a_command_without_standard_descriptors_ends_without_a_traceback(
    closed: tuple[int, ...], node: Node, client: Client
) -> None:
    client.put(b"x", name="x")
    for command in (["status"], ["objects", "--json"], ["get", "x"], ["--help"]):
        process = without(closed, [*COMMAND, *command], HOPLITE_SOCKET=str(node.socket))
        output, errors = process.communicate(timeout=SOON)
        assert (process.returncode, errors) == (0, b""), command
        assert bool(output) == (1 not in closed)
    process = without(closed, [*COMMAND, "get", "missing", "--timeout", "0"], HOPLITE_SOCKET=str(node.socket))
    _, errors = process.communicate(timeout=SOON)
    assert process.returncode == 1
    assert b"Traceback" not in errors


@pytest.mark.parametrize("closed", CLOSED, ids=str)
def test_a_node_without_standard_descriptors_runs_until_its_signal(closed: tuple[int, ...], tmp_path: Path) -> None:
    socket = tmp_path / "node.sock"
    process = without(closed, [*COMMAND, "node", "--socket", str(socket), "--listen", "127.0.0.1:0"])
    try:
        eventually(lambda: socket.exists() or process.poll() is not None)
        assert process.poll() is None
        run("status", HOPLITE_SOCKET=str(socket))
        targets = {number: str(Path(f"/proc/{process.pid}/fd/{number}").readlink()) for number in closed}
        assert set(targets.values()) == {"/dev/null"}, targets
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SOON)
    assert process.returncode == 0


@pytest.mark.parametrize("closed", CLOSED, ids=str)
@pytest.mark.parametrize("start", ["at its start", "after the import"])
def test_a_print_to_a_closed_descriptor_does_not_reach_the_attachment(
    closed: tuple[int, ...], start: str, node: Node, client: Client
) -> None:
    numbers = "".join(map(str, closed))
    command = [sys.executable, "-c", PRINTS, numbers, str(node.socket), start]
    process = without(closed if start == "at its start" else (), command)
    _, errors = process.communicate(timeout=SOON)
    assert (process.returncode, errors) == (0, b"")
    assert bytes(client.get("done", timeout=SOON)) == b"done"
