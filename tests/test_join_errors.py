"""Errors of a node that can't join or listen name the address and the likely reasons."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hoplite
from hoplite import Node, testing
from support import SOON, eventually

if TYPE_CHECKING:
    from hoplite.testing import NodeProcess

MAGIC = b"HPLT"


@pytest.mark.parametrize(
    ("sent", "quoted"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 40, '"HTTP"'), (bytes(range(1, 64)), "01020304")]
)
def test_joining_a_server_of_another_protocol_quotes_its_first_bytes(sent: bytes, quoted: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    caller, _ = listener.accept()
                except OSError:
                    return
                with caller:
                    caller.sendall(sent)
                    caller.recv(1)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(hoplite.JoinError) as raised:
            Node(join=[f"127.0.0.1:{port}"])
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert f"127.0.0.1:{port}: the peer does not use the Hoplite protocol: its stream begins with " in str(raised.value)
    assert quoted in str(raised.value)


def test_joining_a_silent_server_explains_the_possible_reasons() -> None:
    """For example, an HTTP server waits for the end of a line."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(hoplite.JoinError, match=rf"127\.0\.0\.1:{port}: it accepted the connection") as raised:
            Node(join=[f"127.0.0.1:{port}"])
    assert "check that it is a Hoplite node and not paused" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_joining_an_unknown_host_names_it() -> None:
    with pytest.raises(hoplite.JoinError, match=r"join.*no-such-host\.invalid:7420: can't resolve") as raised:
        Node(join=["no-such-host.invalid:7420"])
    assert "listen" not in str(raised.value)
    # The token is not the reason.
    assert "secret" not in str(raised.value)


def test_an_unknown_host_to_listen_on_or_to_advertise_is_named() -> None:
    with pytest.raises(hoplite.InvalidArgument, match=r"can't listen on no-such-host\.invalid:0: can't resolve"):
        Node(listen="no-such-host.invalid:0", no_auth=True)
    with pytest.raises(hoplite.InvalidArgument, match=r"can't advertise no-such-host\.invalid:0: can't resolve"):
        Node(advertise="no-such-host.invalid:0")


def test_a_socket_in_a_missing_folder_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    with pytest.raises(hoplite.InvalidArgument, match=f"the directory {folder} .* does not exist: .*mkdir -p {folder}"):
        Node(socket=folder / "node.sock")


def log_of(node: NodeProcess) -> list[str]:
    return (Path(node.socket).parent / "stderr").read_text().splitlines()


@pytest.mark.faults("a peer uses another protocol version")
def test_nodes_of_two_versions_report_both_once() -> None:
    """On both sides: at the node that joins and at the node that refuses."""
    header = MAGIC + bytes([1]) + bytes(43)
    with testing.node_process() as node:
        host, _, port = node.address.rpartition(":")
        for _ in range(2):
            with socket.create_connection((host, int(port)), timeout=SOON) as stream:
                stream.sendall(header)
                version = stream.recv(4096)[4]
                # Until the node has logged and closed the connection.
                while stream.recv(4096):
                    pass
        own = f"the peer uses protocol version 1, but this node uses {version}: install the same release on both"
        (line,) = [line for line in log_of(node) if own in line]
        assert "WARN" in line
        assert "refused a node of another version" in line
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as stream:
                stream.recv(4096)
                stream.sendall(header)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(hoplite.JoinError, match=f"protocol version 1, but this node uses {version}: install"):
            Node(join=[f"127.0.0.1:{server.getsockname()[1]}"])
        thread.join()


def test_a_check_of_the_port_is_not_logged() -> None:
    """Such as that of the Slurm script, or the TCP probe of a load balancer."""
    with testing.node_process() as node:
        host, _, port = node.address.rpartition(":")
        with node.client() as client:
            before = client.status()["counters"]["strangers"]
            socket.create_connection((host, int(port)), timeout=SOON).close()
            eventually(lambda: client.status()["counters"]["strangers"] > before)
        assert not [line for line in log_of(node) if "connection" in line]
