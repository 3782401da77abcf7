"""What llama.cpp's converter writes of a configuration of transformers. Nothing of Featherback is imported here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gguf import GGUFWriter

ORIGINAL, CONTEXT = 24, 96
"""Tokens before a rope is stretched, and after."""
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}

Keys = Callable[["GGUFWriter", Any], None]
"""Writes a family's own keys of a configuration."""


def usual(writer: GGUFWriter, c: Any) -> None:
    """Write the keys that Llama, Qwen and SmolLM have."""
    rope, head_dim = c.rope_parameters, getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_vocab_size(c.vocab_size)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if c.model_type in ("llama", "smollm3"):
        writer.add_rope_dimension_count(head_dim)
    _scaling(writer, rope, head_dim)


def _scaling(writer: GGUFWriter, rope: dict[str, Any], head_dim: int) -> None:
    from gguf import RopeScalingType

    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if rope.get("beta_fast") is not None:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if rope["rope_type"] == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        context, factors = rope["original_max_position_embeddings"], []
        for index in range(0, head_dim, 2):
            wavelength = 2 * math.pi * rope["rope_theta"] ** (index / head_dim)
            if wavelength < context / high:
                factors.append(1.0)
            elif wavelength > context / low:
                factors.append(rope["factor"])
            else:
                smooth = (context / wavelength - low) / (high - low)
                factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
        writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
