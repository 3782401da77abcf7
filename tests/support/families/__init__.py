"""The table of cases: one module for each model family, found by looking here. A family more is a module more.

An entry has the family's tiny model, its awkward variants, its twin in transformers, and what each peer asks of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.experts import ExpertsConfig
from tests.support.families.base import Cases, Family

_SHARED = {"base", "converter", "experts", "twin"}

_ENTRIES: list[Family] = [
    import_module(f"{__name__}.{module.name}").FAMILY for module in iter_modules(__path__) if module.name not in _SHARED
]
FAMILIES: dict[str, Family] = {entry.model.architecture: entry for entry in _ENTRIES}

MODELS: dict[str, ModelConfig] = {
    name: config
    for architecture, family in FAMILIES.items()
    for name, config in {architecture: family.model, **{more: case[0] for more, case in family.more.items()}}.items()
    if not isinstance(config, ExpertsConfig)
}
"""The models that every test of all families meets: the tiny one of each, and a few more.

Those with experts, whose memory depends on the routing and whose units are no targets, have tests of their own in
`methods/test_experts.py`.
"""


BY_ARCHITECTURE = {
    name: family for architecture, family in FAMILIES.items() for name in (architecture, *family.other_architectures)
}
"""Every architecture that a GGUF file may name: its family's entry."""


@cache
def cases() -> Cases:
    """MODELS and every variant, with the types in which exact gradients are tested."""
    found: dict[str, Any] = {}
    for architecture, family in FAMILIES.items():
        found |= {architecture: (family.model, family.types), **family.more, **family.variants()}
    return found


def dense() -> tuple[str, ...]:
    """The cases whose weights can be trained themselves: those without experts."""
    return tuple(name for name, (config, _) in cases().items() if not isinstance(config, ExpertsConfig))


def smooth() -> tuple[str, ...]:
    """The cases whose loss is a smooth function: none in which a token could change from one expert to another."""
    routed = (name for name, (c, _) in cases().items() if isinstance(c, ExpertsConfig) and c.experts_used == c.experts)
    return (*dense(), *routed)


COMPOSITIONS: tuple[str, ...] = tuple(
    name
    for architecture, family in FAMILIES.items()
    for name in ((architecture,) if family.compositions is None else family.compositions)
)
"""One case for each composition of layers: what else families differ in, such as their rotations, is no matter of the
schedule, of threads or of where things are kept."""

TYPICAL = tuple(name for name in cases() if name in FAMILIES or name in COMPOSITIONS)
"""One case at least for each family and each composition."""


def of_peer(changes: Callable[[Family], Any]) -> dict[str, ModelConfig]:
    """Each family's model with the changes that a peer asks for; not those where they are None."""
    return {
        name: replace(family.model, **wanted)
        for name, family in FAMILIES.items()
        if (wanted := changes(family)) is not None
    }
