"""Qwen 3: norms of q's and k's heads, whose size is not width / heads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from featherback.engine.formats.types import TensorType
from tests.support.families import converter
from tests.support.families.base import YARN, Cases, Family
from tests.support.families.qwen2 import TINY_QWEN2
from tests.support.families.twin import Twin, late_window, rope

if TYPE_CHECKING:
    from gguf import GGUFReader

TINY_QWEN3 = replace(TINY_QWEN2, architecture="qwen3", attention_bias=False, head_dim=32)


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Twin(Qwen3Config, Qwen3ForCausalLM, late_window(reader) | rope(reader))


def variants() -> Cases:
    return {
        "qwen3-yarn": (replace(TINY_QWEN3, rope_scaling=YARN), TensorType.Q8_0),
        "qwen3-untied-window": (
            replace(TINY_QWEN3, tie_word_embeddings=False, num_hidden_layers=3, windows=(0, 7, 7)),
            TensorType.Q8_0,
        ),
    }


# 128 is the head size that transformers takes, whatever the file says.
FAMILY = Family(
    TINY_QWEN3,
    TensorType.Q4_0,
    twin,
    variants=variants,
    transformers={"head_dim": 128},
    hf={
        "qwen3, yarn of other turns": {
            "head_dim": 32,
            "rope_parameters": converter.YARN | {"beta_fast": 4.0, "beta_slow": 0.5},
        }
    },
)
