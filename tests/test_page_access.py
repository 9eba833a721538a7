"""The live page for everybody: axe-core finds no serious fault in any view, and the keyboard reaches everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from page_browser import VIEWS, browsing, npm_modules, opened, select, until
from page_fake import Fake, serving

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
    """A cluster of eight nodes, one of them dead."""
    with serving(Fake(8, 500)) as fake:
        fake.interval = 0.05
        fake.dead = {5}
        yield fake


def faults(page: Page) -> list[str]:
    """Returns what axe-core finds, with the elements."""
    result: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{fault['id']}: {fault['help']}: {[node['html'][:200] for node in fault['nodes'][:3]]}"
        for fault in result["violations"]
        if fault["impact"] in {"serious", "critical"}
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, fake: Fake, scheme: str) -> None:
    axe = (npm_modules() / "axe-core" / "axe.min.js").read_text()
    # The form without the key has status 401.
    with opened(browser, fake.url, expected="401", color_scheme=scheme) as page:
        page.evaluate(axe)
        for view in VIEWS:
            select(page, view)
            if view == "objects":
                page.click("#view-objects tbody tr:first-child")
                page.wait_for_selector(".story")
            if view == "transfers":
                page.hover("#view-transfers .stack > .card:first-child .node:nth-child(3)")
            assert (view, faults(page)) == (view, [])
        fake.key = "secret"
        page.goto(fake.url)
        page.evaluate(axe)
        assert faults(page) == []


def focused(page: Page) -> str:
    """Returns a name of the element with the focus."""
    name: str = page.evaluate(
        "(e => e.id || e.getAttribute('aria-label') || e.innerText || e.outerHTML)(document.activeElement)"
    )
    return name


def test_the_keyboard_reaches_every_view(browser: Browser, fake: Fake) -> None:
    with opened(browser, fake.url) as page:
        until(page, "hopliteSizes().frames")
        page.keyboard.press("Tab")
        assert focused(page) == "Skip to content"
        page.keyboard.press("Tab")
        assert focused(page) == "theme"
        page.keyboard.press("Tab")
        seen = []
        for _ in VIEWS:
            seen.append(focused(page))
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            page.keyboard.press("ArrowRight")
        assert seen == [f"tab-{view}" for view in VIEWS]
        # Around to the first.
        assert focused(page) == "tab-cluster"
        assert page.is_visible("#view-cluster")
        assert not page.is_visible("#view-timeline")


def test_nodes_are_one_tab_stop_with_arrows(browser: Browser, fake: Fake) -> None:
    with opened(browser, fake.url) as page:
        until(page, "document.querySelector('.tile')")
        page.focus("#tab-cluster")
        # The panel's first stop.
        page.keyboard.press("Tab")
        assert fake.name(0) in focused(page)
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        until(page, f"document.querySelector('#view-cluster h3').textContent === '{fake.name(1)}'")
        assert fake.name(1) in page.inner_text(".tile[aria-selected=true]")
        until(page, f"document.body.innerText.includes('Bandwidth of {fake.name(1)}')")
        # Frames that arrive do not move the focus.
        frames = page.evaluate("hopliteSizes().frames")
        until(page, f"hopliteSizes().frames > {frames + 3}")
        assert fake.name(1) in focused(page)


def test_arrows_walk_a_tree_of_transfers(browser: Browser, fake: Fake) -> None:
    with opened(browser, fake.url + "#transfers") as page:
        select(page, "transfers")
        # The description of the node with the focus.
        described = "document.getElementById(document.activeElement.getAttribute('aria-describedby'))?.textContent"
        page.focus("#tab-transfers")
        page.keyboard.press("Tab")
        assert page.evaluate(described) == f"{fake.name(0)}: source of the broadcast"
        page.keyboard.press("ArrowRight")
        assert page.evaluate(described).startswith(f"{fake.name(1)} receives from {fake.name(0)}")
        page.keyboard.press("ArrowRight")
        assert page.evaluate(described).startswith(f"{fake.name(3)} receives from {fake.name(1)}")
        page.keyboard.press("ArrowLeft")
        assert page.evaluate(described).startswith(f"{fake.name(1)} receives from")


def test_an_object_opens_by_enter(browser: Browser, fake: Fake) -> None:
    with opened(browser, fake.url + "#objects") as page:
        page.wait_for_selector("#view-objects tbody tr")
        assert page.locator("#view-objects tbody [tabindex='0']").count() == 1
        page.focus("#view-objects tbody tr:first-child")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_selector(".story")
        assert page.inner_text("#view-objects section:last-child h2") == "experience/0000001"


def test_the_theme_is_selected_and_kept(browser: Browser, fake: Fake) -> None:
    theme = "document.documentElement.dataset.theme"
    with opened(browser, fake.url, color_scheme="dark") as page:
        assert page.evaluate(theme) == "dark"
        page.click("#theme")
        assert (page.evaluate(theme), page.inner_text("#theme")) == ("light", "Theme: light")
        page.reload()
        assert page.evaluate(theme) == "light"
