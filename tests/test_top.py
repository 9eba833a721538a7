"""The display of `hoplite top`, driven by textual's Pilot, on a fake cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

import commands
from commands import COMMAND
from fake_activity import FakeCluster
from hoplite import testing
from hoplite.errors import ConnectError
from hoplite.tools.observe import observer
from hoplite.tools.observe.observer import Observer
from support import SOON

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

pexpect = pytest.importorskip("pexpect", reason="needs pexpect, which `make test-operations` installs")
pytest.importorskip("textual", reason="needs textual, which `make test-operations` installs")
pytestmark = pytest.mark.operations

SIZE = (80, 24)


class Shown:
    """The display of a cluster.

    Attributes:
        app: the application.
        pilot: presses keys.
    """

    def __init__(self, app: Any, pilot: Any) -> None:  # noqa: ANN401 - not in the environment of the type checker
        self.app = app
        self.pilot = pilot

    @property
    def head(self) -> str:
        return str(self.app._head.content)

    def rows(self) -> list[list[str]]:
        table = self.app._table
        return [[str(cell) for cell in table.get_row_at(number)] for number in range(table.row_count)]

    def columns(self) -> list[str]:
        return [str(column.label) for column in self.app._table.columns.values()]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the display shows something."""
        async with asyncio.timeout(SOON):
            while not condition():
                await self.pilot.pause(0.02)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()


@contextlib.asynccontextmanager
async def shown(cluster: FakeCluster, size: tuple[int, int] = SIZE) -> AsyncIterator[Shown]:
    from hoplite.tools.top.app import Top

    app = Top(Observer(cluster.client(), now=lambda: cluster.now))  # type: ignore[arg-type] # a fake
    async with app.run_test(size=size) as pilot:
        found = Shown(app, pilot)
        await found.until(lambda: app._table.row_count > 1)
        yield found


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "INTERVAL_S", 0.05)


@pytest.fixture
def cluster() -> FakeCluster:
    """Nodes with a broadcast in progress."""
    cluster = FakeCluster(6)
    cluster.advance(0.6)
    return cluster


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_sentences_wrap_at_the_width_of_the_terminal(cluster: FakeCluster) -> None:
    from hoplite.tools.top.app import Top

    advice = "delete objects, or restart the node with more capacity, and see the largest: hoplite objects --sort size"

    async def refuse(_: object) -> dict[str, Any]:
        raise ConnectError(f"no node serves x.sock: {advice}")

    async def test() -> None:
        async with shown(cluster, (100, 24)) as top:
            row = {"seconds": 9.0, "verb": "put", "ref": "policy/17", "node": cluster.ids[0], "process": 4711}
            top.app.action_pause()
            top.app._paused.frame["waits"] = [{**row, "on": None, "reason": f"the store is full: {advice}"}]
            await top.press("4")
            (shown_row,) = top.rows()
            assert " ".join(shown_row[-1].split()) == f"the store is full: {advice}"
            assert len(shown_row[-1].splitlines()) > 1
            assert top.app._table.virtual_size.width <= 100
        client = cluster.client()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(client), "status_async", refuse)
            app = Top(Observer(client, now=lambda: cluster.now))  # type: ignore[arg-type] # a fake
            async with app.run_test(size=(100, 24)) as pilot:
                await Shown(app, pilot).until(lambda: advice in str(app._head.content))
                await pilot.pause()
                lines = [app._head.render_line(y).text for y in range(app._head.size.height)]
                assert advice.split()[-1] in " ".join(lines)

    run(test())


def test_each_table_has_a_key(cluster: FakeCluster) -> None:
    async def test() -> None:
        async with shown(cluster) as top:
            assert top.columns()[:2] == ["node", "state"]
            assert [row[0] for row in top.rows()][:2] == ["10.0.0.1:7420 *", "10.0.0.2:7420"]
            await top.press("2")
            assert [row[0] for row in top.rows()][:3] == ["weights/0", "10.0.0.1:7420", "→ 10.0.0.2:7420"]
            await top.press("3")
            assert top.columns() == ["from", "to", "rate/s", "transfers"]
            await top.press("tab")
            assert top.rows()[0][1] == "get weights/0"
            await top.press("tab")
            assert [row[0] for row in top.rows()] == ["no reader"]
            await top.press("6")
            assert "began to receive" in " ".join(row[3] for row in top.rows())
            await top.press("tab")
            assert top.columns()[0] == "node"
            await top.press("shift+tab")
            assert top.columns()[0] == "time"

    run(test())


def test_sorting_goes_through_the_columns_and_reverses(cluster: FakeCluster) -> None:
    async def test() -> None:
        async with shown(cluster) as top:
            names = [row[0] for row in top.rows()]
            await top.press("s")
            assert top.columns()[0] == "node ▲"
            await top.press("r")
            assert top.columns()[0] == "node ▼"
            assert [row[0] for row in top.rows()] == names[::-1]
            await top.press("s", "s")
            # Numbers begin with the largest.
            assert top.columns()[2] == "memory ▼"
            assert top.rows()[0][0] == names[0]
            await top.press("tab", "shift+tab")
            assert top.columns()[2] == "memory ▼"
            await top.press(*["s"] * 8)
            assert not any("▲" in title or "▼" in title for title in top.columns())

    run(test())


def test_a_filter_applies_while_it_is_typed_and_escape_removes_it(cluster: FakeCluster) -> None:
    async def test() -> None:
        async with shown(cluster) as top:
            await top.press("slash", *"0.3:", "q")
            assert [row[0] for row in top.rows()] == ["no row has this text"]
            await top.press("backspace", "enter")
            assert [row[0] for row in top.rows()] == ["10.0.0.3:7420"]
            # Keys work again, and the filter applies to the next table.
            await top.press("6")
            assert top.rows()
            assert all("0.3:" in " ".join(row) for row in top.rows())
            await top.press("escape", "1")
            assert len(top.rows()) == 6

    run(test())


def test_a_pause_freezes_all_tables(cluster: FakeCluster) -> None:
    async def test() -> None:
        async with shown(cluster) as top:
            await top.press("p")
            assert "paused" in top.head
            before = top.head
            cluster.advance(20)
            await top.until(lambda: top.app.picture.frame["time"] == pytest.approx(cluster.now))
            assert top.head == before
            await top.press("4")
            assert [row[1] for row in top.rows()] == ["get weights/0"] * 5
            await top.press("p")
            assert "paused" not in top.head
            await top.until(lambda: "get weights/0" not in [row[1] for row in top.rows()])

    run(test())


def test_a_node_that_dies_while_it_is_shown_is_dead(cluster: FakeCluster) -> None:
    async def test() -> None:
        async with shown(cluster) as top:
            cluster.failed[3] = 1.0
            cluster.advance(5)
            await top.until(lambda: [row[1] for row in top.rows()].count("dead") == 1)
            assert "5 nodes, 1 dead" in top.head

    run(test())


def test_the_display_waits_for_a_node_that_does_not_reply(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: object) -> dict[str, Any]:
        raise ConnectError("no node serves x.sock")

    async def test() -> None:
        from hoplite.tools.top.app import Top

        client = cluster.client()
        with monkeypatch.context() as patch:
            patch.setattr(type(client), "status_async", refuse)
            app = Top(Observer(client, now=lambda: cluster.now))  # type: ignore[arg-type] # a fake
            async with app.run_test(size=SIZE) as pilot:
                top = Shown(app, pilot)
                await top.until(lambda: "does not reply: no node serves x.sock" in top.head)
                assert "no node has replied yet" in top.head
                patch.undo()
                await top.until(lambda: len(top.rows()) == 6)
                assert "does not reply" not in top.head
                patch.setattr(type(client), "status_async", refuse)
                await top.until(lambda: "does not reply" in top.head)
                # The last known state stays.
                assert len(top.rows()) == 6

    run(test())


def test_help_shows_every_key_and_any_key_closes_it(cluster: FakeCluster) -> None:
    async def test() -> None:
        from hoplite.tools.top.app import HELP, Help

        async with shown(cluster) as top:
            await top.press("question_mark")
            assert isinstance(top.app.screen, Help)
            assert top.app.screen.query_one("#help").size.height >= len(HELP.splitlines())
            # Frames continue below the help.
            cluster.advance(1)
            await top.until(lambda: top.app.picture.frame["time"] == pytest.approx(cluster.now))
            await top.press("q")
            assert not isinstance(top.app.screen, Help)
            await top.press("q")
        assert top.app.return_code == 0

    run(test())


def test_200_nodes_scroll_in_a_small_terminal_and_keep_their_place(cluster: FakeCluster) -> None:
    cluster = FakeCluster(200)
    cluster.advance(0.6)

    async def test() -> None:
        async with shown(cluster) as top:
            assert len(top.rows()) == 200
            async with asyncio.timeout(SOON):
                # Textual scrolls later, and not if the rows are replaced then: here 20 times a second.
                while top.app._table.scroll_y <= 150:
                    await top.press("ctrl+end")
                    await top.pilot.pause(0.02)
            place = top.app._table.scroll_y
            number = top.app.picture.frame["number"]
            cluster.advance(0.1)
            await top.until(lambda: top.app.picture.frame["number"] > number + 1)
            assert top.app._table.scroll_y == place
            await top.pilot.resize_terminal(40, 12)
            await top.press("2")
            assert len(top.rows()) > 60
            # Everything has its place: the table between the tabs and the keys.
            assert top.app._table.region.height >= 6

    run(test())


def test_nothing_is_shown_by_color_alone(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    cluster.failed[3] = 0.0

    async def test() -> None:
        async with shown(cluster) as top:
            await top.until(lambda: "dead" in [row[1] for row in top.rows()])
            svg = top.app.export_screenshot()
            assert "dead" in svg
            assert any(type(one).__name__ == "NoColor" for one in top.app._filters)

    run(test())


# In a pseudo-terminal, with a real node

LEAVE_SCREEN = "\x1b[?1049l"


def spawn(socket: str, **environment: str) -> Any:  # noqa: ANN401 - untyped
    words = [*COMMAND[1:], "top", "--socket", socket]
    return pexpect.spawn(
        COMMAND[0], words, dimensions=(24, 80), encoding="utf-8", timeout=SOON, env={**os.environ, **environment}
    )


def end(display: Any) -> int | None:  # noqa: ANN401 - as above
    """Waits for the end, checks that the terminal is restored, and returns the exit code."""
    display.expect(pexpect.EOF)
    rest: str = display.before
    display.close()
    assert LEAVE_SCREEN in rest
    assert "Traceback" not in rest
    code: int | None = display.exitstatus
    return code


def test_the_display_shows_a_node_and_its_end() -> None:
    with testing.node_process() as node:
        display = spawn(node.socket, NO_COLOR="1")
        display.expect("alive")
        node.process.kill()
        display.expect("the node does not reply: ")
        display.send("q")
        assert end(display) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_display_in_order(number: signal.Signals) -> None:
    with testing.node_process() as node:
        display = spawn(node.socket)
        display.expect("alive")
        if number == signal.SIGINT:
            display.sendintr()
        else:
            os.kill(display.pid, number)
        assert end(display) == 128 + number


def test_a_snapshot_of_a_real_node_is_plain_text() -> None:
    with testing.node_process() as node, node.client() as client:
        client.put(bytes(100_000), name="policy/1")
        client.get("policy/1")
        done = commands.run("top", "--once", "--socket", node.socket)
    assert "default: 1 node, 1 object in " in done.stdout
