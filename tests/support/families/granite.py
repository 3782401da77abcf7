"""Granite: factors of embeddings, residuals, scores and logits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from featherback.engine.formats.types import TensorType
from featherback.models.families.granite import GraniteConfig
from tests.support.families.base import Cases, Family, llama3
from tests.support.families.llama import TINY_LLAMA
from tests.support.families.twin import Twin, entry, rope

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

# eps is large enough that the norms of small embeddings feel it.
TINY_GRANITE = GraniteConfig(
    **{**vars(TINY_LLAMA), "architecture": "granite", "rms_norm_eps": 1e-2},
    embedding_scale=12.0,
    residual_scale=float(np.float32(0.22)),
    attention_scale=0.125,
    logit_divisor=8.0,
)


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    from transformers import GraniteConfig, GraniteForCausalLM

    multipliers = {
        "embedding_multiplier": entry(reader, "embedding_scale", 1.0),
        "residual_multiplier": entry(reader, "residual_scale", 1.0),
        "attention_multiplier": entry(reader, "attention.scale", head_dim**-0.5),
        "logits_scaling": entry(reader, "logit_scale"),
    }
    return Twin(GraniteConfig, GraniteForCausalLM, multipliers | rope(reader), interleaved=True)


def converted(writer: GGUFWriter, c: Any) -> None:
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_vocab_size(c.vocab_size)
    writer.add_rope_dimension_count(c.hidden_size // c.num_attention_heads)
    writer.add_attention_scale(c.attention_multiplier)
    writer.add_embedding_scale(c.embedding_multiplier)
    writer.add_residual_scale(c.residual_multiplier)
    writer.add_logit_scale(c.logits_scaling)


def variants() -> Cases:
    return {
        "granite-llama3-rope": (replace(TINY_GRANITE, rope_scaling=llama3(TINY_GRANITE)), TensorType.Q8_0),
        "granite-untied": (replace(TINY_GRANITE, tie_word_embeddings=False, residual_scale=1.0), TensorType.Q4_0),
    }


FAMILY = Family(
    TINY_GRANITE,
    TensorType.Q8_0,
    twin,
    variants=variants,
    compositions=(),
    hf={
        "granite": {
            "attention_multiplier": 0.2,
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 3.0,
        }
    },
    converted=converted,
)  # llama's
