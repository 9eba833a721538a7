"""The navigation of the docs site has every page once, and its links lead to pages or to the repository."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    specification = importlib.util.spec_from_file_location("site_pages", DOCS / "site" / "pages.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation(pages: ModuleType) -> None:
    titles = pages.groups(pages.pages(), pages.NAVIGATION.read_text())
    assert {page for listed in titles.values() for page in listed} == pages.pages() - {"README"}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"a", "b", "c/1", "new"}, r"docs/new\.md is missing in docs/site/navigation\.toml: add 'new' to a group"),
        ({"a", "c/1"}, r"lists 'b', but docs/b\.md does not exist"),
        ({"a", "b", "c/1"}, None),
    ],
)
def test_wrong_navigation_is_rejected(pages: ModuleType, found: set[str], expected: str | None) -> None:
    navigation = '[[group]]\ntitle = "T"\npages = ["a", "b"]\n[[group]]\ntitle = "U"\npages = ["c/*"]\n'
    if expected is None:
        assert pages.groups(found, navigation) == {"T": ["a", "b"], "U": ["c/1"]}
        return
    with pytest.raises(ValueError, match=expected):
        pages.groups(found, navigation)
    with pytest.raises(ValueError, match="lists 'a' twice"):
        pages.groups({"a"}, '[[group]]\ntitle = "T"\npages = ["a", "a"]')


def test_links_that_leave_the_docs_lead_to_the_repository(pages: ModuleType) -> None:
    text = "[a](../ARCHITECTURE.md#overview) [b](values.md) [c](decisions) [d](../examples/ray_apps) [e](#here)\n"
    shown = pages.with_site_links(text + "```text\n[f](../LICENSE)\n```\n", "concepts")
    assert shown == (
        "[a](https://github.com/hoplite-collectives/hoplite/blob/main/ARCHITECTURE.md#overview) [b](values.md) "
        "[c](decisions/README.md) [d](https://github.com/hoplite-collectives/hoplite/tree/main/examples/ray_apps) "
        "[e](#here)\n```text\n[f](../LICENSE)\n```\n"
    )
