"""The docs site that `make docs-site` built: its links resolve, its navigation is complete, its search finds words."""

from __future__ import annotations

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parent.parent
SITE = ROOT / "target" / "site"

pytestmark = pytest.mark.site


class Page(HTMLParser):
    """What a page of HTML contains.

    Attributes:
        links: the targets of its links.
        loads: what a browser loads to show it.
        ids: its anchors.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids.add(values.get("id") or "")
        if tag == "a" and (target := values.get("href")):
            self.links.append(target)
        if tag in {"img", "script", "iframe"} and (target := values.get("src")):
            self.loads.append(target)
        if tag == "link" and values.get("rel") in {"stylesheet", "icon", "preload"}:
            self.loads.append(values.get("href") or "")


@cache
def read(path: Path) -> Page:
    return Page(path.read_text())


def built() -> list[Path]:
    found = sorted(SITE.rglob("*.html"))
    assert found, "run make docs-site"
    return found


def test_links_and_anchors_resolve() -> None:
    wrong = []
    for path in built():
        for target in {*read(path).links, *read(path).loads}:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not there.is_file() or (
                parts.fragment and there.suffix == ".html" and unquote(parts.fragment) not in read(there).ids
            ):
                wrong.append(f"{path.relative_to(SITE)} links to {target}")
    assert wrong == []


def test_links_to_the_repository_name_existing_files() -> None:
    wrong = []
    start = re.compile(r"https://github\.com/hoplite-collectives/hoplite/(?:blob|tree)/main/([^#?]*)")
    targets = [(path, link, found) for path in built() for link in read(path).links if (found := start.match(link))]
    assert targets
    wrong = [f"{path.relative_to(SITE)}: {link}" for path, link, found in targets if not (ROOT / found[1]).exists()]
    assert wrong == []


def test_the_first_page_has_every_page_in_its_navigation() -> None:
    first = SITE / "index.html"
    linked = {(SITE / link.partition("#")[0]).resolve() for link in read(first).links if "://" not in link}
    pages = {SITE / path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(page for page in pages if not page.exists()) == []
    assert sorted(pages - linked - {SITE / "README.html"}) == []


def test_pages_load_nothing_from_the_network() -> None:
    foreign = [f"{path.name}: {load}" for path in built() for load in read(path).loads if urlsplit(load).netloc]
    assert foreign == []
    styles = [path.read_text() for path in SITE.rglob("*.css")]
    assert styles
    assert not any(re.search(r"(?:@import|url\()\s*['\"]?https?:", style) for style in styles)


@pytest.mark.parametrize(
    ("stem", "page"),
    [("wheel", "quickstart"), ("sbatch", "deploy/slurm"), ("credit", "decisions/002-transfers-one-per-connection")],
)
def test_the_search_index_finds(stem: str, page: str) -> None:
    index = json.loads((SITE / "searchindex.js").read_text().removeprefix("Search.setIndex(").rstrip(")"))
    found = index["terms"].get(stem, [])
    numbers = found if isinstance(found, list) else [found]
    assert page in [index["docnames"][number] for number in numbers]
