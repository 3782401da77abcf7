"""Write adapters in other programs' formats, models with an adapter merged into them, and trained models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featherback.core.registry import Registry

if TYPE_CHECKING:
    from featherback.exports.formats.base import Format

FORMATS: Registry[Format] = Registry(
    f"{__name__}.formats",
    "FORMAT",
    "export target",
    shared=("base", "own", "pairs", "peft_configuration", "peft_parameters"),
)
"""The formats for `export`. Our own directories are no such format: only runs have them."""
