"""Cosines and sines of every rotary scaling against transformers' own rotary module, from the same config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    MinistralConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from featherback.engine.backend.cpu import CPU
from featherback.models import families
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.families.base import rotary
from featherback.nn.context import Context
from featherback.nn.span import spans

ORIGINAL, CONTEXT = 64, 512
LENGTHS = (3, ORIGINAL, ORIGINAL + 1, 300)

SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 50,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": None,
}
LINEAR: dict[str, Any] = {"rope_type": "linear", "factor": 3.0}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": np.linspace(1, 1.3, 16).tolist(),
    "long_factor": np.linspace(1, 20, 16).tolist(),
    "original_max_position_embeddings": ORIGINAL,
}
THREE_QUARTERS = {name: LONG[name][:12] for name in ("short_factor", "long_factor")}
BESIDE = {"original_max_position_embeddings": ORIGINAL}

CASES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any], dict[str, Any]]] = {
    "linear": (LlamaConfig, LINEAR, {}),
    "llama3": (LlamaConfig, LLAMA3, {}),
    "llama3, a context beside": (LlamaConfig, LLAMA3, {"original_max_position_embeddings": 32}),
    "llama3, qwen3": (Qwen3Config, LLAMA3, {}),
    "yarn": (Qwen2Config, YARN, {}),
    "yarn, high base": (Qwen3Config, YARN | {"rope_theta": 1e6}, {}),
    "yarn, its attention factor": (Qwen2Config, YARN | {"attention_factor": 1.3}, {}),
    "yarn, other turns": (LlamaConfig, YARN | {"beta_fast": 5.0, "beta_slow": 0.5}, {}),
    "yarn, turns of none": (LlamaConfig, YARN | {"beta_fast": 0, "beta_slow": None}, {}),
    "yarn, not rounded": (LlamaConfig, YARN | {"beta_fast": 5.0, "truncate": False}, {}),
    "yarn, mscale": (LlamaConfig, YARN | {"mscale": 1.0, "mscale_all_dim": 0.8}, {}),
    "yarn, half of mscale": (LlamaConfig, YARN | {"mscale": 2.0, "mscale_all_dim": 0}, {}),
    "yarn by the context": (SmolLM3Config, YARN | {"factor": None}, {}),
    "yarn of the whole context": (LlamaConfig, {"rope_type": "yarn", "factor": 2.0}, {}),
    "yarn that shrinks": (LlamaConfig, YARN | {"factor": 0.5}, {}),
    "yarn, one index": (LlamaConfig, YARN | {"beta_fast": 2.0, "beta_slow": 2.0, "truncate": False}, {}),
    "longrope": (LlamaConfig, LONG, {}),
    "longrope, its factor": (LlamaConfig, LONG | {"factor": 20.0}, {}),
    "longrope, its attention factor": (MinistralConfig, LONG | {"attention_factor": 0.9}, {}),
    "longrope of a shorter context": (LlamaConfig, LONG | {"factor": 0.5}, {}),
    "longrope of phi3": (Phi3Config, LONG, BESIDE),
    "su": (Phi3Config, LONG | {"rope_type": "su"}, BESIDE),
    "longrope called yarn": (Phi3Config, LONG | {"rope_type": "yarn"}, BESIDE),
    "phi3's own default of the context": (Phi3Config, LONG, {"max_position_embeddings": 8192}),
    "phi4-mini": (Phi3Config, LONG | THREE_QUARTERS | {"partial_rotary_factor": 0.75}, BESIDE),
    "phi4-mini, as it is written": (Phi3Config, LONG | THREE_QUARTERS, BESIDE | {"partial_rotary_factor": 0.75}),
    "in part, unscaled": (Phi3Config, {"rope_type": "default", "partial_rotary_factor": 0.5}, {}),
}


@pytest.mark.parametrize("style", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("case", CASES)
def test_tables_are_those_of_transformers(tmp_path: Path, case: str, style: str) -> None:
    kind, rope, beside = CASES[case]
    theta = {"rope_theta": rope.get("rope_theta", 10_000.0)}
    entries = {**SIZES, "model_type": kind.model_type, **beside, **theta, style: rope}
    module = Phi3RotaryEmbedding if kind is Phi3Config else LlamaRotaryEmbedding
    # Through JSON: transformers changes the mappings that it is given.
    theirs = module(kind(**json.loads(json.dumps(entries))))
    family = families.of_model_type(kind.model_type, tmp_path)
    turn = rotary(family.read_hf(HFConfig(tmp_path / "config.json", entries)))
    cu_seqlens = np.cumsum([0, *LENGTHS], dtype=np.int32)
    positions = np.concatenate([np.arange(n, dtype=np.int32) for n in LENGTHS])
    (span,) = spans(cu_seqlens, positions, int(cu_seqlens[-1]))
    backend = CPU("fp32")
    scratch = backend.arena(1 << 20)
    with Context(backend, scratch, "fp32", span).at(span, (turn,)) as ctx:
        ours = np.stack(ctx.table(turn))
    assert ours.shape == (2, sum(LENGTHS), turn.dim // 2)
    for rows, length in span.sequences:
        expected = theirs(torch.zeros(1, length, 1), torch.arange(length)[None])
        for found, table in zip(ours[:, rows], expected, strict=True):
            # The angle, a float32 product, may differ in the last places of its frequency.
            np.testing.assert_allclose(
                found, table[0, :, : turn.dim // 2].numpy(), rtol=0, atol=4 * length * np.finfo(np.float32).eps
            )
