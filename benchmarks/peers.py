"""`python -m benchmarks peers`: transformers + PEFT on the same shapes, beside ours, each run a fresh process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import watch
from benchmarks.markdown import number, table
from benchmarks.synthetic import CONFIGS, made
from benchmarks.training_run import train_synthetic
from featherback.engine import kernels
from featherback.errors import FeatherbackError

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


def run(
    models: list[str], cache: Path, steps: int, quick: bool, keep: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Every peer on every model, and our default run beside them."""
    require_torch()
    cache.mkdir(parents=True, exist_ok=True)
    lines, rows = [], []
    for model in models:
        settings = [("bf16", True), ("bf16", False), ("fp32", True)]
        for dtype, checkpointing in settings[:1] if quick else settings:
            found = peft_step(model, dtype, checkpointing, steps=steps)
            label = f"PEFT {dtype}" + (", checkpointing" if checkpointing else "")
            rows.append({"model": model, "what": label, **found})
            seconds = min(found["seconds"][1:] or found["seconds"])
            lines.append([model, label, number(found["footprint_mb"]), number(found["rss_mb"]), number(seconds, 2)])
            say(" ".join(lines[-1]))
        with made(model, cache, keep) as path:
            ours = train_synthetic(path, steps=steps, folder=cache)
        rows.append({"model": model, "what": "featherback mesp", **ours.to_json()})
        lines.append(
            [model, "Featherback, bf16", number(ours.footprint_mb), number(ours.rss_mb), number(ours.step_seconds, 2)]
        )
        say(" ".join(lines[-1]))
    head = ["model", "what", "footprint MB", "RSS MB", "s per step"]
    return {"rows": rows, "markdown": table(head, lines)}
