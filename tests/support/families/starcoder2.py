"""StarCoder2: LayerNorms, an MLP without a gate, and biases everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featherback.engine.formats.types import TensorType
from tests.support.families.base import Cases, Family
from tests.support.families.qwen2 import TINY_QWEN2
from tests.support.families.twin import BLOCK, Twin, entry, rope

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

TINY_STARCODER2 = replace(TINY_QWEN2, architecture="starcoder2", rms_norm_eps=1e-5)


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    """Where there is a window, all layers have it."""
    from transformers import Starcoder2Config, Starcoder2ForCausalLM

    settings = {
        "norm_epsilon": entry(reader, "attention.layer_norm_epsilon"),
        "sliding_window": entry(reader, "attention.sliding_window"),
    }
    block = BLOCK | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
    return Twin(Starcoder2Config, Starcoder2ForCausalLM, settings | rope(reader), block)


def converted(writer: GGUFWriter, c: Any) -> None:
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_layer_norm_eps(c.norm_epsilon)


def variants() -> Cases:
    return {
        "starcoder2-window": (
            replace(TINY_STARCODER2, num_hidden_layers=3, windows=(12, 12, 12), tie_word_embeddings=False),
            TensorType.F32,
        )
    }


FAMILY = Family(
    TINY_STARCODER2,
    TensorType.Q8_0,
    twin,
    variants=variants,
    transformers={"vocab_size": 49_152, "rope_theta": 10_000.0},  # defaults, which its loader of GGUF files uses
    hf={"starcoder2": {"tie_word_embeddings": True}, "starcoder2, untied": {"tie_word_embeddings": False}},
    converted=converted,
)
