"""How values of other tools' options become ours. `runs.panels` declares which option has which alias."""

from __future__ import annotations

import math
from typing import Any

from featherback.core.naming import spelled_option
from featherback.core.options import UnclearError

_OPTIMIZERS = {
    "adamw": ("adamw_torch", "adamw_torch_fused", "adamw_hf"),
    "adamw8bit": ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"),
    "lion": ("lion_32bit",),
}
"""Our optimizer -> the names of the same update rule in transformers."""


def optimizer(given: Any) -> Any:
    """Translate transformers' name of an optimizer: "adamw_torch" is "adamw"."""
    return next((ours for ours, theirs in _OPTIMIZERS.items() if given in theirs), given)


def schedule(given: Any) -> Any:
    """Translate transformers' name of a schedule: "constant_with_warmup" is "constant"."""
    return "constant" if given == "constant_with_warmup" else given


def targets(given: Any) -> Any:
    """Target modules as PEFT names them: "all-linear" is "all"."""
    return "all" if given in ("all-linear", ["all-linear"]) else given


def num_layers(given: Any) -> Any:
    """Translate mlx-lm's number of layers, counted from the last: 8 is "last:8", and -1 is "all"."""
    count = _number(given)
    if count == -1:
        return "all"
    if not (count >= 1 and count.is_integer()):
        raise UnclearError("it must be a whole number of layers, counted from the last, or -1 for all.")
    return f"last:{int(count)}"


def warmup_ratio(given: Any) -> float:
    """A share of all steps, at least 0 and less than 1."""
    share = _number(given)
    if not 0 <= share < 1:
        raise UnclearError("it must be a share of all steps, at least 0 and less than 1.")
    return share


def warmup_steps(given: Any) -> int:
    """A whole number of steps."""
    steps = _number(given)
    if not (steps >= 0 and steps.is_integer()):
        share = spelled_option("warmup_ratio")
        raise UnclearError(f"it must be a whole number of steps. For a share of all steps, use {share}.")
    return int(steps)


def _number(given: Any) -> float:
    """A number, or text that is one; NaN for anything else."""
    try:
        return float(given) if isinstance(given, (str, int, float)) and not isinstance(given, bool) else math.nan
    except (ValueError, OverflowError):
        return math.nan
