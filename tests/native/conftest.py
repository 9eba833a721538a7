"""Fixtures: the compiled peer, running peers, and pairs of a Python and a native client."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import hoplite
from hoplite.tools.peace import disturbances
from native.peer import NativeNode, Peer
from support import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from native.clients import NativeClient

CHECKOUT = Path(__file__).parents[2]
NATIVE = CHECKOUT / "packages" / "native"

# Folders with hoplite/hoplite.h and with libhoplite.so. Read at import: `_own_runtime_dir` removes these variables.
INCLUDE = os.environ.get("HOPLITE_NATIVE_INCLUDE", str(NATIVE / "include"))
LIBRARY = os.environ.get("HOPLITE_NATIVE_LIB", str(CHECKOUT / "target" / "native"))

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")

SETUPS = ("native attaches", "python attaches", "native joins", "python joins")
# One node and two, each side as the one that starts the first.
PAIRS = ("python attaches", "native joins")


class Pair(NamedTuple):
    """Two clients that share objects: of one node, or of two nodes of one cluster.

    Attributes:
        python: the client in this process.
        native: the client in the peer.
        nodes: number of nodes, 1 or 2.
        python_socket: path of the socket of the Python client's node.
        native_socket: path of the socket of the native client's node.
    """

    python: hoplite.Client
    native: NativeClient
    nodes: int
    python_socket: str
    native_socket: str

    @property
    def peer(self) -> Peer:
        """The process of the native client."""
        return self.native.peer


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The peer, compiled as a user's C program."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: install gcc")
    if not Path(LIBRARY, "libhoplite.so").exists():
        pytest.skip(f"no libhoplite.so in {LIBRARY}: run make native, or set HOPLITE_NATIVE_LIB")
    path = tmp_path_factory.mktemp("peer") / "peer"
    sources = map(str, sorted((NATIVE / "tests" / "peer").glob("*.c")))
    links = (f"-L{LIBRARY}", f"-Wl,-rpath,{LIBRARY}", "-lhoplite")
    subprocess.run(
        [compiler, "-std=gnu11", "-g", *WARNINGS, f"-I{INCLUDE}", *sources, "-o", str(path), *links],
        check=True,
    )
    return path


@pytest.fixture
def start_peer(program: Path, tmp_path: Path) -> Iterator[Callable[[], Peer]]:
    """Starts peers, which end with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(Peer(program, tmp_path))


@pytest.fixture
def peer(start_peer: Callable[[], Peer]) -> Peer:
    """A running peer without nodes and clients."""
    return start_peer()


def paired(peer: Peer, stack: contextlib.ExitStack, setup: str, **options: Any) -> Pair:  # noqa: ANN401 - settings
    """Creates a pair of one of `SETUPS`.

    Args:
        peer: the native process.
        stack: closes the Python side.
        setup: which side starts the first node, and whether the other attaches to it or joins with its own.
        options: options of both nodes, such as a token.
    """
    folder = peer.file()
    folder.mkdir()
    options["capacity"] = 256 << 20
    if "joins" in setup:
        options["listen"] = "127.0.0.1:0"

    def python_node(**more: Any) -> hoplite.Node:  # noqa: ANN401 - settings
        return stack.enter_context(hoplite.Node(socket=folder / "python.sock", **options, **more))

    def native_node(**more: object) -> NativeNode:
        return peer.node(socket=folder / "native.sock", **options, **more)

    if setup == "native attaches":
        node = python_node()
        client = stack.enter_context(node.client())
        return Pair(client, peer.connect(f"unix:{node.socket}"), 1, node.socket, node.socket)
    if setup == "python attaches":
        native = native_node()
        client = stack.enter_context(hoplite.connect(f"unix:{native.socket}"))
        return Pair(client, native.client(), 1, native.socket, native.socket)
    if setup == "native joins":
        node = python_node()
        native = native_node(join=node.address)
    else:
        native = native_node()
        node = python_node(join=[native.address])
    pair = Pair(stack.enter_context(node.client()), native.client(), 2, node.socket, native.socket)
    eventually(lambda: len(pair.python.status()["members"]) == len(pair.native.status()["members"]) == 2)
    return pair


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest, peer: Peer) -> Iterator[Pair]:
    """A Python and a native client, of one node and of two."""
    with contextlib.ExitStack() as stack:
        pair = paired(peer, stack, request.param)
        yield pair
        # As the fixture `_peace` does for Python nodes.
        assert not disturbances(pair.native.status()["counters"])
