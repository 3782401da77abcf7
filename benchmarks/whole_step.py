"""A step of LOMO on a whole model beside a step of MeSP on an adapter, and PyTorch with the authors' LOMO.

    python -m benchmarks.whole_step [--model smollm2-135m] [--tokens 256] [--rounds 5] [--threads 1] [--cpu-time]
        [--torch bf16 fp32] [--authors build/authors] [--profile]

A synthetic model of these shapes in BF16, random tokens. Each side lives in a process of its own that sleeps while
another is measured; they take turns step by step, and a ratio is the median over the rounds, of neighbours in time.
--torch: transformers' model of the same shapes, gradient checkpointing, and lomo-optim's fused backward, which
`make test-authors` puts into build/authors. --cpu-time counts the processor's seconds instead of the clock's, for a
machine that others use. --profile: where the time of one further step of each of ours goes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

RATE = 1e-6  # so small that random weights stay what they are


def lora(model: Path, tokens: np.ndarray[Any, Any], work: Path) -> Callable[[], object]:
    """A step of MeSP and AdamW on an adapter."""
    from featherback import methods, models, optim
    from featherback.data.batch import Batch
    from featherback.engine.host.paged import PagedArray
    from featherback.methods.memory.plan import Plan
    from featherback.models.adapter import LoRA

    opened, batch = models.load(model), Batch.from_sequences([tokens])
    adapter = LoRA(opened, 8)
    optimizer = optim.create("adamw", adapter.parameters, adapter.layout.slots)
    gradients = PagedArray(adapter.parameters.layers, adapter.parameters.size)
    method = methods.create("mesp", opened, adapter, Plan.default(opened.config, tokens=len(tokens), compute="bf16"))

    def step() -> None:
        gradients.clear()
        method.gradients(batch, 1 / batch.n_targets, gradients)
        optimizer.step(gradients, RATE)

    return step


def lomo(model: Path, tokens: np.ndarray[Any, Any], work: Path) -> Callable[[], object]:
    """A step of the trainer on all weights of a copy."""
    from featherback import models
    from featherback.data.batch import Batch
    from featherback.engine import kernels
    from featherback.methods.memory.plan import Plan
    from featherback.runs.config import TrainConfig
    from featherback.runs.preparation import prepare_run
    from featherback.runs.stream import Group
    from featherback.runs.whole import TrainedWeights, working_copy

    config = TrainConfig.of(
        model=str(model), out=str(work / "run"), train="full", optimizer="lomo", seq_len=len(tokens), steps=1,
        threads=kernels.threads(),
    )  # fmt: skip
    run = prepare_run(config, data=[tokens])
    run.begin_work()
    copy = working_copy(run, models.load(model), lambda: None)
    plan = Plan.default(copy.config, tokens=len(tokens), compute="bf16")  # the adapter's: blocks computed again
    trained = TrainedWeights(run, copy, plan)
    batch = Batch.from_sequences([tokens])
    steps = iter(range(1, sys.maxsize))
    return lambda: trained.step(Group(iter([batch]), batch.n_targets, batch.n_tokens), RATE, next(steps), lambda: None)


def by_torch(dtype: str, authors: str, name: str, tokens: np.ndarray[Any, Any], threads: int) -> Callable[[], object]:
    """A step of the authors' LOMO."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    from benchmarks.peers import shapes_for_transformers

    sys.path.insert(0, authors)
    from lomo_optim import Lomo

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    known = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}
    values = shapes_for_transformers(name)
    config_class, model_class = known[values.pop("architecture")]
    torch.set_default_dtype({"bf16": torch.bfloat16, "fp32": torch.float32}[dtype])
    model = model_class(config_class(**values)).train()
    torch.set_default_dtype(torch.float32)
    model.config.use_cache = False
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer, ids = Lomo(model, lr=RATE), torch.from_numpy(tokens)[None]

    def step() -> None:
        optimizer.fused_backward(model(input_ids=ids, labels=ids).loss, RATE)

    return step


def serve(side: str, options: argparse.Namespace, model: Path, work: Path, pipe: Connection) -> None:
    """Make a step whenever asked; answer with its seconds, or with its profile."""
    from benchmarks.synthetic import CONFIGS
    from featherback.engine import kernels
    from featherback.runs.profile import table

    kernels.set_threads(options.threads)
    tokens = np.random.default_rng(0).integers(0, CONFIGS[options.model].vocab_size, options.tokens)
    if side in OURS:
        step = OURS[side](model, tokens, work)
    else:
        step = by_torch(side.split()[-1], options.authors, options.model, tokens, options.threads)
    step()
    now = time.process_time if options.cpu_time else time.perf_counter
    pipe.send(None)
    while (asked := pipe.recv()) is not None:
        kernels.profile(asked == "profile")
        start, started = now(), time.perf_counter()
        step()
        seconds, on_the_clock = now() - start, time.perf_counter() - started
        kernels.profile(False)
        pipe.send(table(kernels.profile_report(), on_the_clock) if asked == "profile" else seconds)


OURS = {"LoRA, MeSP": lora, "whole, LOMO": lomo}


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--torch", nargs="*", default=[], choices=["bf16", "fp32"])
    parser.add_argument("--authors", default="build/authors")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="whole-step-") as folder:
        measure(options, Path(folder))


def measure(options: argparse.Namespace, folder: Path) -> None:
    """All sides in turn; a Markdown table."""
    from benchmarks.synthetic import write_synthetic
    from featherback.engine.formats.types import TensorType

    model = write_synthetic(folder / "model.gguf", options.model, TensorType.BF16)
    sides = [*OURS, *(f"PyTorch, LOMO {dtype}" for dtype in options.torch)]
    start = multiprocessing.get_context("spawn")
    pipes, processes = dict[str, Connection](), []
    for side in sides:
        pipes[side], other = start.Pipe()
        processes.append(start.Process(target=serve, args=(side, options, model, folder, other), daemon=True))
        processes[-1].start()
        pipes[side].recv()
    rounds = []
    for number in range(options.rounds):
        rounds.append({side: ask(pipes[side]) for side in sides})
        print(number + 1, {side: round(s, 2) for side, s in rounds[-1].items()}, file=sys.stderr, flush=True)
    print(f"| {options.model}, {options.tokens} tokens | s per step | least | of LoRA's | of LOMO's |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for side in sides:
        times = [each[side] for each in rounds]
        ratios = (median(each[side] / each[other] for each in rounds) for other in OURS)
        print(f"| {side} | {median(times):.2f} | {min(times):.2f} | {' | '.join(f'{r:.2f}' for r in ratios)} |")
    for side in OURS if options.profile else ():
        print(f"\n{side}\n" + "\n".join(ask(pipes[side], "profile")), flush=True)
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send(None)
        process.join()


def ask(pipe: Connection, what: str = "step") -> Any:
    """The answer of a side."""
    pipe.send(what)
    return pipe.recv()


if __name__ == "__main__":
    main()
