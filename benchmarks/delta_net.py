"""`python -m benchmarks.delta_net [PART ...]`: what gated delta nets take, on random weights of Qwen3.5-0.8B's shape.

memory      256 tokens: peaks at the least budget
long        4,096 tokens: the same
share       a step of 256 tokens, and how much of it the recurrence takes
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import peaks
from benchmarks.synthetic import write_synthetic
from benchmarks.training_run import train_synthetic
from featherback import methods, models
from featherback.data.batch import Batch
from featherback.engine.backend.cpu import CPUOperations
from featherback.engine.host.paged import PagedArray
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import LoRA

MODEL, TOKENS, LONG, RANK, STEPS = "qwen3.5-0.8b", 256, 4096, 8, 5
COMPUTE = "bf16"
RECURRENCE = ("delta_rule", "delta_rule_backward")


def memory(path: Path) -> dict[str, Any]:
    """Train with `--memory least`."""
    return trained(path, TOKENS)


def long(path: Path) -> dict[str, Any]:
    """Train on a long sequence with `--memory least`."""
    return trained(path, LONG)


def trained(path: Path, tokens: int) -> dict[str, Any]:
    """Return the peaks of a run of two steps, in MB."""
    measured = train_synthetic(path, tokens=tokens, steps=2, folder=path.parent, memory="least", compute=COMPUTE)
    return {"tokens": tokens, **peaks(measured), "step_s": round(measured.step_seconds, 2)}


def share(path: Path) -> dict[str, Any]:
    """Time the recurrence within gradients of one process. The figures are medians."""
    model = models.load(path)
    rng = np.random.default_rng(0)
    batch = Batch.from_sequences([rng.integers(0, model.config.vocab_size, TOKENS)])
    adapter = LoRA(model, RANK)
    gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
    method = methods.create("mesp", model, adapter, Plan.default(model.config, tokens=TOKENS, compute=COMPUTE))
    steps, parts = [], []
    with timed() as seconds:
        for _ in range(STEPS + 1):  # the first one warms up
            seconds.clear()
            start = time.perf_counter()
            method.gradients(batch, 1 / batch.n_targets, gradients)
            steps.append(time.perf_counter() - start)
            parts.append(sum(seconds))
    method.close()
    middle = int(np.argsort(steps[1:])[STEPS // 2]) + 1
    return {
        "step_s": round(steps[middle], 3),
        "recurrence_s": round(parts[middle], 3),
        "share_percent": round(100 * float(np.median(np.divide(parts[1:], steps[1:]))), 1),
    }


@contextmanager
def timed() -> Iterator[list[float]]:
    """Collect the seconds of each call of the recurrence."""
    found: list[float] = []
    own = {name: getattr(CPUOperations, name) for name in RECURRENCE}

    def clocked(operation: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any, **named: Any) -> None:
            start = time.perf_counter()
            operation(*arguments, **named)
            found.append(time.perf_counter() - start)

        return call

    try:
        for name, operation in own.items():
            setattr(CPUOperations, name, staticmethod(clocked(operation)))
        yield found
    finally:
        for name, operation in own.items():
            setattr(CPUOperations, name, staticmethod(operation))


PARTS = {part.__name__: part for part in (memory, long, share)}


def main(names: Sequence[str]) -> None:
    """Print the figures of each part as a line of JSON."""
    with tempfile.TemporaryDirectory(prefix="delta-net-") as folder:
        path = write_synthetic(Path(folder) / "model.gguf", MODEL)
        for name in names or PARTS:
            print(json.dumps({name: PARTS[name](path)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
