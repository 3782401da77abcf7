"""Gemma 2: four norms a block, from one; capped scores and logits; every second layer local."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from featherback.engine.formats.types import TensorType
from featherback.models.families.gemma2 import GemmaConfig
from tests.support.families.base import Cases, Family
from tests.support.families.twin import FOUR_NORMS, Twin, entry, layer_types, rope

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

TINY_GEMMA2 = GemmaConfig(
    architecture="gemma2",
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    vocab_size=101,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    max_position_embeddings=512,
    tie_word_embeddings=True,
    attention_bias=False,
    rope_interleaved=False,
    windows=(7, 0, 7),
    attention_scale=float(np.float32(20**-0.5)),  # query_pre_attn_scalar is not head_dim
    attention_softcap=3.0,
    final_softcap=2.0,
)
LLAMA_CPP = {"attention_scale": float(np.float32(32**-0.5))}
"""The scale for heads of 32: llama.cpp ignores the scale that a Gemma file states."""
GELU_BOUND = 2e-3
"""llama.cpp looks GELU up in a table of F16: half a unit in its last place is 2^-12 of a value."""


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    """What the file does not say is left to transformers' own defaults, but the local layers' number."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    layers = entry(reader, "block_count")
    scale = entry(reader, "attention.scale", head_dim**-0.5)
    local = entry(reader, "attention.sliding_window_pattern", [True, False] * layers)
    stated = {
        "sliding_window": entry(reader, "attention.sliding_window"),
        "attn_logit_softcapping": entry(reader, "attn_logit_softcapping"),
        "final_logit_softcapping": entry(reader, "final_logit_softcapping"),
    }
    given = {name: value or None for name, value in stated.items() if value is not None}  # 0: no cap
    own = {"query_pre_attn_scalar": round(scale**-2), "layer_types": layer_types(local)[:layers]}
    return Twin(Gemma2Config, Gemma2ForCausalLM, own | given | rope(reader), FOUR_NORMS, norms_from_one=True)


def converted(writer: GGUFWriter, c: Any) -> None:
    """Nothing of the scale, nor of the rotary base."""
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_attn_logit_softcapping(c.attn_logit_softcapping)
    writer.add_final_logit_softcapping(c.final_logit_softcapping)
    writer.add_sliding_window(c.sliding_window)


def variants() -> Cases:
    return {
        "gemma2-untied": (
            replace(TINY_GEMMA2, tie_word_embeddings=False, attention_softcap=0.0, final_softcap=0.0),
            TensorType.Q4_0,
        )
    }


FAMILY = Family(
    TINY_GEMMA2,
    TensorType.Q8_0,
    twin,
    variants=variants,
    compositions=(),  # gemma3's
    # transformers reads no more of it
    transformers={"head_dim": 256, "attention_scale": 1 / 16, "attention_softcap": 50.0, "final_softcap": 30.0},
    llama_cpp=LLAMA_CPP,
    llama_cpp_bound=GELU_BOUND,
    mlx={"windows": (512, 0, 512)},  # mlx-lm follows no window of it,
    hf={
        "gemma2": {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 8,
            "attn_logit_softcapping": 20.0,
            "final_logit_softcapping": 5.0,
        }
    },
    converted=converted,
)
