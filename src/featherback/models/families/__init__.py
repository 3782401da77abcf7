"""Model families: each module here is one, and holds it as `FAMILY`. Adding a family is adding a file."""

from __future__ import annotations

from featherback.core.registry import Registry
from featherback.errors import FeatherbackError, shown
from featherback.models.architecture.config import ModelConfig
from featherback.models.families.base import Family
from featherback.nn.block import Block

_MODULES: Registry[Family] = Registry(__name__, "FAMILY", "family", shared=("base",))
FAMILIES = {family.architecture: family for family in map(_MODULES.__getitem__, _MODULES.names)}
"""By GGUF architecture."""
PROJECTIONS = tuple(dict.fromkeys(name for family in FAMILIES.values() for name in family.projections))
"""All that an adapter may target in a model of some family."""


def family_of(config: ModelConfig) -> Family:
    """The family of a configuration."""
    return FAMILIES[config.architecture]


def blocks(config: ModelConfig) -> list[Block]:
    """The layers of a model of this configuration, in order."""
    return family_of(config).blocks(config)


def of_architecture(name: object, path: object) -> Family:
    """The family of a GGUF file; FeatherbackError naming the known ones if there is none."""
    return _found(FAMILIES, name, path)


def of_model_type(name: object, path: object) -> Family:
    """The family of a Hugging Face folder; FeatherbackError naming the known ones if there is none."""
    by_type = {kind: family for family in FAMILIES.values() for kind in family.model_types}
    return _found(by_type, name, path)


def _found(families: dict[str, Family], name: object, path: object) -> Family:
    family = families.get(name) if isinstance(name, str) else None
    if family is None:
        raise FeatherbackError(
            f"{path} has the architecture {shown(name)}, which is not supported (supported: {', '.join(families)})."
        )
    return family
