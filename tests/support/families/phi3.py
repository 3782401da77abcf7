"""Phi 3: fused projections; Phi-4-mini: long rope over three quarters of each head."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from featherback.engine.formats.types import TensorType
from featherback.models.rope.longrope import LongRope
from tests.support.families.base import Cases, Family
from tests.support.families.converter import CONTEXT, ORIGINAL
from tests.support.families.qwen2 import TINY_QWEN2
from tests.support.families.twin import BLOCK, Twin, entry, rope

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

TINY_PHI3 = replace(TINY_QWEN2, architecture="phi3", attention_bias=False, head_dim=32, tie_word_embeddings=False)
# Phi-4-mini: three quarters of a head are rotated, and the frequencies differ in sequences of more than 39 tokens.
TINY_PHI4 = replace(
    TINY_PHI3,
    hidden_size=128,  # transformers wants heads of hidden_size / heads here
    tie_word_embeddings=True,
    rotary_dim=24,
    rope_scaling=LongRope(
        short=np.linspace(1, 1.5, 12).astype(np.float32),
        long=np.geomspace(1, 30, 12).astype(np.float32),
        original_context=39,
        stated_attention_factor=float(np.float32(1.19)),
    ),
)
OWN_WIDTH = {"head_dim": 24}
"""For peers that want heads of width / heads."""


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    """Where there is a window, all layers have it."""
    from transformers import Phi3Config, Phi3ForCausalLM

    own = {"sliding_window": entry(reader, "attention.sliding_window"), "pad_token_id": None} | rope(reader)
    if (context := entry(reader, "rope.scaling.original_context_length")) is not None:
        own["original_max_position_embeddings"] = context
    rotated = entry(reader, "rope.dimension_count", head_dim)
    own["rope_parameters"]["partial_rotary_factor"] = rotated / head_dim
    block = BLOCK | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
    return Twin(Phi3Config, Phi3ForCausalLM, own, block)


def converted(writer: GGUFWriter, c: Any) -> None:
    rope = c.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    rotated = int(rope.get("partial_rotary_factor", 1.0) * c.hidden_size) // c.num_attention_heads
    writer.add_rope_dimension_count(rotated)
    writer.add_sliding_window(c.sliding_window or 0)
    writer.add_rope_scaling_orig_ctx_len(c.original_max_position_embeddings)
    if "long_factor" in rope:
        _long_rope(writer, c, rope)


def _long_rope(writer: GGUFWriter, c: Any, rope: dict[str, Any]) -> None:
    """The type of the scaling is not said: the tensors tell."""
    stretched = c.max_position_embeddings / c.original_max_position_embeddings
    factor = math.sqrt(1 + math.log(stretched) / math.log(c.original_max_position_embeddings))
    writer.add_rope_scaling_attn_factors(factor)
    for length in ("long", "short"):
        writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], np.float32))


def variants() -> Cases:
    return {
        "phi3-window": (
            replace(TINY_PHI3, tie_word_embeddings=True, num_key_value_heads=1, windows=(7, 7)),
            {"": TensorType.Q8_0, "qkv_proj": TensorType.F16},
        )
    }


FAMILY = Family(
    TINY_PHI3,
    TensorType.Q4_0,
    twin,
    more={"phi4-mini": (TINY_PHI4, TensorType.Q8_0)},
    variants=variants,
    transformers=OWN_WIDTH | {"vocab_size": 32_064},  # its padding token is 32,000
    llama_cpp=OWN_WIDTH,
    mlx=OWN_WIDTH,
    hf={
        "phi4-mini": {
            "tie_word_embeddings": True,
            "original_max_position_embeddings": ORIGINAL,
            "rope_parameters": {
                "rope_type": "longrope",
                "partial_rotary_factor": 0.75,
                "short_factor": np.linspace(1, 1.5, 6).tolist(),
                "long_factor": np.linspace(1, 20, 6).tolist(),
            },
        },
        "phi3 of short context": {
            "original_max_position_embeddings": CONTEXT,
            "rope_parameters": {"rope_type": "default"},
        },
    },
    converted=converted,
)
