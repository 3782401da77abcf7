"""What stands of families beside the registry: their names in README.md, their entries in the table of cases."""

from __future__ import annotations

from pathlib import Path

from featherback.models.families import FAMILIES
from tests.support import families

README = Path(__file__).parents[2] / "README.md"


def test_readme_lists_the_families() -> None:
    called = [family.called for _, family in sorted(FAMILIES.items())]
    assert len(set(called)) == len(called), "a family goes by the name of that which it was made from"
    assert f"Known families: {', '.join(called)};" in " ".join(README.read_text(encoding="utf-8").split())


def test_every_family_has_an_entry_in_the_table_of_cases() -> None:
    assert families.FAMILIES.keys() == FAMILIES.keys()
    for architecture, family in families.FAMILIES.items():
        assert family.model.architecture == architecture
        models = [config for config, _ in [*family.more.values(), *family.variants().values()]]
        assert {config.architecture for config in models} <= {architecture}
        assert family.hf, f"{architecture}: no configuration of transformers is converted"
