"""What --keep-precision 2bit does to memory, time, gradients and the loss: python -m benchmarks.slopes TEXT TEXT2

First table: a StarCoder2 of GPT-2 small's shape with random weights; bytes kept, and processor time of a step on one
thread, alternating; then the time of the norms. Second table: a small StarCoder2 that transformers trains on the bytes
of TEXT. An adapter is then trained on the bytes of TEXT2, once with each plan, from the same start and on the same
batches.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.markdown import table
from benchmarks.synthetic import CONFIGS, write_synthetic
from featherback import methods, models, optim
from featherback.core.noise import Draw
from featherback.core.sizes import MB
from featherback.data.batch import Batch
from featherback.engine import kernels
from featherback.engine.host.paged import PagedArray
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import LoRA
from featherback.models.model import Model
from featherback.runs.cosine import cosines

TARGETS = "q,k,v,o,up"
PLANS: Mapping[str, Mapping[str, str] | None] = {
    "MeSP, up computed again": None,
    "up kept, bf16": {},
    "up kept, 8 bits": {"up": "blocks8"},
    "up kept, 2-bit slopes": {"up": "regelu2"},
}
"""Plan -> the encodings of what it keeps; None: it keeps nothing."""
SHAPE = "gpt2-small-shape"
STEPS, PRETRAINING, BATCH, LENGTH = 300, 600, 4, 128
SMALL = {
    "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": LENGTH, "bos_token_id": 0,
    "eos_token_id": 0, "initializer_range": 0.05,
}  # fmt: skip


def plan_of(model: Model, tokens: int, encodings: Mapping[str, str] | None, compute: str = "bf16") -> Plan:
    plan = Plan.default(model.config, tokens=tokens, compute=compute)
    return plan if encodings is None else replace(plan, keep={"up": len(model.blocks)}, encodings=encodings)


def measured(model: Model, tokens: int = 256, rounds: int = 5) -> list[list[Any]]:
    """Return a line per plan: kept bytes, time of a step beside the first plan's, cosine."""
    adapter = LoRA(model, 8, targets=TARGETS)
    random = np.random.default_rng(0)
    for layer in adapter.layout.adapted:  # as in training, where B is not zero
        adapter.parameters.write(layer, (0.02 * random.standard_normal(adapter.layer_size)).astype(np.float32))
    batch = Batch.from_sequences([random.integers(0, model.config.vocab_size, tokens)])
    gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
    at_work = {
        name: methods.create("mesp", model, adapter, plan_of(model, tokens, encodings))
        for name, encodings in PLANS.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in PLANS}
    for _ in range(rounds + 1):
        for name, method in at_work.items():
            gradients.clear()
            start = time.process_time()
            method.gradients(batch, 1 / batch.n_targets, gradients)
            seconds[name].append(time.process_time() - start)
    lines = []
    for name, encodings in PLANS.items():
        plan = plan_of(model, tokens, encodings, "fp32")
        gradients.clear()
        found = cosines(plan, batch, lambda each: methods.create("mesp", model, adapter, each), gradients, Draw())
        ratio = np.median([a / b for a, b in zip(seconds[name][1:], next(iter(seconds.values()))[1:])])
        kept = at_work[name].resources.kept.high_water / MB
        lines.append([name, f"{kept:.2f} MB", f"{ratio:.3f}", *(f"{each:.4f}" for each in found)])
    return lines


def norm_share(model: Model, tokens: int = 256, rounds: int = 50) -> float:
    """Return the share of a step that computing the norms of a block's inputs again takes."""
    width, layers = model.config.hidden_size, len(model.blocks)
    x, out = (
        np.random.default_rng(0).standard_normal((tokens, width)).astype(np.float32),
        np.empty((tokens, width), np.uint16),
    )
    gain, shift = np.ones(width, np.float32), np.zeros(width, np.float32)
    start = time.process_time()
    for _ in range(rounds):
        kernels.layer_norm(x, gain, shift, 1e-5, out)
    norms = 2 * layers * (time.process_time() - start) / rounds
    adapter = LoRA(model, 8, targets=TARGETS)
    method = methods.create("mesp", model, adapter, plan_of(model, tokens, None))
    batch = Batch.from_sequences([np.arange(tokens) % model.config.vocab_size])
    gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
    method.gradients(batch, 1.0, gradients)
    start = time.process_time()
    method.gradients(batch, 1.0, gradients)
    return norms / (time.process_time() - start)


def rows_of(text: bytes, count: int, seed: int) -> NDArray[np.int32]:
    """Return `count` random pieces of the text, shape (count, LENGTH)."""
    starts = np.random.default_rng(seed).integers(0, len(text) - LENGTH, count)
    return np.stack([np.frombuffer(text[start : start + LENGTH], np.uint8) for start in starts]).astype(np.int32)


def pretrained(folder: Path, text: bytes) -> Path:
    """Train a small StarCoder2 from random weights with transformers and AdamW; return its folder."""
    import torch
    from transformers import Starcoder2Config, Starcoder2ForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Starcoder2ForCausalLM(Starcoder2Config(**SMALL)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, PRETRAINING)
    for step in range(PRETRAINING):
        tokens = torch.from_numpy(rows_of(text, 2 * BATCH, step)).long()
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    print(f"trained from random weights: {PRETRAINING} steps, last loss {loss.item():.3f}", flush=True)
    model.save_pretrained(folder)
    return folder


def adapted(
    model: Model, text: bytes, held_out: bytes, encodings: Mapping[str, str] | None, rate: float, seed: int
) -> Any:
    """Train an adapter with a plan; return the held-out losses before and after, and the cosines on the way."""
    adapter = LoRA(model, 8, targets=TARGETS, seed=seed)
    optimizer = optim.create("adamw", adapter.parameters, adapter.layout.slots)
    gradients, exact = (PagedArray(adapter.parameters.layers, adapter.layer_size) for _ in range(2))
    plan = plan_of(model, BATCH * LENGTH, encodings, "fp32")
    method = methods.create("mesp", model, adapter, plan)
    seen = []

    def loss() -> float:
        batches = [Batch.from_sequences(list(rows)) for rows in np.split(rows_of(held_out, 16 * BATCH, 99), 16)]
        return sum(method.loss(batch) for batch in batches) / sum(batch.n_targets for batch in batches)

    before = loss()
    for step in range(STEPS):
        batch = Batch.from_sequences(list(rows_of(text, BATCH, 1000 * seed + step)))
        if encodings and step % 100 == 0:
            exact.clear()
            seen.append(
                cosines(plan, batch, lambda each: methods.create("mesp", model, adapter, each), exact, Draw())[0]
            )
        gradients.clear()
        method.gradients(batch, 1 / batch.n_targets, gradients)
        decay = 0.5 * (1 + np.cos(np.pi * step / STEPS))
        optimizer.step(gradients, rate * decay, optim.clip_scale(optim.global_norm(gradients), 1.0))
    after = loss()
    method.close()
    return before, after, seen


def main(first: str, second: str) -> None:
    kernels.set_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        shape = models.load(write_synthetic(Path(folder) / "shape.gguf", SHAPE))
        heads = ["plan", "kept", "time of a step", "cosine", "lowest layer"]
        print(table(heads, measured(shape)), flush=True)
        print(f"computing the norms of the blocks again: {norm_share(shape):.2%} of a step", flush=True)
        texts = [Path(name).read_bytes() for name in (first, second)]
        model = models.load(pretrained(Path(folder) / "small", texts[0][: 9 * len(texts[0]) // 10]))
        train, held_out = texts[1][: 9 * len(texts[1]) // 10], texts[1][9 * len(texts[1]) // 10 :]
        lines = []
        for rate in (1e-3, 3e-3):
            for name in ("MeSP, up computed again", "up kept, 2-bit slopes"):
                found = [adapted(model, train, held_out, PLANS[name], rate, seed) for seed in (1, 2)]
                losses = ", ".join(f"{after:.4f}" for _, after, _ in found)
                seen = ", ".join(f"{each:.3f}" for each in found[0][2]) or "1"
                lines.append([f"{rate:g}", name, f"{found[0][0]:.4f}", losses, seen])
                print(lines[-1], flush=True)
        print(table(["learning rate", "plan", "before", "held-out loss (two seeds)", "cosine"], lines))


if __name__ == "__main__":
    assert SHAPE in CONFIGS
    main(*sys.argv[1:3])
