"""OLMo 2: norms behind attention and MLP only, and of the whole of q and k."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featherback.engine.formats.types import TensorType
from tests.support.families.base import Cases, Family
from tests.support.families.qwen2 import TINY_QWEN2
from tests.support.families.twin import BLOCK, Twin, rope

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

TINY_OLMO2 = replace(
    TINY_QWEN2, architecture="olmo2", attention_bias=False, rms_norm_eps=1e-5, tie_word_embeddings=False
)


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    from transformers import Olmo2Config, Olmo2ForCausalLM

    block = {part: name for part, name in BLOCK.items() if part not in ("attn_norm", "ffn_norm")} | {
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
    return Twin(Olmo2Config, Olmo2ForCausalLM, {"pad_token_id": None} | rope(reader), block)


def converted(writer: GGUFWriter, c: Any) -> None:
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])


def variants() -> Cases:
    return {"olmo2-tied": (replace(TINY_OLMO2, tie_word_embeddings=True, num_key_value_heads=4), TensorType.Q8_0)}


FAMILY = Family(
    TINY_OLMO2,
    TensorType.Q4_1,
    twin,
    variants=variants,
    hf={"olmo2": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}},
    converted=converted,
)
