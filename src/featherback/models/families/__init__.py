"""Model families. Each module defines one family as `FAMILY`; to add a family, add a module."""

from __future__ import annotations

from featherback.core.registry import Registry
from featherback.errors import FeatherbackError, excerpt
from featherback.models.architecture.config import ModelConfig
from featherback.models.families.base import Family
from featherback.nn.block import Block

_MODULES: Registry[Family] = Registry(__name__, "FAMILY", "family", shared=("base",))
FAMILIES = {family.architecture: family for family in map(_MODULES.__getitem__, _MODULES.names)}
"""GGUF architecture -> family."""
ARCHITECTURES = {
    name: family for family in FAMILIES.values() for name in (family.architecture, *family.other_architectures)
}
"""Every GGUF architecture, also of files that call a family by another name -> family."""
PROJECTIONS = tuple(dict.fromkeys(name for family in FAMILIES.values() for name in family.projections))
"""The projections of all families, which adapters may target."""


def family_of(config: ModelConfig) -> Family:
    """The family of a configuration."""
    return ARCHITECTURES[config.architecture]


def blocks(config: ModelConfig) -> list[Block]:
    """Return the layers of a model with this configuration, in order."""
    return family_of(config).blocks(config)


def of_architecture(name: object, path: object) -> Family:
    """Find the family of a GGUF file. Raises FeatherbackError, with the supported ones, if it is unsupported."""
    known = {each: family for each, family in ARCHITECTURES.items() if not family.folders_only}
    return _look_up(known, name, path)


def of_model_type(name: object, path: object) -> Family:
    """Find the family of a Hugging Face folder. Raises FeatherbackError, with the supported ones, if unsupported."""
    by_type = {kind: family for family in FAMILIES.values() for kind in family.model_types}
    return _look_up(by_type, name, path)


def _look_up(families: dict[str, Family], name: object, path: object) -> Family:
    family = families.get(name) if isinstance(name, str) else None
    if family is None:
        raise FeatherbackError(
            f"{path} has the architecture {excerpt(name)}, which is not supported (supported: {', '.join(families)})."
        )
    return family
