"""Progress of long commands: what it shows, when, and where."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from fake_activity import FakeCluster
from hoplite.errors import NodeDown
from hoplite.tools import progress
from hoplite.tools.cli import files
from hoplite.tools.progress import BYTES, Progress, waiting_for
from support import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

SHOW_CURSOR = "\x1b[?25h"
ERASE_LINE = "\x1b[2K"


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def terminal(said: io.StringIO) -> Console:
    return Console(file=said, force_terminal=True, width=120)


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows everything immediately."""
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.001)
    monkeypatch.setattr(progress, "POLL_EVERY_S", 0.01)


def shows(said: io.StringIO, text: str) -> Callable[[], bool]:
    return lambda: re.search(text, said.getvalue()) is not None


def test_a_short_command_shows_nothing(said: io.StringIO, terminal: Console) -> None:
    for console in (terminal, Console(file=said)):
        with Progress("working", 5, "steps", console=console) as shown:
            shown.update(3)
    assert said.getvalue() == ""


@pytest.mark.usefixtures("_soon")
def test_without_a_terminal_a_line_is_repeated_only_if_it_changes(said: io.StringIO) -> None:
    with Progress("counting [/x]", 4, "steps", console=Console(file=said)) as shown:
        eventually(shows(said, "0 of 4 steps"))
        shown.update(1)
        eventually(shows(said, "1 of 4 steps"))
        shown.update(2)
        eventually(shows(said, "2 of 4 steps, about"))
        shown.update(2, left_s=0)
        eventually(shows(said, "about 0:00:00 left"))
        shown.notify("resting\nnow")
        eventually(shows(said, "resting now"))
    lines = said.getvalue().splitlines()
    assert lines[0] == "counting [/x]: 0 of 4 steps"
    assert re.fullmatch(r"counting \[/x\]: 2 of 4 steps, about 0:00:\d\d left", lines[2])
    assert lines[-1] == "resting now: 2 of 4 steps, about 0:00:00 left"
    assert len(lines) == len(set(lines))


@pytest.mark.usefixtures("_soon")
def test_a_wait_is_one_line(said: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", said)
    with waiting_for("late/1"):
        eventually(lambda: said.getvalue() != "")
    assert said.getvalue() == "waiting for late/1; press Ctrl-C to stop\n"


@pytest.mark.usefixtures("_soon")
def test_bytes_have_a_rate_and_the_total_may_be_unknown(said: io.StringIO) -> None:
    with Progress("reading", unit=BYTES, console=Console(file=said)) as shown:
        shown.advance(2**20)
        shown.advance(2**20)
        eventually(shows(said, r"reading: 2\.0 MiB, \S+ .iB/s\n"))

    def poll(shown: Progress) -> None:
        shown.advance(2**29)

    with Progress("writing", 2**30, BYTES, poll=poll, console=Console(file=said)):
        eventually(shows(said, r"writing: 512\.0 MiB of 1\.0 GiB\n"))
        eventually(shows(said, r"writing: 1\.0 GiB of 1\.0 GiB, \S+ .iB/s, about 0:00:00 left\n"))


@pytest.mark.usefixtures("_soon")
def test_a_failed_poll_keeps_the_last_number(said: io.StringIO) -> None:
    replies = [3.0]

    def poll(shown: Progress) -> None:
        if not replies:
            raise NodeDown("it ended")
        shown.update(replies.pop())

    with Progress("working", 5, "steps", poll=poll, console=Console(file=said)) as shown:
        eventually(shows(said, "3 of 5 steps"))
        shown.notify("still working")
        eventually(shows(said, "still working: 3 of 5 steps"))


@pytest.mark.usefixtures("_soon")
def test_a_bar_is_removed_at_the_end(said: io.StringIO, terminal: Console) -> None:
    with Progress("working [bold]", 4, "steps", console=terminal) as shown:
        shown.update(1)
        eventually(shows(said, r"1 of 4 steps.*working \[bold\]"))
        shown.say("a [/red] message")
    assert "a [/red] message\n" in said.getvalue()
    assert said.getvalue().rstrip().endswith(ERASE_LINE)
    assert SHOW_CURSOR in said.getvalue()


@pytest.mark.usefixtures("_soon")
def test_an_interrupt_leaves_a_clean_terminal(said: io.StringIO, terminal: Console) -> None:
    def wait() -> None:
        with Progress("working", console=terminal):
            eventually(shows(said, "0:00:00.*working"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait()
    assert said.getvalue().rstrip().endswith(ERASE_LINE)
    assert SHOW_CURSOR in said.getvalue()


@pytest.mark.usefixtures("_soon")
def test_a_get_shows_how_much_of_the_object_has_arrived(said: io.StringIO) -> None:
    cluster = FakeCluster(6)
    cluster.advance(0.6)
    client: Any = cluster.client(1)
    with Progress("waiting", unit=BYTES, console=Console(file=said)) as shown:
        files._show_transfer(client, "another", shown)
        eventually(shows(said, "waiting\n"))
        files._show_transfer(client, "weights/0", shown)
        eventually(shows(said, r"waiting: \S+ MiB of 64\.0 MiB\n"))
