"""Optimisers and learning-rate schedules. An optimiser is a module of `optim.rules`, found by looking there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from featherback.host.paged import PagedArray
from featherback.optim.layerwise import (
    LayerwiseOptimizer,
    Rate,
    clip_scale,
    global_norm,
    held_rows,
    state_sizes,
)
from featherback.optim.rule import Rule
from featherback.optim.schedule import SCHEDULES, Schedule
from featherback.parameters.slots import SlotTable
from featherback.registry import OwnOptions, Registry

__all__ = [
    "OPTIONS",
    "RULES",
    "SCHEDULES",
    "LayerwiseOptimizer",
    "Rule",
    "Schedule",
    "clip_scale",
    "create",
    "default_learning_rate",
    "for_adapters",
    "global_norm",
    "held_rows",
    "state_sizes",
]

RULES: Registry[type[Rule]] = Registry(f"{__name__}.rules", "RULE", "optimizer")
OPTIONS: OwnOptions[Rule] = OwnOptions(RULES, RULES.__getitem__)
"""A rule with its options is an instance of its class."""


def create(
    name: str,
    parameters: PagedArray,
    slots: SlotTable,
    settings: Mapping[str, Any] | None = None,
    place: str | Path | None = None,
    rate: Rate = lambda slot: 1.0,
    seed: int = 0,
) -> LayerwiseOptimizer:
    """The optimiser of this name, applied to `parameters` (layers, size), in which the tensors of `slots` lie.

    `settings`: values of its options. `place` and `rate` as in LayerwiseOptimizer. FeatherbackError as from
    OPTIONS.make.
    """
    return LayerwiseOptimizer(OPTIONS.make(name, settings or {}), parameters, slots, place, rate, seed)


def default_learning_rate(name: str, width: int) -> float:
    """The peak learning rate of an adapter when none is named, for a model so wide: two digits of it."""
    rule = RULES[name]
    return float(f"{rule.LEARNING_RATE * (width / 1024) ** rule.WIDTH_POWER:.2g}")


def for_adapters() -> list[str]:
    """The optimisers that make sense for adapters."""
    return [name for name in RULES.names if RULES[name].FOR_ADAPTERS]
