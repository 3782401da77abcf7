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
from tests.support.families.base import Cases, Family

_SHARED = {"base", "converter", "twin"}

FAMILIES: dict[str, Family] = {
    module.name: import_module(f"{__name__}.{module.name}").FAMILY
    for module in iter_modules(__path__)
    if module.name not in _SHARED
}

MODELS: dict[str, ModelConfig] = {
    name: config
    for architecture, family in FAMILIES.items()
    for name, config in {architecture: family.model, **{more: case[0] for more, case in family.more.items()}}.items()
}
"""The models that every test of all families meets: the tiny one of each, and a few more."""


@cache
def cases() -> Cases:
    """MODELS and every variant, with the types in which exact gradients are tested."""
    found: dict[str, Any] = {}
    for architecture, family in FAMILIES.items():
        found |= {architecture: (family.model, family.types), **family.more, **family.variants()}
    return found


COMPOSITIONS = tuple(
    name
    for architecture, family in FAMILIES.items()
    for name in ((architecture,) if family.compositions is None else family.compositions)
)
"""One case for each composition of layers: what else families differ in, such as their rotations, is no matter of the
schedule, of threads or of where things are kept."""


def of_peer(changes: Callable[[Family], Any]) -> dict[str, ModelConfig]:
    """Each family's model with the changes that a peer asks for; not those where they are None."""
    return {
        name: replace(family.model, **wanted)
        for name, family in FAMILIES.items()
        if (wanted := changes(family)) is not None
    }
