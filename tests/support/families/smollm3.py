"""SmolLM3: every fourth layer does not rotate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featherback.engine.formats.types import TensorType
from featherback.models.families.smollm3 import SmolLM3Config
from tests.support.families import converter
from tests.support.families.base import YARN, Cases, Family
from tests.support.families.llama import TINY_LLAMA
from tests.support.families.twin import Twin, entry, layer_types, rope

if TYPE_CHECKING:
    from gguf import GGUFReader

# Its fourth layer does not rotate, its fifth does.
TINY_SMOLLM3 = SmolLM3Config(
    **{**vars(TINY_LLAMA), "architecture": "smollm3", "rms_norm_eps": 1e-6, "num_hidden_layers": 5}, rope_layers=()
)


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    """Every fourth layer does not rotate: the file has no place to say otherwise."""
    from transformers import SmolLM3Config, SmolLM3ForCausalLM

    own: dict[str, Any] = {"no_rope_layer_interval": 4, "pad_token_id": None} | rope(reader)
    if (window := entry(reader, "attention.sliding_window")) is not None:
        types = layer_types(entry(reader, "attention.sliding_window_pattern"))
        own |= {"use_sliding_window": True, "sliding_window": window, "layer_types": types}
    return Twin(SmolLM3Config, SmolLM3ForCausalLM, own, interleaved=True)


def variants() -> Cases:
    return {
        "smollm3-window": (
            replace(
                TINY_SMOLLM3, num_hidden_layers=4, windows=(0, 0, 0, 7), tie_word_embeddings=False, rope_scaling=YARN
            ),
            TensorType.F16,
        )
    }


FAMILY = Family(
    TINY_SMOLLM3,
    TensorType.Q4_0,
    twin,
    variants=variants,
    hf={
        "smollm3": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6}},
        "smollm3, yarn": {"tie_word_embeddings": False, "rope_parameters": converter.YARN},
    },
)
