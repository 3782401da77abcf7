"""Qwen 3 (dense): Qwen 2 with a norm of each query and key head in place of biases."""

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

HEAD_DIM = 128  # what transformers takes where config.json does not say


class Qwen3Block(Block):
    """q, k = rope(rms(lin(n)) g): the norm is of a head, and its weight g (head_dim,) all heads share."""

    def __init__(self, config: ModelConfig, turn: Rotary, window: int) -> None:
        super().__init__(
            Attention(
                **attention_sizes(config),
                rotary=turn,
                bias=config.attention_bias,
                qk_norm=True,
                window=window,
            ),
            GatedUnit(**mlp_sizes(config), activation="silu"),
        )


class Qwen3(Family):
    architecture = "qwen3"
    model_types = ("qwen3",)

    def read_gguf(self, keys: GGUFKeys) -> ModelConfig:
        common = common_config(keys, self.window_period)
        return ModelConfig(**common, attention_bias=False, rope_interleaved=False)

    def read_hf(self, config: HFConfig) -> ModelConfig:
        common = hf_config.common_config(config, "qwen3")
        return ModelConfig(
            **common | {"head_dim": config.integer("head_dim", HEAD_DIM)},
            attention_bias=config.flag("attention_bias", False),
            windows=hf_config.late_windows(config),
        )

    def blocks(self, config: ModelConfig) -> list[Block]:
        turn = rotary(config)
        return by_window(config, lambda window: Qwen3Block(config, turn, window))


FAMILY = Qwen3()
