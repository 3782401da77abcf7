"""Optimisers, their default learning rates, and learning-rate schedules. Each module in `rules` is one optimiser."""

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
"""Options of each optimiser. `OPTIONS.make` creates a rule from their values."""


def create(
    name: str,
    parameters: PagedArray,
    slots: SlotTable,
    settings: Mapping[str, Any] | None = None,
    place: str | Path | None = None,
    rate: Rate = lambda slot: 1.0,
    seed: int = 0,
) -> LayerwiseOptimizer:
    """Create the optimiser `name` for `parameters` (layers, size), whose rows hold the tensors of `slots`.

    `settings`: values of its options. `place`, `rate` and `seed`: see LayerwiseOptimizer. Raises FeatherbackError for
    unknown options or values (see OPTIONS.make).
    """
    return LayerwiseOptimizer(OPTIONS.make(name, settings or {}), parameters, slots, place, rate, seed)


def default_learning_rate(name: str, width: int, growth: float = 1.0, ratio: float = 1.0) -> float:
    """Return an adapter's default peak learning rate, rounded to two digits, for a model of hidden size `width`.

    `growth`: the adapter's scale divided by alpha / rank (rsLoRA). The rate is divided by it, so that the first steps
    change the model as much as with LoRA. `ratio`: B's rate divided by A's (LoRA+). It does not change the rates'
    geometric mean.
    """
    rule = RULES[name]
    rate = rule.LEARNING_RATE * (width / 1024) ** rule.WIDTH_POWER
    return _two_digits(rate / growth / math.sqrt(ratio))


def full_learning_rate(name: str, width: int) -> float:
    """Return the default peak learning rate of a whole model, rounded to two digits."""
    rule = RULES[name]
    return _two_digits(rule.FULL_LEARNING_RATE * (width / 1024) ** rule.FULL_WIDTH_POWER)


def _two_digits(rate: float) -> float:
    return float(f"{rate:.2g}")


def for_adapters() -> list[str]:
    """Return the names of the optimisers that suit adapters."""
    return [name for name in RULES.names if RULES[name].FOR_ADAPTERS]
