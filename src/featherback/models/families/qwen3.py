"""Qwen 3 (dense): Qwen 2 with a norm of each query head and key head instead of biases."""

from __future__ import annotations

from featherback.models.architecture import hf_config
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.families.base import Family, silu_block
from featherback.nn.block import Block
from featherback.nn.rope import Rotary

HEAD_DIM = 128  # transformers' default if config.json does not state it


class Qwen3(Family):
    architecture = "qwen3"
    called = "Qwen 3"
    model_types = ("qwen3",)

    def read_hf(self, config: HFConfig) -> ModelConfig:
        common = self.common_hf(config)
        return ModelConfig(
            **common | {"head_dim": config.integer("head_dim", HEAD_DIM)},
            attention_bias=config.flag("attention_bias", False),
            windows=hf_config.late_windows(config),
        )

    def block(self, config: ModelConfig, turn: Rotary, window: int) -> Block:
        """Make a layer. q, k = rope(rms(lin(n)) g): the norm is per head, and all heads share g (head_dim,)."""
        return silu_block(config, turn, window, qk_norm="heads")


FAMILY = Qwen3()
