"""What the live page shows of the frames that it receives, in a real browser, against a server without a cluster."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from page_browser import browsing, opened, select, until
from page_fake import Fake, node_id, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.operations, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of this module."""
    with browsing() as browser:
        yield browser


@pytest.fixture
def fake() -> Iterator[Fake]:
    """A cluster of eight nodes with many objects, whose frames come fast."""
    with serving(Fake(8, 100_000)) as fake:
        fake.interval = 0.05
        yield fake


def texts(page: Page, selector: str) -> list[str]:
    """Returns the visible texts of elements."""
    found: list[str] = page.eval_on_selector_all(selector, "all => all.map(one => one.innerText.trim())")
    return found


def edges(page: Page, card: int) -> set[tuple[str, str]]:
    """Returns the edges that a drawing shows."""
    selector = f"#view-transfers .stack > .card:nth-child({card}) .edge"
    found: list[list[str]] = page.eval_on_selector_all(selector, "all => all.map(e => [e.dataset.from, e.dataset.to])")
    return {(one, other) for one, other in found}


def test_it_draws_the_trees_of_the_frames(browser: Browser, fake: Fake) -> None:
    with opened(browser, fake.url + "#transfers") as page:
        until(page, "document.querySelectorAll('#view-transfers svg').length === 3")
        for card, tree in enumerate(fake.frame(1)["trees"], 1):
            assert edges(page, card) == {(edge["from"], edge["to"]) for edge in tree["edges"]}
        titles = texts(page, "#view-transfers .stack > .card h2")
        assert titles == ["Broadcast of policy/17", "Reduce of @9fa1.3c", "Ring reduce of @9fa1.44"]
        # A receiver is one column to the right of its source.
        places = "all => Object.fromEntries(all.map(e => [e.dataset.id, e.getBoundingClientRect().x]))"
        columns: dict[str, float] = page.eval_on_selector_all(
            "#view-transfers .stack > .card:first-child .node", places
        )
        assert all(columns[one] < columns[other] for one, other in edges(page, 1))


def test_pointing_at_a_node_shows_its_source_and_why(browser: Browser, fake: Fake) -> None:
    with opened(browser, fake.url + "#transfers") as page:
        select(page, "transfers")
        page.hover(f"#view-transfers .stack > .card:first-child .node[data-id='{node_id(3)}']")
        detail = page.inner_text("#view-transfers .stack > .card:first-child .detail")
        assert detail.startswith(f"{fake.name(3)} receives from {fake.name(1)}")
        assert detail.endswith("Why: idle relay at depth 1")
        page.hover(f"#view-transfers .stack > .card:first-child .node[data-id='{node_id(7)}']")
        detail = page.inner_text("#view-transfers .stack > .card:first-child .detail")
        assert detail.endswith("Why: the node predicted to be the fastest")


def test_a_dead_node_turns_dead_everywhere(browser: Browser, fake: Fake) -> None:
    with opened(browser, fake.url) as page:
        tile = f"document.querySelector('.tile[data-key=\"{node_id(5)}\"]')"
        until(page, f"{tile}?.classList.contains('alive')")
        fake.dead.add(5)
        until(page, f"{tile}.classList.contains('dead')")
        assert "dead" in page.inner_text(f".tile[data-key='{node_id(5)}']")
        assert "1 dead" in page.inner_text("#totals")
        select(page, "transfers")
        assert page.locator(f".node.dead[data-id='{node_id(5)}']").count() == 3


def test_bytes_flow_only_where_motion_is_welcome(browser: Browser, fake: Fake) -> None:
    name = "getComputedStyle(document.querySelector('.edge.moving .flow')).animationName"
    for motion, animation in (("no-preference", "flow"), ("reduce", "none")):
        with opened(browser, fake.url + "#transfers", reduced_motion=motion) as page:
            until(page, "document.querySelector('.edge.moving .flow')")
            assert page.evaluate(name) == animation


def test_a_silent_node_is_reported_and_a_restarted_one_reconnects(browser: Browser) -> None:
    fake = Fake(8, 100)
    fake.interval = 0.05
    with opened(browser, "about:blank", expected="Failed to load resource") as page:
        with serving(fake):
            page.goto(fake.url)
            until(page, "document.getElementById('link-text').textContent === 'Live'")
            fake.paused = True
            until(page, "/^No data since \\d+ s$/.test(document.getElementById('link-text').textContent)")
            assert page.evaluate("document.getElementById('announce').textContent") == "No data"
            fake.paused = False
            until(page, "document.getElementById('link-text').textContent === 'Live'")
        until(page, "document.getElementById('link-text').textContent.startsWith('Disconnected, no data since')")
        before = page.evaluate("hopliteSizes()")
        with serving(fake):
            until(page, "document.getElementById('link-text').textContent === 'Live'")
            assert page.evaluate("hopliteSizes().frames") > before["frames"]


def test_without_the_key_there_is_only_a_form(browser: Browser, fake: Fake) -> None:
    fake.key = "secret"
    with opened(browser, fake.url, expected="401") as page:
        assert page.locator("#tabs").count() == 0
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#key")
        page.fill("#key", "secret")
        page.click("button")
        page.wait_for_selector("#tabs")
        until(page, "document.getElementById('link-text').textContent === 'Live'")
        # A session that ends while the page is open leads back to the form.
        fake.key = "changed"
        fake.generation += 1
        page.wait_for_selector("#key")


def test_memory_is_bounded(browser: Browser, fake: Fake) -> None:
    fake.interval = 0
    with opened(browser, fake.url + "#events") as page:
        until(page, "hopliteSizes().frames > 700")
        first: dict[str, int] = page.evaluate("hopliteSizes()")
        until(page, "hopliteSizes().frames > 3000")
        last: dict[str, int] = page.evaluate("hopliteSizes()")
        for view in ("timeline", "transfers", "cluster"):
            select(page, view)
        again: dict[str, int] = page.evaluate("hopliteSizes()")
    assert last["events"] == 1000
    assert last["history"] == 600
    assert last["spans"] <= 6000
    assert (last["nodes"], last["charted"]) == (8, 8)
    # The log has a fixed number of rows, and other views have elements for what exists now.
    assert last["elements"] < first["elements"] + 50
    assert again["elements"] < last["elements"] + 1000


def test_objects_come_in_pages(browser: Browser, fake: Fake) -> None:
    with opened(browser, fake.url + "#objects") as page:
        status = "document.querySelector('#view-objects .controls p').textContent"
        until(page, f"{status} === '1 to 100 of 100,000'")
        page.click("text=Next page")
        until(page, f"{status} === '101 to 200 of 100,000'")
        assert texts(page, "#view-objects tbody th")[0] == "experience/0000100"
        page.click("text=Previous page")
        until(page, f"{status} === '1 to 100 of 100,000'")
        page.click("button[data-sort=bytes]")
        until(page, "document.querySelector('[aria-sort=descending]')?.innerText.startsWith('Size')")
        largest = fake.page_of_objects("", "bytes", 1, None)["rows"][0]["ref"]
        assert texts(page, "#view-objects tbody th")[0] == largest
        page.fill("#prefix", "experience/00012")
        until(page, f"{status} === '1 to 100 of 100'")
        assert page.locator("#view-objects tbody tr").count() == 100
        page.click("#view-objects tbody tr:first-child")
        page.wait_for_selector(".story li")
        assert texts(page, ".places li")[2] == f"◐ {fake.name(2)} (partial)"
        assert "fetched" in texts(page, ".story li")[1]
    # However many objects there are, each page costs one request.
    assert sum(path.startswith("/api/objects") for path in fake.requests) == 5


def test_the_event_log_filters_and_loads_older_events(browser: Browser, fake: Fake) -> None:
    with opened(browser, fake.url + "#events") as page:
        until(page, "document.querySelector('#event-kind').options.length === 5")
        page.select_option("#event-kind", "evicted")
        page.click("text=Pause")
        assert set(texts(page, "#view-events tbody td:nth-child(3)")) == {"evicted"}
        count = "Number(document.querySelector('#view-events .controls p').textContent.split(' ')[0])"
        before = page.evaluate(count)
        page.click("text=Load older")
        until(page, f"{count} > {before}")
        page.fill("#event-text", "nothing like this")
        until(page, "document.querySelectorAll('#view-events tbody tr').length === 0")


def test_the_timeline_draws_spans_and_describes_them(browser: Browser, fake: Fake) -> None:
    with opened(browser, fake.url + "#timeline") as page:
        until(page, "hopliteSizes().spans > 60")
        colors = """() => { const c = document.querySelector('canvas');
            const data = c.getContext('2d').getImageData(160, 0, c.width - 160, c.height).data;
            return new Set(new Uint32Array(data.buffer)).size; }"""
        assert page.evaluate(colors) > 20
        page.focus("canvas")
        page.keyboard.press("ArrowDown")
        detail = r"10\.0\.0\.\d:7420, \d\d:\d\d:\d\d, .+: (32 MiB|get of process|receives from)"
        assert re.match(detail, page.inner_text("#view-timeline .detail"))
        # Four waits and a transfer that have not ended.
        until(page, "hopliteSizes().open === 5")


def test_two_hundred_nodes_are_grouped_by_rack(browser: Browser) -> None:
    with serving(Fake(200, 100)) as fake, opened(browser, fake.url) as page:
        until(page, "document.querySelectorAll('.tile').length === 200")
        assert page.locator(".rack").count() == 25
        assert texts(page, ".rack:first-child .heading")[0].startswith("rack-1")
        assert page.locator(".map [tabindex='0']").count() == 1
        select(page, "transfers")
        assert page.locator("#view-transfers .stack > .card:first-child .edge").count() == 39
        assert "160 more transfers not drawn" in page.inner_text("#view-transfers .stack > .card:first-child")


def test_waits_and_lags_are_tables(browser: Browser, fake: Fake) -> None:
    with opened(browser, fake.url + "#waits") as page:
        select(page, "waits")
        rows: list[Any] = texts(page, "#view-waits section:nth-child(2) tbody tr")
        assert len(rows) == 5
        assert "5 versions" in rows[-1]
        assert "nobody has put this object" in " ".join(texts(page, "#view-waits section:first-child td"))
