"""What is said of families beside the registry."""

from __future__ import annotations

from pathlib import Path

from featherback.families import FAMILIES

README = Path(__file__).parents[2] / "README.md"


def test_readme_lists_the_families() -> None:
    called = [family.called for _, family in sorted(FAMILIES.items())]
    assert len(set(called)) == len(called), "a family goes by the name of that which it was made from"
    assert f"Known families: {', '.join(called)};" in " ".join(README.read_text(encoding="utf-8").split())
