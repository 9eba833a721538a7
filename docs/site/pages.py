"""The pages of the docs site: their navigation, and their links to other files of the repository.

It knows nothing of Sphinx. The pages are those of docs/, unchanged for readers of the repository.
"""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

DOCS = Path(__file__).parent.parent
ROOT = DOCS.parent
NAVIGATION = Path(__file__).parent / "navigation.toml"
REPOSITORY = "https://github.com/hoplite-collectives/hoplite"
# The page that the site opens with.
FIRST = "README"

FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")


def pages(docs: Path = DOCS) -> set[str]:
    """Returns all pages of a folder of docs, as paths without .md."""
    return {path.relative_to(docs).with_suffix("").as_posix() for path in docs.rglob("*.md")}


def groups(found: set[str], navigation: str) -> dict[str, list[str]]:
    """Reads the navigation.

    Args:
        found: the existing pages.
        navigation: text of the TOML file.

    Returns:
        The pages of each group by its title, in order.

    Raises:
        ValueError: a page is missing in the navigation, is there twice, or does not exist.
    """
    titles: dict[str, list[str]] = {}
    for group in tomllib.loads(navigation)["group"]:
        listed: list[str] = []
        for pattern in group["pages"]:
            listed += sorted(page for page in found if fnmatchcase(page, pattern)) if "*" in pattern else [pattern]
        titles[group["title"]] = listed
    everything = [page for listed in titles.values() for page in listed]
    for page in sorted({*found} - {*everything, FIRST}):
        raise ValueError(f"docs/{page}.md is missing in docs/site/navigation.toml: add {page!r} to a group")
    for page in sorted({*everything} - found):
        raise ValueError(f"docs/site/navigation.toml lists {page!r}, but docs/{page}.md does not exist: remove it")
    for page in sorted({page for page in everything if everything.count(page) > 1}):
        raise ValueError(f"docs/site/navigation.toml lists {page!r} twice: remove one")
    return titles


def toctrees(titles: dict[str, list[str]]) -> str:
    """Returns the navigation as MyST, for the end of the first page."""
    return "".join(
        "\n```{toctree}\n:hidden:\n:caption: " + title + "\n\n" + "\n".join(f"/{page}" for page in listed) + "\n```\n"
        for title, listed in titles.items()
    )


def with_site_links(text: str, page: str) -> str:
    """Points a page's links to folders at their README.md, and those to files that are no page at the repository."""

    def target(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        there = (DOCS / page).parent.joinpath(path).resolve()
        if there.is_dir() and there.is_relative_to(DOCS) and (there / "README.md").exists():
            return f"{path}/README.md{anchor}"
        if there.is_relative_to(DOCS) and there.suffix in {".md", ".svg", ".png"}:
            return match[0]
        kind = "tree" if there.is_dir() else "blob"
        return f"{REPOSITORY}/{kind}/main/{there.relative_to(ROOT).as_posix()}{anchor}"

    return "".join(part if part.startswith("```") else LINK.sub(target, part) for part in FENCE.split(text))
