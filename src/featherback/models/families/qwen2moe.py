"""Qwen 1.5 and 2 with experts: Qwen 2 with a mixture of experts, and a shared expert with a gate of its own.

The weights of experts are their softmax over all experts, not normalised, unless the file states otherwise.
"""

from __future__ import annotations

from typing import ClassVar

from featherback.models.architecture import experts
from featherback.models.architecture.experts import SHARED_SIZE, ExpertsConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import GGUF_NAMES, HF_NAMES, MLP, Names
from featherback.models.families.base import Family, attention_sizes, mixture
from featherback.nn.attention import Attention
from featherback.nn.block import Block
from featherback.nn.rope import Rotary


class Qwen2Moe(Family):
    architecture = "qwen2moe"
    called = "Qwen 1.5 and 2 with experts"
    model_types = ("qwen2_moe",)
    gguf_names: ClassVar[Names] = {**GGUF_NAMES, **experts.GGUF_NAMES, **experts.SHARED_GGUF_NAMES}
    hf_names: ClassVar[Names] = {
        **HF_NAMES,
        **{target: f"model.layers.{{}}.mlp.shared_expert.{target}.weight" for target in MLP},
        "shared_gate": "model.layers.{}.mlp.shared_expert_gate.weight",
        **experts.hf_names(),
    }
    mlx_names: ClassVar[Names] = experts.mlx_names()

    def read_gguf(self, keys: GGUFKeys) -> ExpertsConfig:
        common = self.common(keys, experts.FOLLOWED)
        size = common["intermediate_size"] // max(1, keys.integer(experts.USED))
        found = experts.read_experts(keys, size, normalised=False)
        return ExpertsConfig(
            **common,
            **found | {"shared_size": keys.integer(SHARED_SIZE, 0) or common["intermediate_size"]},
            attention_bias=True,
        )

    def read_hf(self, config: HFConfig) -> ExpertsConfig:
        if not config.flag("qkv_bias", True):
            raise config.unsupported("qkv_bias", False)
        window, last = 0, config.integer("max_window_layers", 28)
        if config.flag("use_sliding_window", False):
            window = config.integer("sliding_window", 4096)
        return ExpertsConfig(
            **self.common_hf(config),
            **experts.read_hf_experts(config, normalised=False),
            shared_size=config.integer("shared_expert_intermediate_size"),
            attention_bias=True,
            windows=config.windows(window, lambda layer: layer % 2 == 0 and layer < last),
        )

    def block(self, config: ExpertsConfig, turn: Rotary, window: int) -> Block:
        first = Attention(**attention_sizes(config), rotary=turn, bias=True, window=window)
        return Block([first, mixture(config, shared_is_gated=True)])


FAMILY = Qwen2Moe()
