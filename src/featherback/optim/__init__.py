"""Optimisers, their default learning rates, and schedules. An optimiser is a module in `rules`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from featherback.core.registry import OwnOptions, Registry
from featherback.engine.host.paged import PagedArray
from featherback.nn.slots import SlotTable
from featherback.optim.layerwise import LayerwiseOptimizer, Rate, clip_scale, global_norm, state_sizes, step_bytes
from featherback.optim.rule import Rule
from featherback.optim.schedule import SCHEDULES, Schedule

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
    "full_learning_rate",
    "global_norm",
    "state_sizes",
    "step_bytes",
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


def default_learning_rate(name: str, width: int, growth: float = 1.0, ratio: float = 1.0) -> float:
    """The peak learning rate of an adapter when none is named, for a model so wide: two digits of it.

    `growth`: its scale as a multiple of alpha / rank (rsLoRA), by which the rate is divided, so that the first steps
    move the model as far. `ratio`: B's rate as a multiple of A's (LoRA+); their geometric mean stays.
    """
    rule = RULES[name]
    rate = rule.LEARNING_RATE * (width / 1024) ** rule.WIDTH_POWER
    return _two_digits(rate / growth / math.sqrt(ratio))


def full_learning_rate(name: str, width: int) -> float:
    """The same for a whole model."""
    rule = RULES[name]
    return _two_digits(rule.FULL_LEARNING_RATE * (width / 1024) ** rule.FULL_WIDTH_POWER)


def _two_digits(rate: float) -> float:
    return float(f"{rate:.2g}")


def for_adapters() -> list[str]:
    """The optimisers that make sense for adapters."""
    return [name for name in RULES.names if RULES[name].FOR_ADAPTERS]
