"""OLMo 2: norms after attention and MLP instead of before, and a norm over all heads of a query, and of a key."""

from __future__ import annotations

from typing import Any, ClassVar

from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import GGUF_NAMES, HF_NAMES, Names
from featherback.models.families.base import Family, attention_sizes, mlp_sizes
from featherback.nn.attention import Attention
from featherback.nn.block import Block
from featherback.nn.glu import GatedUnit
from featherback.nn.rope import Rotary

EPS = 1e-5  # transformers' default if config.json does not state it


class Olmo2(Family):
    architecture = "olmo2"
    called = "OLMo 2"
    model_types = ("olmo2",)
    gguf_names: ClassVar[Names] = {
        **GGUF_NAMES,
        "post_attention_layernorm": "blk.{}.post_attention_norm.weight",
        "post_feedforward_layernorm": "blk.{}.post_ffw_norm.weight",
    }
    hf_names: ClassVar[Names] = {
        **HF_NAMES,
        "post_feedforward_layernorm": "model.layers.{}.post_feedforward_layernorm.weight",
    }

    def read_hf(self, config: HFConfig) -> ModelConfig:
        if config.flag("attention_bias", False):  # then o has a bias too, which is not supported
            raise config.unsupported("attention_bias", True)
        common = self.common_hf(config)
        return ModelConfig(**common | {"rms_norm_eps": config.number("rms_norm_eps", EPS)})

    def block(self, config: ModelConfig, turn: Rotary, window: int) -> Block:
        """Make a layer: m = x + rms(attention(x)) g;   y = m + rms(mlp(m)) g'."""
        norms: dict[str, Any] = {"pre_norm": None, "post_norm": "post_attention_layernorm", "qk_norm": "whole"}
        first = Attention(**attention_sizes(config), rotary=turn, window=window, **norms)
        return Block([first, GatedUnit(**mlp_sizes(config), pre_norm=None, post_norm="post_feedforward_layernorm")])


FAMILY = Olmo2()
