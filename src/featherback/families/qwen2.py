"""Qwen 2 and 2.5: like llama, with biases on q, k and v, and rotary halves in their original order."""

from __future__ import annotations

from featherback.architecture import hf_config
from featherback.architecture.config import ModelConfig
from featherback.architecture.gguf_metadata import GGUFKeys, common_config
from featherback.architecture.hf_config import HFConfig
from featherback.families.base import Family, attention_sizes, mlp_sizes, rotary
from featherback.layers.attention import Attention
from featherback.layers.block import Block
from featherback.layers.glu import GatedUnit


class Qwen2Block(Block):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(
            Attention(**attention_sizes(config), rotary=rotary(config), bias=config.attention_bias),
            GatedUnit(**mlp_sizes(config), activation="silu"),
        )


class Qwen2(Family):
    architecture = "qwen2"
    model_types = ("qwen2",)

    def read_gguf(self, keys: GGUFKeys) -> ModelConfig:
        return ModelConfig(**common_config(keys), attention_bias=True, rope_interleaved=False)

    def read_hf(self, config: HFConfig) -> ModelConfig:
        """`sliding_window` counts only with `use_sliding_window`."""
        if config.flag("use_sliding_window", False):
            config.refuse_window(config.integer("sliding_window", 4096))
        return ModelConfig(**hf_config.common_config(config, "qwen2"), attention_bias=True)

    def blocks(self, config: ModelConfig) -> list[Block]:
        return [Qwen2Block(config)] * config.num_hidden_layers


FAMILY = Qwen2()
