"""The committed bundle of the live page: it is that of the committed sources, small, and needs no other origin."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "packages" / "page"
BUNDLE = ROOT / "python" / "hoplite" / "tools" / "http" / "page"

# The whole page, uncompressed. A chart library of another size would not fit.
BYTES_MAX = 150_000


def digest() -> str:
    """Returns the hash of all sources, as packages/page/build.mjs computes it."""
    names = ["build.mjs", "package-lock.json"]
    names += [str(path.relative_to(SOURCES)) for path in (SOURCES / "src").rglob("*") if path.is_file()]
    state = hashlib.sha256()
    for name in sorted(names):
        state.update(f"{name}\n".encode() + (SOURCES / name).read_bytes())
    return state.hexdigest()[:32]


@pytest.mark.parametrize("name", ["index.html", "login.html", "page.css", "page.js"])
def test_the_bundle_was_built_from_the_sources(name: str) -> None:
    assert f"sources {digest()}" in (BUNDLE / name).read_text()[:300], "run make page"


def test_the_page_is_small() -> None:
    assert sum(path.stat().st_size for path in BUNDLE.iterdir()) < BYTES_MAX


@pytest.mark.parametrize("name", ["index.html", "login.html"])
def test_html_has_no_inline_script_or_style_and_no_other_origin(name: str) -> None:
    text = (BUNDLE / name).read_text()
    assert not re.search(r"<style|\bstyle=|\bon[a-z]+=|<script(?![^>]*src=\"/)", text)
    assert re.findall(r'(?:href|src|action)="(?!/[a-z]|#)', text) == []


def test_script_and_style_load_nothing_from_elsewhere() -> None:
    # Namespaces of XML are names, not addresses.
    script = re.sub(r"http://www\.w3\.org/\d+/(svg|xhtml|xlink)", "", (BUNDLE / "page.js").read_text())
    script = re.sub(r"/\*.*?\*/", "", script, count=1, flags=re.DOTALL)
    assert not re.search(r"https?://", script)
    assert not re.search(r"url\(|@import", (BUNDLE / "page.css").read_text())
    assert not re.search(r"\beval\(|new Function\(", script)


def test_the_bundle_carries_the_licenses_of_its_libraries() -> None:
    script = (BUNDLE / "page.js").read_text()
    assert "Mike Bostock" in script
    assert "Leon Sorokin" in script
