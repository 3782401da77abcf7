"""Phi-3: like Llama, but q, k and v are rows of one projection, and gate and up of another.

Adapters target the fused projections, as in PEFT: one A for all parts, and a B with the rows of the parts one below the
other. A window applies in every layer. (llama.cpp ignores it.) Phi-3 128k and Phi-4-mini use LongRoPE, and Phi-4-mini
rotates three quarters of each head.
"""

from __future__ import annotations

from typing import ClassVar

from featherback.models import rope
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.gguf_keys import ROTARY_DIM, GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import GGUF_NAMES, HF_NAMES, Names
from featherback.models.families.base import Family, silu_block
from featherback.nn.block import Block
from featherback.nn.rope import Rotary

QKV, GATE_UP = "qkv_proj", "gate_up_proj"
APART = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "q_bias", "k_bias", "v_bias")
HF_DEFAULTS = {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096}
"""The defaults of transformers for missing entries of config.json."""
LONG_ROPE = "longrope"
HF_NAMES_OF_LONG_ROPE = (LONG_ROPE, "su", "yarn")


def _fused(names: Names, qkv: str, gate_up: str) -> Names:
    """Replace the names of the parts by those of the fused projections."""
    return {QKV: qkv, GATE_UP: gate_up} | {part: name for part, name in names.items() if part not in APART}


class Phi3(Family):
    architecture = "phi3"
    called = "Phi-3, Phi-4-mini"
    model_types = ("phi3",)
    gguf_names: ClassVar[Names] = _fused(GGUF_NAMES, "blk.{}.attn_qkv.weight", "blk.{}.ffn_up.weight")
    hf_names: ClassVar[Names] = _fused(
        HF_NAMES, "model.layers.{}.self_attn.qkv_proj.weight", "model.layers.{}.mlp.gate_up_proj.weight"
    )
    window_period = 0

    def read_gguf(self, keys: GGUFKeys) -> ModelConfig:
        common = self.common(keys, (ROTARY_DIM,))
        return ModelConfig(**common)

    def read_hf(self, config: HFConfig) -> ModelConfig:
        config = config.with_defaults(HF_DEFAULTS)
        rotation = dict(config.rope())
        kind = rope.rope_type(rotation)
        if kind in HF_NAMES_OF_LONG_ROPE:
            rotation["rope_type"] = LONG_ROPE
        elif kind != "default":
            raise config.unsupported("rope_type", kind, ("default", LONG_ROPE))
        return ModelConfig(
            **self.common_hf(config, ("partial_rotary_factor",), rotation),
            windows=config.windows(config.integer("sliding_window", 0), lambda layer: True),
        )

    def block(self, config: ModelConfig, turn: Rotary, window: int) -> Block:
        return silu_block(config, turn, window, fused=QKV, fused_mlp=GATE_UP)


FAMILY = Phi3()
