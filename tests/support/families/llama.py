"""Llama, Mistral (windows), Ministral (windows in some layers): interleaved heads, Llama 3's and linear scaling."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from featherback.engine.formats.types import TensorType
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.experts import ExpertsConfig
from featherback.models.rope.linear import Linear
from tests.support.families.base import LLAMA3_ROPE, Cases, Family, llama3
from tests.support.families.converter import ORIGINAL
from tests.support.families.experts import EXPERTS, names, settings
from tests.support.families.twin import Twin, entry, layer_types, rope

if TYPE_CHECKING:
    from gguf import GGUFReader

# Shapes chosen to be awkward: no power of two but where a block of 32 needs it, grouped heads, two layers.
TINY_LLAMA = ModelConfig(
    architecture="llama",
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=24,
    vocab_size=101,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    max_position_embeddings=512,
    tie_word_embeddings=True,
    attention_bias=False,
    rope_interleaved=True,
)
TINY_MIXTRAL = ExpertsConfig(**{**vars(TINY_LLAMA), "intermediate_size": 256}, **EXPERTS)
# Rows that fill the 256-weight blocks of the K formats; head_dim is not hidden_size / heads.
TINY_WIDE = replace(TINY_LLAMA, hidden_size=256, intermediate_size=512, num_attention_heads=8, head_dim=64)


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    """A llama whose file has a window is a Mistral: all of its layers have it, unless they are listed."""
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        MinistralConfig,
        MinistralForCausalLM,
        MistralConfig,
        MistralForCausalLM,
    )

    own = rope(reader)
    if entry(reader, "expert_count"):
        from transformers import MixtralConfig, MixtralForCausalLM

        routed = settings(reader, count="num_local_experts")
        return Twin(MixtralConfig, MixtralForCausalLM, own | routed, names(), interleaved=True)
    if (window := entry(reader, "attention.sliding_window")) is None:
        own["attention_bias"] = any(tensor.name == "blk.0.attn_q.bias" for tensor in reader.tensors)
        return Twin(LlamaConfig, LlamaForCausalLM, own, interleaved=True)
    own["sliding_window"] = window
    if (local := entry(reader, "attention.sliding_window_pattern")) is not None:
        own["layer_types"] = layer_types(local)
        return Twin(MinistralConfig, MinistralForCausalLM, own, interleaved=True)
    return Twin(MistralConfig, MistralForCausalLM, own, interleaved=True)


def variants() -> Cases:
    return {
        "mixtral": (TINY_MIXTRAL, {"": TensorType.Q8_0, "router": TensorType.F32}),
        "llama-untied": (
            replace(TINY_LLAMA, tie_word_embeddings=False, num_key_value_heads=4, vocab_size=1030),
            TensorType.Q8_0,
        ),
        "llama3-rope": (replace(TINY_LLAMA, rope_scaling=llama3(TINY_LLAMA)), TensorType.F16),
        "llama-linear": (replace(TINY_LLAMA, rope_scaling=Linear(4.0)), TensorType.Q8_0),
        "mistral-window": (replace(TINY_LLAMA, windows=(7, 7)), TensorType.Q4_0),
        "ministral": (replace(TINY_LLAMA, num_hidden_layers=3, windows=(12, 0, 12)), TensorType.Q4_0),
        "wide-heads": (replace(TINY_WIDE, intermediate_size=768), {"": TensorType.Q4_K, "down_proj": TensorType.Q6_K}),
    }


FAMILY = Family(
    TINY_LLAMA,
    TensorType.Q4_0,
    twin,
    variants=variants,
    compositions=("llama", "llama-untied", "wide-heads"),
    transformers={},
    hf={
        "llama": {"attention_bias": False, "rope_parameters": {"rope_type": "default"}},
        "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0}},
        "llama3": {
            "head_dim": 32,
            "rope_parameters": {**LLAMA3_ROPE, "factor": 8.0, "original_max_position_embeddings": ORIGINAL},
        },
    },
)
