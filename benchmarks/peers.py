"""Steps of transformers + PEFT beside ours on the same shapes, each side a process of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import watch
from benchmarks.memory import peaks
from benchmarks.synthetic import CONFIGS
from benchmarks.training_run import train_synthetic
from featherback.engine import kernels
from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from benchmarks.place import Place
    from benchmarks.results import Row

TOKENS, STEPS = 256, 6
LOOK = 0.02  # seconds between two looks at memory: rare enough not to cost time
_UNKNOWN_TO_TRANSFORMERS = ("attention_bias", "rope_interleaved", "rope_scaling", "rotary_dim", "rope_theta", "windows")


def require_torch() -> None:
    """FeatherbackError if the peers are not installed."""
    missing = [name for name in ("torch", "transformers", "peft") if find_spec(name) is None]
    if missing:
        raise FeatherbackError(
            f"This comparison needs {', '.join(missing)}, which Featherback itself does not: "
            f"pip install 'featherback[test]'."
        )


def peft_step(
    name: str,
    dtype: str,
    checkpointing: bool,
    tokens: int = 256,
    steps: int = 3,
    rank: int = 8,
    threads: int = 0,
    interval: float = watch.INTERVAL,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A few PEFT steps in a fresh process: their seconds, its peaks."""
    request = {
        "config": shapes_for_transformers(name),
        "tokens": tokens,
        "rank": rank,
        "steps": steps,
        "dtype": dtype,
        "checkpointing": checkpointing,
        "threads": threads or kernels.default_threads(),
    }
    command = [sys.executable, "-m", "benchmarks.peft_step", json.dumps(request)]
    outcome = watch.run(command, {**os.environ, **(environment or {})}, interval)
    found: dict[str, Any] = json.loads(outcome.output.splitlines()[-1])
    return found | {"footprint_mb": outcome.footprint_mb, "rss_mb": outcome.rss_mb}


def shapes_for_transformers(name: str) -> dict[str, Any]:
    """A synthetic model's shapes in transformers' words, and its "architecture"."""
    config = {key: value for key, value in vars(CONFIGS[name]).items() if key not in _UNKNOWN_TO_TRANSFORMERS}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": CONFIGS[name].rope_theta}
    return config


SIDES = {"peft-checkpointing": ("bf16", True), "peft": ("bf16", False)}
MODELS = ("qwen2.5-0.5b", "smollm2-135m")


def rows(place: Place) -> dict[str, Callable[[], Row]]:
    """For each model: ours by default, ours with the least memory, PEFT with and without checkpointing."""
    found: dict[str, Callable[[], Row]] = {}
    for model in MODELS:
        short = model.removeprefix("qwen2.5-")
        found[f"{short}-ours"] = partial(_ours, model, place, None)
        found[f"{short}-ours-least"] = partial(_ours, model, place, "least")
        for side, (dtype, checkpointing) in SIDES.items():
            found[f"{short}-{side}"] = partial(_peft, model, place, dtype, checkpointing)
    return found


def _ours(model: str, place: Place, memory: str | None) -> Row:
    measured = train_synthetic(
        place.synthetic(model),
        tokens=place.tokens(TOKENS),
        steps=place.steps(STEPS),
        folder=place.folder,
        memory=memory,
        interval=LOOK,
    )
    return {"model": model, "tokens": TOKENS, **peaks(measured), "step_s": round(measured.step_seconds, 3)}


def _peft(model: str, place: Place, dtype: str, checkpointing: bool) -> Row:
    require_torch()
    name = "smollm2-135m" if place.tiny else model
    found = peft_step(name, dtype, checkpointing, tokens=place.tokens(TOKENS), steps=place.steps(STEPS), interval=LOOK)
    sizes = {key: found[key] and round(found[key], 1) for key in ("footprint_mb", "rss_mb")}
    return {"model": model, "tokens": TOKENS, **sizes, "step_s": round(median(found["seconds"][1:]), 3)}
