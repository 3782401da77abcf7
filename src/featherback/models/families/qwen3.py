"""Qwen 3 (dense): Qwen 2 with a norm of each query head and key head instead of biases."""

from __future__ import annotations

from featherback.models.architecture import hf_config
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.gguf_metadata import common_config
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.families.base import Family, by_window, rotary, silu_block
from featherback.nn.block import Block

HEAD_DIM = 128  # transformers' default if config.json does not state it


class Qwen3(Family):
    architecture = "qwen3"
    called = "Qwen 3"
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
        """Make the layers. q, k = rope(rms(lin(n)) g): the norm is per head, and all heads share g (head_dim,)."""
        turn = rotary(config)
        return by_window(config, lambda window: silu_block(config, turn, window, qk_norm="heads"))


FAMILY = Qwen3()
