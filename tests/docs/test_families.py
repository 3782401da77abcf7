"""docs/families: a page for each family, with the tables that code and tests give, and paragraphs that were written."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import family_pages
from tools.family_pages import INDEX, PAGES, TEMPLATES, UNWRITTEN, listing, page_of, tables, title, with_tables

from featherback.models.families import all_families

FAMILIES = all_families()

TEMPLATE_CASES = Path(__file__).parents[1] / "data" / "families"


@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_tables_are_current(architecture: str) -> None:
    page = page_of(architecture)
    assert page.exists(), "run `make families` and write its paragraphs"
    text = page.read_text(encoding="utf-8")
    assert text == with_tables(page, list(tables(architecture))), "run `make families`"
    assert text.startswith(title(architecture) + "\n")
    assert "## Not verified\n" in text
    assert UNWRITTEN not in text, "write the page's paragraphs"


def test_the_index_lists_every_family() -> None:
    assert INDEX.read_text(encoding="utf-8") == with_tables(INDEX, list(listing())), "run `make families`"
    assert {page.stem for page in PAGES.glob("*.md")} == {*FAMILIES, INDEX.stem}


def test_every_tested_chat_template_is_on_a_page() -> None:
    assert TEMPLATES.keys() == FAMILIES.keys()
    listed = {name for names in TEMPLATES.values() for name in names}
    assert listed == {path.stem for path in TEMPLATE_CASES.glob("*.txt")}


def test_a_stale_page_and_a_new_family_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family_pages, "PAGES", tmp_path)
    page = page_of("llama")
    assert UNWRITTEN in with_tables(page, ["| new |"])
    page.write_text(with_tables(page, ["| old |"]).replace(UNWRITTEN, "Written by hand."))
    fresh = with_tables(page, ["| new |"])
    assert "| new |" in fresh
    assert "| old |" not in fresh
    assert fresh.count("Written by hand.") == 2
