"""What a family's entry in the table of cases consists of, and what several entries share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from featherback.engine.formats.types import TensorType
from featherback.models.architecture.config import ModelConfig
from featherback.models.rope.llama3 import Llama3
from featherback.models.rope.yarn import Yarn
from tests.support.families.converter import Keys, usual
from tests.support.families.experts import separate
from tests.support.families.twin import TwinOf

Types = TensorType | Mapping[str, TensorType]
"""The format of a model's matrices: one for all, or by part ("q_proj"...; "" is that of the others)."""

Cases = Mapping[str, tuple[ModelConfig, Types]]

# Frequencies 0 to 2 stay, those from 8 on are divided, and those between are blended.
YARN = Yarn(factor=8.0, original_context=100, beta_fast=5.0, beta_slow=0.5)

# The parameters Llama 3.2 is published with, on a short original context so that a tiny model feels them.
LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True)
class Family:
    """One family's entry. Every test of all families is parametrised by these fields."""

    model: ModelConfig
    """Tiny, with what makes the family awkward."""
    types: Types
    """In which exact gradients are tested."""
    twin: TwinOf
    """The model of transformers that a GGUF file of the family describes."""
    more: Cases = field(default_factory=dict)
    """Models that every test of all families meets as well."""
    variants: Callable[[], Cases] = dict
    """More models, for exact gradients, folders and files: name -> configuration and types."""
    compositions: tuple[str, ...] | None = None
    """Cases that combine layers in different ways, one test each; None: the model itself."""
    transformers: Mapping[str, Any] | None = None
    """Changes to `model` with which transformers' own GGUF loader reads it; None: it does not know the family."""
    hf: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Configurations of transformers that are converted to GGUF as llama.cpp does it: name -> entries."""
    other_architectures: tuple[str, ...] = ()
    """Other names that a GGUF file may have for the architecture."""
    hf_type: str | None = None
    """The model_type in config.json; None: the architecture."""
    converted: Keys = usual
    """Writes the keys that llama.cpp's converter writes for this family only."""
    written: Callable[[str, np.ndarray, Any], tuple[str, np.ndarray]] | None = None
    """How the converter writes a tensor of the configuration's model, if it changes more than others."""
    separate: Callable[[Mapping[str, Any], Any], dict[str, Any]] = lambda state, config: separate(state)
    """The tensors of the configuration's model, under names and in parts that the converter knows."""
    llama_cpp: Mapping[str, Any] | None = field(default_factory=dict)
    """Changes to `model` with which llama.cpp computes the same; None: not compared."""
    llama_cpp_bound: float = 2e-4
    """Largest allowed difference between llama.cpp's logits and ours, relative to the largest logit."""
    mlx: Mapping[str, Any] | None = field(default_factory=dict)
    """Changes to `model` with which mlx-lm computes the same; None: not compared."""


def llama3(config: ModelConfig) -> Llama3:
    """The scaling LLAMA3_ROPE."""
    return Llama3(llama3_factors(config))


def llama3_factors(config: ModelConfig) -> np.ndarray:
    """Frequency factors (head_dim/2,) of LLAMA3_ROPE; tests/models/test_oracle.py compares them with transformers."""
    frequencies = config.rope_theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
    turns = LLAMA3_ROPE["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = LLAMA3_ROPE["low_freq_factor"], LLAMA3_ROPE["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / (kept + (1 - kept) / LLAMA3_ROPE["factor"])).astype(np.float32)
