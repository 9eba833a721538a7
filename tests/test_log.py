"""The log of a node: quiet by default, one line per cause, levels per module, and JSON lines."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import hoplite
from commands import COMMAND, run
from hoplite.settings import load
from hoplite.settings.kinds import LOG_MODULES
from programs import line
from support import SOON, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def logged_while(use: Callable[[hoplite.Client, str], None], path: Path, *options: str) -> list[str]:
    """Runs `hoplite node`, uses it through a client and its address, and returns the lines of its log."""
    at = ("--listen", "127.0.0.1:0", "--capacity", "64MiB", "--socket", str(path), "--json")
    with subprocess.Popen(
        [*COMMAND, "node", *at, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            address = json.loads(line(process))["address"]
            with hoplite.connect(str(path), timeout=SOON) as client:
                use(client, address)
        finally:
            process.terminate()
        log = process.communicate(timeout=SOON)[1]
    return [written for written in log.splitlines() if not written.startswith("leaving: ")]


def do_nothing(client: hoplite.Client, address: str) -> None:
    """Uses nothing."""
    del client, address


def refuse_strangers(client: hoplite.Client, address: str) -> None:
    """Connects twenty times without the protocol."""
    host, _, port = address.rpartition(":")
    for _ in range(20):
        with socket.create_connection((host, int(port)), SOON) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"\x1b[2J" * 100)
            with contextlib.suppress(ConnectionError):
                while stranger.recv(4096):
                    pass
    eventually(lambda: client.status()["counters"]["strangers"] >= 20)


def test_an_embedded_node_logs_nothing() -> None:
    text = "import hoplite; hp = hoplite.init(); hp.get(hp.put(b'x' * 100_000)); hoplite.shutdown()"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True, timeout=SOON)
    assert done.stderr == b""


def test_a_node_outlives_the_reader_of_its_log(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    at = ("--listen", "127.0.0.1:0", "--capacity", "64MiB", "--socket", str(path), "--json", "--log-level", "trace")
    with subprocess.Popen(
        [*COMMAND, "node", *at], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            process.stderr.close()
            line(process)
            for _ in range(3):
                with hoplite.connect(str(path), timeout=SOON) as client:
                    assert client.get(client.put(b"x")) == b"x"
        finally:
            process.terminate()
        assert process.wait(SOON) == 0


def test_a_node_logs_a_repeated_cause_once(tmp_path: Path) -> None:
    started, refused = logged_while(refuse_strangers, tmp_path / "s")
    assert "INFO hoplite_node::node: node started node=" in started
    assert "INFO hoplite_node::network::listen: refused a connection address=127.0.0.1:" in refused
    repeats = logged_while(refuse_strangers, tmp_path / "t", "--log-level", "debug")
    assert len([written for written in repeats if "refused a connection" in written]) == 20


def send_every_version(client: hoplite.Client, address: str) -> None:
    """Connects with each version of the protocol but this one, then as a process with another version."""
    host, _, port = address.rpartition(":")
    for version in range(256):
        with socket.create_connection((host, int(port)), SOON) as stranger:
            stranger.sendall(b"HPLT" + bytes([version]) + bytes(64))
            with contextlib.suppress(ConnectionError):
                while stranger.recv(4096):
                    pass
    refuse_strangers(client, address)
    eventually(lambda: client.status()["counters"]["strangers"] >= 255)


def test_a_stranger_cannot_use_up_the_log(tmp_path: Path) -> None:
    _, *refused = logged_while(send_every_version, tmp_path / "s")
    versions = [written for written in refused if "the peer uses protocol version" in written]
    others = [written for written in refused if "the peer does not use the Hoplite protocol" in written]
    assert (len(versions), len(others)) == (1, 1), refused


def test_json_lines_have_typed_fields(tmp_path: Path) -> None:
    lines = logged_while(refuse_strangers, tmp_path / "s", "--log-format", "json")
    started, refused = (json.loads(written) for written in lines)
    for event in started, refused:
        assert list(event) == ["time", "level", "module", "message", "fields"]
        assert dt.datetime.fromisoformat(event["time"]).tzinfo is dt.UTC
    assert (started["level"], started["module"], started["message"]) == ("info", "node", "node started")
    assert started["fields"]["capacity"] == 64 << 20
    assert started["fields"]["cluster"] == "default"
    assert (refused["module"], refused["message"]) == ("network", "refused a connection")
    assert refused["fields"]["address"].startswith("127.0.0.1:")


def events(*levels: str) -> list[dict[str, Any]]:
    """Returns what two nodes log while one receives an object with a hostile name, at these levels."""
    text = """
import sys, hoplite
from hoplite import log
log.start(hoplite.settings.load(log_level=sys.argv[1])["log_level"], "json")
name = 'two\\u2028forged\\u202e"}\\\\'
with hoplite.Node(cluster="x" * 5000) as first, hoplite.Node(cluster="x" * 5000, join=[first.address]) as second:
    first.client().put(b"x" * 100_000, name=name)
    second.client().get(name, timeout=30)
"""
    done = subprocess.run([sys.executable, "-c", text, ",".join(levels)], capture_output=True, check=True, timeout=SOON)
    lines = done.stderr.decode().splitlines()
    assert all(written.isprintable() and len(written) < 2000 for written in lines), lines
    return [json.loads(written) for written in lines]


def test_hostile_text_stays_in_its_json_field() -> None:
    found = events("debug")
    names = {event["fields"]["id"] for event in found if "id" in event["fields"]}
    assert any('two\u2028forged\u202e"}\\' in name for name in names), names
    clusters = {event["fields"]["cluster"] for event in found if "cluster" in event["fields"]}
    assert clusters == {"x" * 1023 + "..."}


def test_each_module_has_its_level() -> None:
    def seen(*levels: str) -> set[tuple[str, str]]:
        return {(event["module"], event["level"]) for event in events(*levels)}

    assert ("shell", "debug") not in seen("info")
    shell = seen("warning", "shell=debug")
    assert ("shell", "debug") in shell
    assert {module for module, _ in shell} == {"shell"}
    assert ("node", "info") in seen("shell=off"), "other modules keep the default"
    assert seen("off") == set()


@pytest.mark.parametrize(
    ("levels", "named"),
    [
        ("loud", "'loud'"),
        ("info,transfer=x", "'x'"),
        ("info,transfers=debug", "'transfers'"),
        ("info,transfer=debug,transfer=info", "twice"),
        ("info,debug", "twice"),
        ("", "empty"),
        ("info,", "''"),
        ("=debug", "''"),
        ("transfer=debug=info", "'transfer=debug'"),
    ],
)
def test_levels_that_are_not_valid_are_rejected(levels: str, named: str) -> None:
    with pytest.raises(hoplite.InvalidArgument, match=re.escape(named)):
        load(log_level=levels)


def test_an_unknown_module_is_answered_with_all_modules() -> None:
    with pytest.raises(hoplite.InvalidArgument, match=", ".join(LOG_MODULES)):
        load(log_level="transfers=debug")


def test_the_command_rejects_unknown_modules_and_formats() -> None:
    assert "'x'" in run("node", "--log-level", "x=debug", code=2).stderr
    assert "'xml': set one of text, json" in run("node", "--log-format", "xml", code=2).stderr
