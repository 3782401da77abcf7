"""Qwen 3.5 with experts (35B-A3B, 122B-A10B, 397B-A17B): Qwen 3.5 with a mixture of experts and a shared expert.

The weights of experts are their softmax over all experts, divided by the sum of the selected. The shared expert has a
gate of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from featherback.engine.formats.writer import Value
from featherback.models.architecture import experts
from featherback.models.architecture.experts import ExpertsConfig
from featherback.models.architecture.gguf_keys import ROTARY_DIM, GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import MLP, Names, without
from featherback.models.families.base import attention_sizes, mixture, rotary
from featherback.models.families.qwen35 import HF_DEFAULTS as DENSE_DEFAULTS
from featherback.models.families.qwen35 import (
    WITH_IMAGES,
    DeltaConfig,
    Qwen35,
    by_kind,
    delta_gguf_keys,
    delta_in_gguf,
    delta_in_hf,
    delta_net,
)
from featherback.nn.block import Block
from featherback.nn.delta_net import DeltaNet
from featherback.nn.gated_attention import GatedAttention

HF_DEFAULTS: Mapping[str, Any] = {
    **DENSE_DEFAULTS,
    "hidden_size": 2048,
    "intermediate_size": 512,
    "moe_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
}
"""The defaults of transformers for missing entries of config.json. `intermediate_size` has no effect."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DeltaMoeConfig(DeltaConfig, ExpertsConfig):
    """A model of gated delta nets and attention, with a mixture of experts in every layer."""


class Qwen35Moe(Qwen35):
    architecture = "qwen35moe"
    called = "Qwen 3.5 with experts"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_5_moe", "qwen3_5_moe_text")
    gguf_names: ClassVar[Names] = {**without(MLP, Qwen35.gguf_names), **experts.GGUF_NAMES, **experts.SHARED_GGUF_NAMES}
    hf_names: ClassVar[Names] = {
        **Qwen35.hf_names,
        **{target: f"model.layers.{{}}.mlp.shared_expert.{target}.weight" for target in MLP},
        "shared_gate": "model.layers.{}.mlp.shared_expert_gate.weight",
        **experts.hf_names(),
    }
    mlx_names: ClassVar[Names] = {
        name: f"language_model.{module}" for name, module in {**hf_names, **experts.mlx_names()}.items()
    }
    delta_kind: ClassVar[type[DeltaNet]] = DeltaNet
    hf_defaults: ClassVar[Mapping[str, Any]] = HF_DEFAULTS
    shared_is_frozen: ClassVar[bool] = False

    def read_gguf(self, keys: GGUFKeys) -> DeltaMoeConfig:
        size = keys.integer(experts.SIZE)
        common = self.common(keys, (ROTARY_DIM, *experts.FOLLOWED), width=size)
        return DeltaMoeConfig(
            **(common | delta_in_gguf(keys, common)), **experts.read_experts(keys, size, normalised=True)
        )

    def read_hf(self, config: HFConfig) -> DeltaMoeConfig:
        config = config.text_part(WITH_IMAGES).with_defaults(self.hf_defaults)
        return DeltaMoeConfig(
            **delta_in_hf(config, self.architecture),
            **experts.read_hf_experts(config, normalised=True),
            shared_size=config.integer("shared_expert_intermediate_size"),
        )

    def blocks(self, config: Any) -> list[Block]:
        attention = GatedAttention(**attention_sizes(config), rotary=rotary(config))
        branch = mixture(config, shared_is_gated=True, shared_is_frozen=self.shared_is_frozen)
        return by_kind(config, Block([delta_net(config, self.delta_kind), branch]), Block([attention, branch]))

    def gguf_keys(self, config: Any) -> dict[str, Value]:
        return {**delta_gguf_keys(config), **experts.expert_keys(config)}


FAMILY = Qwen35Moe()
