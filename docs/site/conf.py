"""Configures Sphinx for the docs site: `sphinx-build -c docs/site docs target/site`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

import pages
from sphinx.errors import ConfigError

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Hoplite"
root_doc = pages.FIRST
extensions = ["myst_parser"]
exclude_patterns = ["site"]
myst_heading_anchors = 6
# Pages show output of commands and templates, which are no valid programs.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = "Hoplite"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"source_repository": pages.REPOSITORY, "source_branch": "main", "source_directory": "docs/"}


def adapt(_: Sphinx, page: str, source: list[str]) -> None:
    """Changes the links of a page, and adds the navigation to the first one."""
    source[0] = pages.with_site_links(source[0], page)
    if page == pages.FIRST:
        try:
            source[0] += pages.toctrees(pages.groups(pages.pages(), pages.NAVIGATION.read_text()))
        except ValueError as error:
            raise ConfigError(str(error)) from None


def name_first_page(app: Sphinx, error: Exception | None) -> None:
    """Copies the first page to index.html, which servers and people open."""
    if error is None:
        folder = Path(app.outdir)
        shutil.copyfile(folder / f"{pages.FIRST}.html", folder / "index.html")


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers this file with Sphinx."""
    app.connect("source-read", adapt)
    app.connect("build-finished", name_first_page)
    return {"parallel_read_safe": True}
