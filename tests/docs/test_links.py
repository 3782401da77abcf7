"""Links between the pages lead somewhere, on a forge as on the site, and every page is in the site's navigation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, name_of

DOCS = ROOT / "docs"
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """The places of this repository that a page links to."""
    found = _LINK.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links to them."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    wrong = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links(page: Path) -> None:
    assert not broken(page)


def test_broken_links_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# What `it` is, now\n")
    page = tmp_path / "a.md"
    page.write_text("[a](b.md) [b](b.md#what-it-is-now) [c](c.md) [d](b.md#what) [e](#here) [f](https://x.y)\n")
    assert broken(page) == ["c.md", "b.md#what", "#here"]


def test_every_page_is_in_the_navigation() -> None:
    indexes = (DOCS / "index.md", *DOCS.glob("*/README.md"))
    listed = {(index.parent / link).resolve() for index in indexes for link in links(index)}
    assert {page for page in PAGES if page.is_relative_to(DOCS)} - listed == {DOCS / "index.md"}
