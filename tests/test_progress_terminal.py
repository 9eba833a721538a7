"""Long commands in a pseudo-terminal: they show progress, and Ctrl-C ends them with exit code 130 and no leftovers."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from commands import COMMAND
from support import SOON, eventually

if TYPE_CHECKING:
    from hoplite import Node

pexpect = pytest.importorskip("pexpect", reason="needs pexpect, which `make test-operations` installs")
pytestmark = pytest.mark.operations

INTERRUPTED = 130


def spawn(*arguments: object) -> Any:  # noqa: ANN401 - untyped
    """Starts a command in a terminal of 80 columns."""
    words = [*COMMAND[1:], *map(str, arguments)]
    return pexpect.spawn(COMMAND[0], words, dimensions=(24, 80), encoding="utf-8", timeout=SOON)


def interrupt(command: Any) -> str:  # noqa: ANN401 - as above
    """Presses Ctrl-C and returns the rest of the output."""
    command.sendintr()
    command.expect(pexpect.EOF)
    command.close()
    rest: str = command.before
    assert command.exitstatus == INTERRUPTED, rest
    assert "Traceback" not in rest
    return rest


def processes(text: str) -> list[int]:
    """The processes with a text in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text in (folder / "cmdline").read_text().replace("\0", " "):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("get", "late/1", "-o", "FOLDER/late"), "waiting for late/1; press Ctrl-C to stop"),
        (("latest", "late/"), "waiting for a name under late/; press Ctrl-C to stop"),
        (("wait", "late/1", "late/2"), r"waiting for 2 .*objects; press Ctrl-C to stop"),
        (("reduce", "late/1", "late/2"), "waiting for the inputs; press Ctrl-C to stop"),
    ],
)
def test_a_wait_shows_its_time_and_ends_at_ctrl_c(
    node: Node, tmp_path: Path, arguments: tuple[str, ...], shown: str
) -> None:
    command = spawn(*(word.replace("FOLDER", str(tmp_path)) for word in arguments))
    command.expect(rf"0:00:0\d  {shown}")
    rest = interrupt(command)
    assert "\x1b[?25h" in rest, "the cursor is hidden"
    assert not [path for path in tmp_path.iterdir() if path.is_file()]
    del node


def test_reading_a_pipe_shows_bytes(node: Node, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = spawn("put", pipe)
    with pipe.open("wb") as opened:
        opened.write(b"x" * 2**20)
        opened.flush()
        # A read of a pipe returns when a whole piece has arrived.
        opened.write(b"x" * 2**23)
        opened.flush()
        command.expect(r"8\.0 MiB  reading .*pipe")
        interrupt(command)
    assert node.client().objects() == []


def test_a_blocked_write_shows_bytes_and_ends_at_ctrl_c(node: Node, tmp_path: Path) -> None:
    """The target is a pipe that nobody empties."""
    with node.client() as client:
        client.put(bytes(2**24), name="large")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = spawn("get", "large", "-o", pipe)
    with pipe.open("rb") as opened:
        assert opened.read(1) == b"\0"
        command.expect(r"of 16\.0 MiB.* writing")
        interrupt(command)


def test_the_demo_ends_its_workers() -> None:
    command = spawn("demo", "--steps", "100000")
    try:
        command.expect(r"step [1-9]\d*/100000")
    except pexpect.EOF:
        if "not installed" in command.before:
            pytest.skip("needs scikit-learn")
        raise
    assert processes("hoplite.tools.demo.worker")
    rest = interrupt(command)
    assert "\x1b[?25h" in rest
    eventually(lambda: not processes("hoplite.tools.demo.worker"))


def test_nothing_is_shown_before_two_seconds(node: Node) -> None:
    node.client().put(b"x", name="here")
    command = spawn("wait", "here")
    command.expect(pexpect.EOF)
    assert re.sub(r"\s", "", command.before) == "here"
    del node
