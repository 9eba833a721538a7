"""Takes the pictures of docs/page.md: each view of the live page, in light and dark.

`make docs-pictures` runs it. The page shows the imaginary cluster of tests/page_fake.py, always at the same frame.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from page_browser import VIEWS, browsing, opened, until
from page_fake import Fake, node_id, serving

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER = Path(__file__).parent
START = 1_800_000_000.0
FRAMES = 55
BYTES_MAX = 200_000


def take(page: Page, view: str, name: str, scheme: str) -> None:
    """Takes one picture."""
    until(page, f"hopliteSizes().frames >= {FRAMES}")
    if view == "objects":
        page.click("#view-objects tbody tr:nth-child(3)")
        page.wait_for_selector(".story")
        page.mouse.move(0, 0)
    if view == "transfers":
        page.hover(f"#view-transfers .stack > .card:first-child .node[data-id='{node_id(3)}']")
    if view == "timeline":
        page.focus("canvas")
        page.keyboard.press("ArrowDown")
    # The canvas and the chart are drawn in the next frame of the screen.
    page.wait_for_timeout(200)
    file = FOLDER / f"page-{name}-{scheme}.png"
    page.screenshot(path=file)
    size = file.stat().st_size
    sys.stdout.write(f"{file.name}: {size // 1000} kB\n")
    if size > BYTES_MAX:
        sys.exit(f"{file.name} has more than {BYTES_MAX} bytes")


def main() -> None:
    """Takes all pictures."""
    with browsing() as browser:
        for view, name, nodes in [*((view, view, 8) for view in VIEWS), ("cluster", "racks", 200)]:
            for scheme in ("light", "dark"):
                fake = Fake(nodes, 3000)
                fake.start, fake.frames, fake.interval = START, FRAMES, 0.02
                fake.dead = {5} if nodes == 8 else {13, 50}
                look = {"color_scheme": scheme, "reduced_motion": "reduce", "timezone_id": "UTC"}
                with serving(fake), opened(browser, f"{fake.url}#{view}", **look) as page:
                    page.set_viewport_size({"width": 1280, "height": 760})
                    take(page, view, name, scheme)


if __name__ == "__main__":
    main()
