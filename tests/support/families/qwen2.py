"""Qwen 2 and 2.5: biases of q, k and v; windows in the layers from some number on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from featherback.engine.formats.types import TensorType
from tests.support.families import converter
from tests.support.families.base import YARN, Cases, Family
from tests.support.families.llama import TINY_LLAMA
from tests.support.families.twin import Twin, late_window, rope

if TYPE_CHECKING:
    from gguf import GGUFReader

TINY_QWEN2 = replace(
    TINY_LLAMA, architecture="qwen2", rms_norm_eps=1e-6, rope_theta=1e6, attention_bias=True, rope_interleaved=False
)


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Twin(Qwen2Config, Qwen2ForCausalLM, late_window(reader) | rope(reader))


def variants() -> Cases:
    return {
        "qwen2-one-kv-head": (replace(TINY_QWEN2, num_key_value_heads=1, tie_word_embeddings=False), TensorType.F32),
        "qwen2-late-window": (
            replace(TINY_QWEN2, num_hidden_layers=3, windows=(0, 12, 12), rope_scaling=YARN),
            TensorType.Q8_0,
        ),
    }


FAMILY = Family(
    TINY_QWEN2,
    TensorType.Q4_1,
    twin,
    variants=variants,
    compositions=("qwen2", "qwen2-late-window"),
    transformers={},
    hf={"qwen2, yarn": {"rope_parameters": converter.YARN | {"rope_theta": 1e6}}},
)
