"""Optimisers and learning-rate schedules. An optimiser is a module of `optim.rules`, found by looking there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from featherback.errors import FeatherbackError
from featherback.host.paged import PagedArray
from featherback.optim.layerwise import LayerwiseOptimizer, clip_scale, global_norm
from featherback.optim.rule import Rule
from featherback.optim.schedule import SCHEDULES, Schedule
from featherback.options import described, flags
from featherback.registry import Registry

__all__ = [
    "RULES",
    "SCHEDULES",
    "LayerwiseOptimizer",
    "Rule",
    "Schedule",
    "clip_scale",
    "create",
    "default_learning_rate",
    "global_norm",
    "make_rule",
    "rule_options",
    "state_arrays",
]

RULES: Registry[type[Rule]] = Registry(f"{__name__}.rules", "RULE", "optimizer")


def create(
    name: str,
    parameters: PagedArray,
    settings: Mapping[str, Any] | None = None,
    place: str | Path | None = None,
) -> LayerwiseOptimizer:
    """The optimiser of this name, applied to `parameters` (layers, size).

    `settings`: values of its options. `place` as in LayerwiseOptimizer. FeatherbackError as from make_rule.
    """
    return LayerwiseOptimizer(make_rule(name, settings or {}), parameters, place)


def make_rule(name: str, settings: Mapping[str, Any]) -> Rule:
    """The rule of this name, with `settings` as the values of its options.

    FeatherbackError for an unknown name, an option that the rule does not have, or a value the option cannot have.
    """
    kind = RULES[name]
    known = described(kind)
    for option in settings:
        if option not in known:
            own = ", ".join(flags(kind, each)[0] for each in known) or "none"
            raise FeatherbackError(
                f"{flags(kind, option)[0]} is no option of the optimizer {name}, which has {own}; "
                f"leave it out or choose another --optimizer."
            )
    return kind(**settings)


def rule_options() -> dict[str, dict[str, type[Rule]]]:
    """Option -> the optimisers that have it: {optimiser's name: its class}."""
    found: dict[str, dict[str, type[Rule]]] = {}
    for name in RULES.names:
        for option in described(RULES[name]):
            found.setdefault(option, {})[name] = RULES[name]
    return found


def default_learning_rate(name: str) -> float:
    """The peak learning rate used when none is named."""
    return RULES[name].LEARNING_RATE


def state_arrays(name: str) -> int:
    """How many arrays as large as the parameters the states of an optimiser fill."""
    return len(RULES[name].STATES)
