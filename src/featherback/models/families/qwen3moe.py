"""Qwen 3 with experts (30B-A3B, 235B-A22B): Qwen 3 with a mixture of experts in place of each gated unit."""

from __future__ import annotations

from typing import ClassVar, Literal

from featherback.models.architecture import experts
from featherback.models.architecture.experts import ExpertsConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import GGUF_NAMES, HF_NAMES, MLP, Names, without
from featherback.models.families.base import Family, expert_block
from featherback.nn.block import Block
from featherback.nn.rope import Rotary


class Qwen3Moe(Family):
    architecture = "qwen3moe"
    called = "Qwen 3 with experts"
    model_types = ("qwen3_moe",)
    gguf_names: ClassVar[Names] = {**without(MLP, GGUF_NAMES), **experts.GGUF_NAMES}
    hf_names: ClassVar[Names] = {**without(MLP, HF_NAMES), **experts.hf_names()}
    mlx_names: ClassVar[Names] = experts.mlx_names()
    normalised: ClassVar[bool] = True
    """Whether the weights of a token's experts add up to 1, unless the file states otherwise."""
    expert_size: ClassVar[str] = "moe_intermediate_size"
    """The entry of config.json with the width of an expert."""
    qk_norm: ClassVar[Literal["heads", "whole"]] = "heads"

    def read_gguf(self, keys: GGUFKeys) -> ExpertsConfig:
        common = self.common(keys, experts.FOLLOWED)
        return ExpertsConfig(
            **common, **experts.read_experts(keys, common["intermediate_size"], normalised=self.normalised)
        )

    def read_hf(self, config: HFConfig) -> ExpertsConfig:
        for name in ("attention_bias", "clip_qkv"):
            if config.entries.get(name):
                raise config.unsupported(name, config.entries[name])
        window = config.integer("sliding_window", 4096) if config.flag("use_sliding_window", False) else 0
        return ExpertsConfig(
            **self.common_hf(config),
            **experts.read_hf_experts(config, normalised=False, size=self.expert_size),
            windows=config.windows(window, lambda layer: True),
        )

    def block(self, config: ExpertsConfig, turn: Rotary, window: int) -> Block:
        return expert_block(config, turn, window, qk_norm=self.qk_norm)


FAMILY = Qwen3Moe()
