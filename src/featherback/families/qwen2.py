"""Qwen 2 and 2.5: like llama, with biases on q, k and v, and rotary halves in their original order."""

from __future__ import annotations

from featherback.architecture import hf_config
from featherback.architecture.config import ModelConfig
from featherback.architecture.gguf_metadata import GGUFKeys, common_config
from featherback.architecture.hf_config import HFConfig
from featherback.families.base import Family, attention_sizes, by_window, mlp_sizes, rotary
from featherback.layers.attention import Attention
from featherback.layers.block import Block
from featherback.layers.glu import GatedUnit
from featherback.layers.rope import Rotary


class Qwen2Block(Block):
    def __init__(self, config: ModelConfig, turn: Rotary, window: int) -> None:
        super().__init__(
            Attention(**attention_sizes(config), rotary=turn, bias=config.attention_bias, window=window),
            GatedUnit(**mlp_sizes(config), activation="silu"),
        )


class Qwen2(Family):
    architecture = "qwen2"
    model_types = ("qwen2",)

    def read_gguf(self, keys: GGUFKeys) -> ModelConfig:
        common = common_config(keys, self.window_period)
        return ModelConfig(**common, attention_bias=True, rope_interleaved=False)

    def read_hf(self, config: HFConfig) -> ModelConfig:
        common = hf_config.common_config(config, "qwen2")
        return ModelConfig(**common, attention_bias=True, windows=hf_config.late_windows(config))

    def blocks(self, config: ModelConfig) -> list[Block]:
        turn = rotary(config)
        return by_window(config, lambda window: Qwen2Block(config, turn, window))


FAMILY = Qwen2()
