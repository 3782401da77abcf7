"""Optimisers and learning-rate schedules."""

from __future__ import annotations

from pathlib import Path

from featherback.adapters.lora import LoRA
from featherback.errors import FeatherbackError
from featherback.optim.adamw import AdamW
from featherback.optim.layerwise import LayerwiseOptimizer, clip_scale, global_norm
from featherback.optim.schedule import SCHEDULES, Schedule
from featherback.optim.sgd import SGD

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "SGD",
    "AdamW",
    "LayerwiseOptimizer",
    "Schedule",
    "clip_scale",
    "create",
    "default_learning_rate",
    "global_norm",
]

OPTIMIZERS: dict[str, type[AdamW] | type[SGD]] = {"adamw": AdamW, "sgd": SGD}
DEFAULT_LEARNING_RATES = {"adamw": 2e-4, "sgd": 1e-1}


def create(
    name: str, adapter: LoRA, weight_decay: float = 0.0, place: str | Path | None = None
) -> LayerwiseOptimizer:
    """The optimiser of this name; `place` as in LayerwiseOptimizer. FeatherbackError for an unknown name."""
    return OPTIMIZERS[_known(name)](adapter, weight_decay=weight_decay, place=place)


def default_learning_rate(name: str) -> float:
    """The peak learning rate used when none is named."""
    return DEFAULT_LEARNING_RATES[_known(name)]


def _known(name: str) -> str:
    if name not in OPTIMIZERS:
        raise FeatherbackError(f"Unknown optimizer {name!r}; choose from {', '.join(OPTIMIZERS)}.")
    return name
