"""Optimisers and learning-rate schedules. An optimiser is a module of `optim.rules`, found by looking there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from featherback.host.paged import PagedArray
from featherback.optim.layerwise import LayerwiseOptimizer, clip_scale, global_norm
from featherback.optim.rule import Rule
from featherback.optim.schedule import SCHEDULES, Schedule
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
    "global_norm",
    "state_arrays",
]

RULES: Registry[type[Rule]] = Registry(f"{__name__}.rules", "RULE", "optimizer")
OPTIONS: OwnOptions[Rule] = OwnOptions(RULES, RULES.__getitem__)
"""A rule with its options is an instance of its class."""


def create(
    name: str,
    parameters: PagedArray,
    settings: Mapping[str, Any] | None = None,
    place: str | Path | None = None,
) -> LayerwiseOptimizer:
    """The optimiser of this name, applied to `parameters` (layers, size).

    `settings`: values of its options. `place` as in LayerwiseOptimizer. FeatherbackError as from OPTIONS.make.
    """
    return LayerwiseOptimizer(OPTIONS.make(name, settings or {}), parameters, place)


def default_learning_rate(name: str) -> float:
    """The peak learning rate used when none is named."""
    return RULES[name].LEARNING_RATE


def state_arrays(name: str) -> int:
    """How many arrays as large as the parameters the states of an optimiser fill."""
    return len(RULES[name].STATES)
