"""`python -m benchmarks.experts [PART ...]`: what a mixture of experts takes, on random weights of real shapes.

memory      Qwen3-30B-A3B's shape with few layers, 256 tokens: peaks at the least budget
adapted     the same with `--targets all,experts` at rank 8
reading     the bytes of experts that a step reads per token, with 1 and with 16 sequences in a batch
predicted   a step that reads all its weights from the disk: predicted and measured seconds
products    OLMoE's shape with few layers, all in memory: a step beside the sum of its products

`products` takes seconds of the processor, not of the clock, so that other processes disturb it little.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import peaks
from benchmarks.synthetic import evict, write_synthetic
from benchmarks.training_run import train_synthetic
from featherback import methods, models
from featherback.data.batch import Batch
from featherback.engine import backend, kernels
from featherback.engine.formats.types import TensorType
from featherback.engine.host import disk
from featherback.engine.host.expert_pages import ExpertPages
from featherback.engine.host.machine import Baseline, Machine
from featherback.engine.host.paged import PagedArray
from featherback.methods import METHODS
from featherback.methods.memory import planner
from featherback.methods.memory.job import Job
from featherback.methods.memory.plan import Plan
from featherback.methods.mesp import MeSP
from featherback.methods.sweep import RoundTrip
from featherback.models.adapter import LoRA
from featherback.models.model import Model

TOKENS, LAYERS, RANK = 256, 2, 8
COMPUTE = "bf16"


def memory(folder: Path, targets: str = "all", layers: int = 2 * LAYERS) -> dict[str, Any]:
    """Train with `--memory least`."""
    with model_of(folder, "qwen3-30b-a3b", layers) as path:
        measured = train_synthetic(
            path, tokens=TOKENS, steps=2, folder=folder, memory="least", compute=COMPUTE, targets=targets
        )
        return {**peaks(measured), "targets": targets, "step_s": round(measured.step_seconds, 2)}


def adapted(folder: Path) -> dict[str, Any]:
    """The same with a pair for every expert."""
    return memory(folder, "all,experts", LAYERS)


def reading(folder: Path) -> dict[str, Any]:
    """Count what a step asks to be read."""
    found = {}
    with model_of(folder, "qwen3-30b-a3b", 1) as path:
        model = models.load(path)
        for sequences in (1, 16):
            plan = Plan.default(model.config, tokens=TOKENS * sequences, compute=COMPUTE)
            with counted() as parts:
                step(model, replace(plan, weights="by_matrix"), sequences)
            found[sequences] = sum(parts) / (TOKENS * sequences)
    return {
        "one_mb_per_token": round(found[1] / 1e6, 3),
        "sixteen_mb_per_token": round(found[16] / 1e6, 3),
        "times_less": round(found[1] / found[16], 1),
    }


def predicted(folder: Path, times: int = 5) -> dict[str, Any]:
    """Predict and measure a step for which the page cache holds nothing, before either pass.

    Each ratio is the median of predicted by measured. Computing is compared in seconds of the processor, and reading in
    bytes that the disk delivered, because neither depends on what else the machine does. The machine is measured anew
    before each step.
    """
    with model_of(folder, "qwen3-30b-a3b", LAYERS) as path:
        model = models.load(path)
        job = Job.of(model, method=METHODS["mesp"], tokens=TOKENS, sequence=TOKENS, compute=COMPUTE)
        plan = replace(Plan.default(model.config, tokens=TOKENS, compute=COMPUTE), weights="streamed")
        found: dict[str, list[float]] = {name: [] for name in ("step", "computing", "reading")}
        last: dict[str, float] = {}
        for _ in range(times):
            rate = disk.rate_of(path)
            assert rate is not None
            machine = replace(Machine.measure(model.config, TOKENS, COMPUTE), memory=1, disk_rate=rate)
            cold = planner.predict(job, plan, Baseline(0, 0), machine)
            warm = planner.predict(job, plan, Baseline(0, 0), replace(machine, memory=None))
            computing = step(model, plan, 1, clock=time.process_time)
            before = delivered()
            seconds = step(model, plan, 1, before=lambda: evict(path))
            read = delivered() - before
            found["computing"].append(warm.seconds / computing)
            found["reading"].append(cold.reading * rate / read)
            found["step"].append(cold.seconds / seconds)
            last = {
                "step_s": cold.seconds,
                "reading_s": cold.reading,
                "computing_s": warm.seconds,
                "disk_mb_s": rate / 1e6,
            }
        ratios = {f"{name}_ratio": round(sorted(each)[times // 2], 2) for name, each in found.items()}
        return {
            **ratios,
            **{name: round(value, 2) for name, value in last.items()},
            "step_ratios": [round(each, 2) for each in found["step"]],
        }


def delivered() -> int:
    """Return the bytes that this process has read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def products(folder: Path, tokens: int = 2 * TOKENS) -> dict[str, Any]:
    """Compare a step with the products that it consists of, each timed alone with as many rows."""
    with model_of(folder, "olmoe-1b-7b", LAYERS) as path:
        model = models.load(path)
        plan = Plan.default(model.config, tokens=tokens, compute=COMPUTE)
        sequences = tokens // TOKENS
        seconds = sorted(step(model, plan, sequences, clock=time.process_time) for _ in range(3))[1]
        config: Any = model.config
        each, width = tokens * config.experts_used // config.experts, config.hidden_size
        alone = 0.0
        for rows, outputs, inputs, count, passes in (
            (each, config.expert_size, width, 2 * config.experts, (2, 1)),  # gate, up: forward, again, backward
            (each, width, config.expert_size, config.experts, (1, 1)),  # down: not computed again
            (tokens, config.q_size, width, 1, (2, 1)),
            (tokens, config.kv_size, width, 2, (2, 1)),
            (tokens, width, config.q_size, 1, (2, 1)),
        ):
            forward, back = product_seconds(rows, outputs, inputs)
            alone += LAYERS * count * (passes[0] * forward + passes[1] * back)
        forward, back = product_seconds(tokens, 4096, width)
        alone += model.config.vocab_size / 4096 * (forward + back)
        return {"step_s": round(seconds, 3), "products_s": round(alone, 3), "ratio": round(seconds / alone, 3)}


def product_seconds(rows: int, outputs: int, inputs: int) -> tuple[float, float]:
    """Return the seconds of x W^T and of dy W, with 4-bit weights."""
    kind, ops, operand = TensorType.Q4_0, backend.of(COMPUTE).ops, kernels.OPERANDS[COMPUTE]
    w = kernels.Matrix(np.zeros(outputs * kind.row_bytes(inputs), np.uint8), int(kind), outputs, inputs)
    x, dy = np.zeros((rows, inputs), operand), np.zeros((rows, outputs), operand)
    out, dx = np.empty((rows, outputs), np.float32), np.empty((rows, inputs), np.float32)
    return best(lambda: ops.linear(x, w, out)), best(lambda: ops.linear_backward(dy, w, dx))


def best(call: Callable[[], object], times: int = 5) -> float:
    """Return the processor's seconds of a call, the median of a few."""
    found = []
    for _ in range(times):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return sorted(found)[times // 2]


def step(
    model: Model,
    plan: Plan,
    sequences: int,
    before: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the seconds of a gradient. `before` is called before the forward and before the backward pass."""
    rng = np.random.default_rng(0)
    batch = Batch.from_sequences([rng.integers(0, model.config.vocab_size, TOKENS) for _ in range(sequences)])
    adapter = LoRA(model, RANK)
    gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
    method = methods.create("mesp", model, adapter, plan)
    if before is not None:
        method = _Evicting(model, adapter, plan, method.resources)
        method.before = before
        before()
    start = clock()
    method.gradients(batch, 1 / batch.n_targets, gradients)
    seconds = clock() - start
    method.close()
    return seconds


class _Evicting(MeSP):
    before: Callable[[], None]

    def loss_gradient(self, trip: RoundTrip, scale: float) -> float:
        found = super().loss_gradient(trip, scale)
        self.before()
        return found


@contextmanager
def counted() -> Iterator[list[int]]:
    """Collect the bytes of each expert that is read."""
    parts: list[int] = []
    expect = ExpertPages.expect

    def count(self: ExpertPages, part: Any) -> None:
        parts.append(part.nbytes)
        expect(self, part)

    ExpertPages.expect = count  # type: ignore[method-assign]
    try:
        yield parts
    finally:
        ExpertPages.expect = expect  # type: ignore[method-assign]


@contextmanager
def model_of(folder: Path, name: str, layers: int) -> Iterator[Path]:
    """Write a model with random weights, and delete it at the end."""
    path = folder / f"{name}-{layers}.gguf"
    write_synthetic(path, name, num_hidden_layers=layers)
    try:
        yield path
    finally:
        path.unlink()


PARTS = {part.__name__: part for part in (memory, adapted, reading, predicted, products)}


def main(names: Sequence[str]) -> None:
    """Print the figures of each part as a line of JSON."""
    with tempfile.TemporaryDirectory(prefix="experts-") as folder:
        for name in names or PARTS:
            print(json.dumps({name: PARTS[name](Path(folder))}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
