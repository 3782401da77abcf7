"""What --keep-precision 8bit does to gradients and time: python benchmarks/kept_precision.py MODEL [TOKENS [ROUNDS]]

Relative error and cosine beside the same model in fp32 with nothing kept, of each tensor and of all together, and the
processor time of a step on one thread, alternating.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gradients import TEXT, _setting
from benchmarks.markdown import table
from featherback import methods
from featherback.data.batch import Batch
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.engine import kernels
from featherback.engine.host.paged import PagedArray
from featherback.methods.memory.plan import Plan
from featherback.models.hub.locate import locate

GATES = ("gate", "up")
EIGHT = dict.fromkeys(GATES, "blocks8")


class Run:
    """Gradients under a plan, computed as often as asked."""

    def __init__(
        self, model: Any, adapter: Any, batch: Batch, compute: str, encodings: Mapping[str, str] | None
    ) -> None:
        plan = Plan.default(model.config, tokens=batch.n_tokens, compute=compute)
        if encodings is not None:
            plan = replace(plan, keep=dict.fromkeys(GATES, len(model.blocks)), encodings=encodings)
        self.method, self.batch, self.adapter = methods.create("mesp", model, adapter, plan), batch, adapter
        self.gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
        self.seconds: list[float] = []

    def step(self) -> None:
        self.gradients.clear()
        start = time.process_time()
        self.method.gradients(self.batch, 1 / self.batch.n_targets, self.gradients)
        self.seconds.append(time.process_time() - start)

    @property
    def state(self) -> dict[str, np.ndarray]:
        return {name: array.astype(np.float64) for name, array in self.adapter.state(self.gradients).items()}

    @property
    def kept(self) -> int:
        return int(self.method.resources.kept.high_water)


def main(name: str, tokens: int = 256, rounds: int = 3) -> None:
    kernels.set_threads(1)
    path = locate(name)
    model, adapter, _ = _setting(Path(path))
    text = load_tokenizer(path).encode(TEXT)
    batch = Batch.from_sequences([(text * (tokens // len(text) + 1))[:tokens]])
    runs = {
        f"{compute}, {label}": Run(model, adapter, batch, compute, encodings)
        for compute in ("fp32", "bf16")
        for label, encodings in (("nothing kept", None), ("gate, up", {}), ("gate, up in 8 bits", EIGHT))
    }
    for _ in range(rounds):
        for run in runs.values():
            run.step()
    exact = runs["fp32, nothing kept"].state
    lines = []
    for label, run in runs.items():
        found = run.state
        errors = [float(np.linalg.norm(found[n] - e) / np.linalg.norm(e)) for n, e in exact.items()]
        cosines = [float(np.vdot(found[n], e) / np.linalg.norm(found[n]) / np.linalg.norm(e)) for n, e in exact.items()]
        f, e = (np.concatenate([each[n].reshape(-1) for n in exact]) for each in (found, exact))
        whole = float(np.linalg.norm(f - e) / np.linalg.norm(e))
        figures = [f"{whole:.2e}", f"{np.median(errors):.2e}", f"{max(errors):.2e}", f"{min(cosines):.6f}"]
        lines.append([label, *figures, f"{run.kept / 1e6:.1f}", f"{min(run.seconds):.2f}"])
    head = ["", "error of all", "median tensor", "worst tensor", "least cosine", "kept, MB", "processor s per step"]
    print(f"{Path(path).name}, {batch.n_tokens} tokens, {kernels.current()}, beside fp32 with nothing kept:\n")
    print(table(head, lines))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
