"""README.md lists every family, and the table of test cases has an entry for each that GGUF files have."""

from __future__ import annotations

from pathlib import Path

from featherback.models.families import all_families
from tests.support import families

FAMILIES = all_families()

README = Path(__file__).parents[2] / "README.md"


def test_readme_lists_the_families() -> None:
    called = [family.called for _, family in sorted(FAMILIES.items())]
    assert len(set(called)) == len(called), "two families have the same name: was one copied from the other?"
    assert f"**Models** | {', '.join(called)} (" in " ".join(README.read_text(encoding="utf-8").split())


def test_every_family_has_an_entry_in_the_table_of_cases() -> None:
    """Encoders have tests of their own: `methods/test_encoders.py`."""
    of_text = {name for name, family in FAMILIES.items() if not (family.folders_only or family.is_encoder)}
    assert families.FAMILIES.keys() == of_text
    for architecture, family in families.FAMILIES.items():
        assert family.model.architecture == architecture
        models = [config for config, _ in [*family.more.values(), *family.variants().values()]]
        assert family.other_architectures == FAMILIES[architecture].other_architectures
        names = {architecture, *family.other_architectures}
        assert {config.architecture for config in models} <= names
        assert family.hf, f"{architecture}: no configuration of transformers is converted"
