"""The live page of a real cluster under load: the tree that the events report, and a killed node that turns dead."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import hoplite
from hoplite import testing
from page_browser import browsing, missing, opened, until
from support import SOON, bounded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from hoplite.testing import NodeProcess

pytestmark = [pytest.mark.operations, pytest.mark.timeout(180), pytest.mark.skipif(bool(missing()), reason=missing())]

MIB = 1 << 20


class Shown(NamedTuple):
    """A cluster of an embedded node, which serves the page, and of three processes."""

    first: hoplite.Node
    others: list[NodeProcess]


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    """The cluster of a test."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(
            hoplite.Node(listen="127.0.0.1:0", socket=tmp_path / "first.sock", capacity="256MiB", http=0, no_auth=True)
        )
        flags = ("--join", str(first.address), "--no-auth", "--capacity", "256MiB")
        others = [stack.enter_context(testing.node_process(*flags)) for _ in range(3)]
        testing.wait_for_members([first], 4)
        yield Shown(first, others)


class Load:
    """Puts versions of `load` on one node and gets them on others, until the block ends."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._put)]
        self._threads += [threading.Thread(target=self._get, args=(node,)) for node in shown.others]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _put(self) -> None:
        with self._shown.first.client() as client:
            for version in range(10_000):
                if self._over.wait(0.1):
                    return
                client.put(bytes(8 * MIB), name=f"load/{version}", retain=2)

    def _get(self, node: NodeProcess) -> None:
        # One of these nodes is killed.
        with contextlib.suppress(hoplite.HopliteError), node.client() as client:
            version = -1
            while not self._over.is_set():
                with contextlib.suppress(hoplite.Timeout, hoplite.ObjectDeleted):
                    newest = client.latest("load/", after=version, timeout=0.5)
                    version = newest.number
                    client.get(newest, timeout=5)


# Collects the edges of each drawing; a fast broadcast is shown for three seconds.
COLLECT = """() => { window.seen = {}; setInterval(() => {
    for (const card of document.querySelectorAll('#view-transfers .stack > .card')) {
        const edges = window.seen[card.querySelector('h2').textContent] ??= new Set();
        for (const e of card.querySelectorAll('.edge')) edges.add(`${e.dataset.from} ${e.dataset.to}`);
    } }, 100); }"""


@pytest.fixture
def page(shown: Shown) -> Iterator[Page]:
    """The view of transfers, which collects edges."""
    with browsing() as browser, opened(browser, f"{shown.first.http}#transfers") as page:
        until(page, "hopliteSizes().nodes === 4")
        page.evaluate(COLLECT)
        yield page


def draws(page: Page, title: str, edges: set[str]) -> None:
    """Waits until the edges that a drawing has shown are these."""
    seen = f"JSON.stringify([...(window.seen[{json.dumps(title)}] ?? [])].sort())"
    until(page, f"{seen} === {json.dumps(json.dumps(sorted(edges), separators=(',', ':')))}")


def events(client: hoplite.Client, kind: str) -> list[Any]:
    """Returns the events of one kind on a client's node."""
    return [event for event in client.inspect("activity")["events"] if event["kind"] == kind]


def test_it_draws_the_broadcast_that_the_events_report(shown: Shown, page: Page) -> None:
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(shown.first.client())
        readers = [stack.enter_context(node.client()) for node in shown.others]
        ref = client.put(bytes(64 * MIB), name="policy/1")
        threads = [threading.Thread(target=reader.get, args=(ref,), kwargs={"timeout": SOON}) for reader in readers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        reported = {
            f"{event['source']} {node.id}"
            for node, reader in zip(shown.others, readers, strict=True)
            for event in events(reader, "fetch")
        }
    assert len(reported) >= 3
    draws(page, "Broadcast of policy/1", reported)


def test_it_draws_the_reduce_that_the_events_report(shown: Shown, page: Page) -> None:
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(shown.first.client())
        others = [stack.enter_context(node.client()) for node in shown.others]
        inputs = [other.put(np.ones(4 * MIB, np.float32)) for other in others]
        client.get(client.reduce(inputs, name="sums/1"), timeout=SOON)
        ids = [shown.first.id, *(node.id for node in shown.others)]
        reported = {
            f"{child} {node}"
            for node, one in zip(ids, [client, *others], strict=True)
            for event in events(one, "fold")
            for child in event["children"]
            if child != node
        }
    assert len(reported) == 3
    draws(page, "Reduce of sums/1", reported)


@pytest.mark.faults("a node is killed while it is shown")
@bounded(4.0)
def test_a_killed_node_turns_dead(shown: Shown, within: float) -> None:
    victim = shown.others[1]
    tile = f"document.querySelector('.tile[data-key=\"{victim.id}\"]')"
    with Load(shown), browsing() as browser, opened(browser, str(shown.first.http)) as page:
        until(page, f"{tile}?.classList.contains('alive')")
        until(page, "hopliteSizes().spans > 3")
        start = time.monotonic()
        victim.process.kill()
        until(page, f"{tile}?.classList.contains('dead')")
        assert time.monotonic() - start < within
        assert "1 dead" in page.inner_text("#totals")
