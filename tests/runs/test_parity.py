"""Ten AdamW steps from the same adapter over the same batches: PEFT's losses, its last adapter or the mean of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.numpy import load_file

from featherback import models
from featherback.data.token_file import TokenFile
from featherback.models.adapter import LoRA
from featherback.runs.config import TrainConfig
from featherback.runs.preparation import prepare_run
from featherback.runs.stream import BatchStream
from featherback.runs.trainer import train_run
from tests.runs.conftest import SEQ_LEN, sequences
from tests.support.oracle import PEFT_PREFIX, reference_model
from tests.support.tiny_models import TINY_LLAMA, TINY_QWEN2, write_tiny

STEPS = 10
LR, ALPHA, RANK, SEED, ACCUMULATE, BATCH = 2e-3, 8.0, 4, 3, 2, 2
CLIP = 1.0

State = dict[str, np.ndarray]


@pytest.mark.parametrize("keep", ["last", "better"])
@pytest.mark.parametrize("base", [TINY_LLAMA, TINY_QWEN2], ids=["llama", "qwen2"])
def test_ten_steps_are_pefts(tmp_path: Path, base: Any, keep: str) -> None:
    path = write_tiny(tmp_path / "m.gguf", base)
    config = TrainConfig(
        model=str(path),
        data="tokens",
        out=str(tmp_path / "run"),
        rank=RANK,
        alpha=ALPHA,
        seq_len=SEQ_LEN,
        batch_size=BATCH,
        accumulate=ACCUMULATE,
        steps=STEPS,
        learning_rate=LR,
        schedule="cosine",
        warmup=2,
        keep=keep,
        max_grad_norm=CLIP,
        compute="fp32",
        seed=SEED,
        optimizer_options={"weight_decay": 0.01},
    )
    run = prepare_run(config, data=sequences(10))
    initial = LoRA(models.load(path), RANK, ALPHA, seed=SEED).state()
    losses, states = _with_peft(path, initial, TokenFile(run.tokens / "train.tokens"), run.config)
    weights = [0] * (STEPS - 1) + [1] if keep == "last" else list(range(1, STEPS + 1))
    state = {name: np.average([each[name] for each in states], 0, weights) for name in initial}
    train_run(run)
    ours = [line["loss"] for line in run.metrics()]
    np.testing.assert_allclose(ours, losses, rtol=1e-4)
    trained = load_file(run.path / "adapter_model.safetensors")
    for name, expected in state.items():
        error = np.linalg.norm(trained[PEFT_PREFIX + name] - expected)
        assert error <= 1e-3 * np.linalg.norm(expected), name
        assert np.linalg.norm(expected - initial[name]) > 0, f"{name} was not trained"
    last = np.linalg.norm([np.linalg.norm(states[-1][name] - state[name]) for name in state])
    assert (last == 0) == (keep == "last")  # or the check could not tell them apart


def _with_peft(path: Path, initial: State, tokens: TokenFile, config: TrainConfig) -> tuple[list[float], list[State]]:
    """Each step's loss and adapter of the same training by torch: autograd, AdamW, clip_grad_norm_, a rate by hand."""
    model = get_peft_model(
        reference_model(path),
        LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=list(config.targets)),
    )
    parameters = {
        name.removeprefix(PEFT_PREFIX).replace(".default.", "."): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    assert parameters.keys() == initial.keys()
    for name, parameter in parameters.items():
        parameter.data = torch.from_numpy(initial[name].copy())
    optimizer = torch.optim.AdamW(parameters.values(), lr=LR, weight_decay=config.optimizer_options["weight_decay"])
    stream = BatchStream(tokens, config.batching, SEED)
    losses: list[float] = []
    states: list[State] = []
    for step in range(STEPS):
        group = stream.take(ACCUMULATE)
        assert group is not None
        targets = group.n_terms
        loss = torch.zeros(())
        for batch in group.batches:
            for start, end in zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False):
                logits = model(input_ids=torch.from_numpy(batch.tokens[start:end].copy())[None].long()).logits[0]
                wanted = torch.from_numpy(batch.targets[start:end].copy()).long()
                loss = loss + torch.nn.functional.cross_entropy(logits, wanted, ignore_index=-100, reduction="sum")
        optimizer.zero_grad()
        (loss / targets).backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), CLIP)
        warm = (step + 1) / 2 if step < 2 else (1 + np.cos(np.pi * (step - 2) / (STEPS - 2))) / 2
        optimizer.param_groups[0]["lr"] = LR * warm
        optimizer.step()
        losses.append(loss.item() / targets)
        states.append({name: parameter.detach().numpy().copy() for name, parameter in parameters.items()})
    return losses, states
