"""Tiny models with every awkward feature, each beside its twin in transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from featherback import models
from featherback.architecture.config import ModelConfig
from featherback.architecture.rope.linear import Linear
from featherback.models.model import Model
from featherback.weights.types import TensorType
from tests.support.oracle import reference_model
from tests.support.tiny_models import (
    TINY_GEMMA2,
    TINY_GEMMA3,
    TINY_GRANITE,
    TINY_LLAMA,
    TINY_OLMO2,
    TINY_PHI3,
    TINY_PHI4,
    TINY_QWEN2,
    TINY_QWEN3,
    TINY_SMOLLM3,
    TINY_WIDE,
    YARN,
    Types,
    llama3,
    tiny,
    write_tiny,
)

CASES: dict[str, tuple[ModelConfig, Types]] = {
    "llama": (TINY_LLAMA, TensorType.Q4_0),
    "llama-untied": (
        tiny(TINY_LLAMA, tie_word_embeddings=False, num_key_value_heads=4, vocab_size=1030),
        TensorType.Q8_0,
    ),
    "llama3-rope": (tiny(TINY_LLAMA, rope_scaling=llama3(TINY_LLAMA)), TensorType.F16),
    "llama-linear": (tiny(TINY_LLAMA, rope_scaling=Linear(4.0)), TensorType.Q8_0),
    "qwen2-biases": (TINY_QWEN2, TensorType.Q4_1),
    "qwen2-one-kv-head": (tiny(TINY_QWEN2, num_key_value_heads=1, tie_word_embeddings=False), TensorType.F32),
    "mistral-window": (tiny(TINY_LLAMA, windows=(7, 7)), TensorType.Q4_0),
    "qwen2-late-window": (tiny(TINY_QWEN2, num_hidden_layers=3, windows=(0, 12, 12)), TensorType.Q8_0),
    "ministral": (tiny(TINY_LLAMA, num_hidden_layers=3, windows=(12, 0, 12)), TensorType.Q4_0),
    "smollm3": (TINY_SMOLLM3, TensorType.Q4_0),
    "smollm3-window": (
        tiny(TINY_SMOLLM3, num_hidden_layers=4, windows=(0, 0, 0, 7), tie_word_embeddings=False),
        TensorType.F16,
    ),
    "qwen3": (TINY_QWEN3, TensorType.Q4_0),
    "qwen3-yarn": (tiny(TINY_QWEN3, rope_scaling=YARN), TensorType.Q8_0),
    "qwen3-untied-window": (
        tiny(TINY_QWEN3, tie_word_embeddings=False, num_hidden_layers=3, windows=(0, 7, 7)),
        TensorType.Q8_0,
    ),
    "gemma2": (TINY_GEMMA2, TensorType.Q8_0),
    "gemma3": (TINY_GEMMA3, TensorType.Q8_0),
    "gemma3-wide-window": (
        tiny(
            TINY_GEMMA3,
            tie_word_embeddings=False,
            windows=(512,) * 5 + (0, 512),
            attention_softcap=0.0,
            rope_divisor=1.0,
        ),
        TensorType.Q4_1,
    ),
    "granite": (tiny(TINY_GRANITE, rope_scaling=llama3(TINY_GRANITE)), TensorType.Q8_0),
    "olmo2": (TINY_OLMO2, TensorType.Q4_1),
    "phi3": (TINY_PHI3, TensorType.Q4_0),
    "phi3-window": (
        tiny(TINY_PHI3, tie_word_embeddings=True, num_key_value_heads=1, windows=(7, 7)),
        {"": TensorType.Q8_0, "qkv_proj": TensorType.F16},
    ),
    "phi4-mini": (TINY_PHI4, TensorType.Q8_0),
    "wide-heads": (tiny(TINY_WIDE, intermediate_size=768), {"": TensorType.Q4_K, "down_proj": TensorType.Q6_K}),
}


@dataclass(frozen=True)
class Twins:
    """One set of weights, read by us and by transformers."""

    path: Path
    model: Model
    reference: PreTrainedModel


@pytest.fixture(scope="session")
def all_twins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Twins]:
    folder = tmp_path_factory.mktemp("tiny")
    paths = {name: write_tiny(folder / f"{name}.gguf", config, types) for name, (config, types) in CASES.items()}
    return {name: Twins(path, models.load(path), reference_model(path)) for name, path in paths.items()}


@pytest.fixture(params=CASES)
def twins(all_twins: dict[str, Twins], request: pytest.FixtureRequest) -> Twins:
    """Each of the models in turn."""
    return all_twins[request.param]


@pytest.fixture(scope="session")
def wide(all_twins: dict[str, Twins]) -> Twins:
    """The model of several MLP tiles."""
    return all_twins["wide-heads"]
