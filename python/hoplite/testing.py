"""Clusters for tests and examples, as context managers: embedded nodes on loopback, or a separate node process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hoplite.errors import HopliteError, Timeout
from hoplite.node import Node
from hoplite.session import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite._client import Client

# A start on loopback takes milliseconds, on a busy test machine up to a thousand times that.
START_TIMEOUT_S = 20.0
FOLDER_BYTES_MAX = 64


@contextlib.contextmanager
def cluster(size: int = 3, *, capacity: int | str = "1GiB") -> Iterator[list[Node]]:
    """Runs a cluster of embedded nodes on loopback, each with its own socket.

    It does not use this user's default socket, and joins no node outside the block.

    Args:
        size: number of nodes.
        capacity: size limit of each node's store. Memory is allocated only when objects need it.

    Yields:
        The nodes, each connected to all others. At the end of the block they close, and all objects are lost. Tests may
        close nodes earlier.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(_socket_folder()))
        nodes: list[Node] = []
        for number in range(size):
            # Passed even where it is the default: the environment configures other nodes.
            node = Node(
                listen="127.0.0.1:0",
                join=[node.address for node in nodes[:1]],
                cluster="default",
                capacity=capacity,
                socket=folder / f"{number}.sock",
            )
            # With no time to hand over objects: all other nodes close too.
            stack.callback(node.close, 0)
            nodes.append(node)
        wait_for_members(nodes, size)
        yield nodes


def wait_for_members(nodes: list[Node], size: int, *, timeout: float = START_TIMEOUT_S) -> None:
    """Waits until every node has exactly `size` members in its view of the cluster, including itself.

    Raises:
        Timeout: it took longer than `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    for node in nodes:
        with node.client() as client:
            while (members := len(client.status()["members"])) != size:
                if time.monotonic() > deadline:
                    raise Timeout(f"node {node.id} has {members} members after {timeout:g} s, not {size}")
                time.sleep(0.005)


class NodeProcess:
    """A running `hoplite node`.

    Attributes:
        process: the process; kill it to test failures.
        address: host and port that other nodes join.
        socket: path of the Unix socket that clients attach to.
        id: id of the node.
    """

    def __init__(self, process: subprocess.Popen[str], ready: dict[str, str]) -> None:
        self.process = process
        self.address = ready["address"]
        self.socket = ready["socket"]
        self.id = ready["id"]

    def client(self) -> Client:
        """Attaches this process to the node."""
        return connect(f"unix:{self.socket}")

    def stop(self) -> None:
        """Makes the node leave (SIGTERM), and kills it if it does not end within 20 s."""
        self.process.terminate()
        _wait_or_kill(self.process)


@contextlib.contextmanager
def node_process(*options: str) -> Iterator[NodeProcess]:
    """Runs `hoplite node` in a separate process on loopback, with its own socket.

    Args:
        options: options of the command, such as "--join", "127.0.0.1:7420".

    Yields:
        The running node. At the end of the block it leaves, or is killed if it does not end in time.

    Raises:
        HopliteError: the node did not start. The message contains its stderr.
    """
    with _socket_folder() as folder:
        errors = Path(folder) / "stderr"
        own = ["--json", "--listen", "127.0.0.1:0", "--socket", str(Path(folder) / "node.sock")]
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "hoplite.tools.cli", "node", *own, *options],
                # A cluster or settings file in this environment is for other nodes.
                env={
                    name: value for name, value in os.environ.items() if name not in ("HOPLITE_JOIN", "HOPLITE_CONFIG")
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        with process:
            assert process.stdout is not None
            try:
                line = process.stdout.readline()
                if not line:
                    process.wait(START_TIMEOUT_S)
                    raise HopliteError(f"hoplite node did not start: {errors.read_text().strip()}")
                node = NodeProcess(process, json.loads(line))
            except BaseException:
                process.terminate()
                _wait_or_kill(process)
                raise
            try:
                yield node
            finally:
                node.stop()


def _socket_folder() -> tempfile.TemporaryDirectory[str]:
    # The path of a socket has at most 107 bytes. A long TMPDIR leaves no room for its name.
    is_long = len(os.fsencode(tempfile.gettempdir())) > FOLDER_BYTES_MAX
    return tempfile.TemporaryDirectory(prefix="hoplite-", dir="/tmp" if is_long else None)


def _wait_or_kill(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(START_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
