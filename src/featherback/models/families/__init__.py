"""Model families. Each module defines one family as `FAMILY`; to add a family, add a module.

A family's module is loaded when a model needs it, because all of them together take a megabyte.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache

from featherback.core.registry import Registry
from featherback.errors import FeatherbackError, excerpt
from featherback.models.architecture.config import ModelConfig
from featherback.models.families.base import Family
from featherback.nn.block import Block

_MODULES: Registry[Family] = Registry(__name__, "FAMILY", "family", shared=("base",))


def all_families() -> dict[str, Family]:
    """Return GGUF architecture -> family, for all families."""
    return {family.architecture: family for family in map(_MODULES.__getitem__, _MODULES.names)}


def projections() -> tuple[str, ...]:
    """Return the projections of all families, which adapters may target: first those of models that write text."""
    found = sorted(all_families().values(), key=lambda family: family.is_encoder)
    return tuple(dict.fromkeys(name for family in found for name in family.projections))


@cache
def of_name(architecture: str) -> Family:
    """Return the family of a configuration's `architecture`."""
    return _look_up(architecture, _architectures, architecture)


def family_of(config: ModelConfig) -> Family:
    """The family of a configuration."""
    return of_name(config.architecture)


def blocks(config: ModelConfig) -> list[Block]:
    """Return the layers of a model with this configuration, in order."""
    return family_of(config).blocks(config)


def of_architecture(name: object, path: object) -> Family:
    """Find the family of a GGUF file. Raises FeatherbackError, with the supported ones, if it is unsupported."""
    return _look_up(name, lambda family: () if family.folders_only else _architectures(family), path)


def of_model_type(name: object, path: object) -> Family:
    """Find the family of a Hugging Face folder. Raises FeatherbackError, with the supported ones, if unsupported."""
    return _look_up(name, lambda family: family.model_types, path)


def _architectures(family: Family) -> Collection[str]:
    return family.architecture, *family.other_architectures


def _look_up(name: object, names_of: Callable[[Family], Collection[str]], path: object) -> Family:
    """Return the family that has a name. The module that is called like it is tried first."""
    alike = str(name).replace("-", "_")
    for module in sorted(_MODULES.names, key=lambda each: each not in (alike, alike.replace("_", ""))):
        if name in names_of(_MODULES[module]):
            return _MODULES[module]
    supported = ", ".join(each for family in all_families().values() for each in names_of(family))
    raise FeatherbackError(
        f"{path} has the architecture {excerpt(name)}, which is not supported (supported: {supported})."
    )
