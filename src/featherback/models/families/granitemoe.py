"""Granite 3 with experts (1B-A400M, 3B-A800M): Granite with a mixture of experts, some with a shared expert.

The four multipliers are Granite's. Adapters do not change the shared expert: transformers stores its gate and up in one
projection, GGUF files in two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from featherback.engine.formats.writer import Value
from featherback.models.architecture import experts
from featherback.models.architecture.experts import ExpertsConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import GGUF_NAMES, HF_NAMES, MLP, Names, Naming, without
from featherback.models.families.base import attention_sizes, by_window, mixture, rotary
from featherback.models.families.granite import Granite, GraniteConfig
from featherback.nn.attention import Attention
from featherback.nn.block import Block
from featherback.nn.rope import Rotary

HF_SHARED: Names = {
    "gate_up_proj": "model.layers.{}.shared_mlp.input_linear.weight",
    "down_proj": "model.layers.{}.shared_mlp.output_linear.weight",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class GraniteMoeConfig(GraniteConfig, ExpertsConfig):
    """Granite's multipliers, and experts."""


def _block(config: GraniteMoeConfig, turn: Rotary, window: int) -> Block:
    first = Attention(**attention_sizes(config), rotary=turn, window=window, scale=config.attention_scale)
    return Block([first, mixture(config, shared_is_frozen=True)])


class GraniteMoe(Granite):
    architecture = "granitemoe"
    called = "Granite 3 with experts"
    model_types: ClassVar[tuple[str, ...]] = ("granitemoe", "granitemoeshared")
    gguf_names: ClassVar[Names] = {**GGUF_NAMES, **experts.GGUF_NAMES, **experts.SHARED_GGUF_NAMES}
    hf_names: ClassVar[Names] = {**without(MLP, HF_NAMES), **experts.hf_names("block_sparse_moe", "router")}
    mlx_names: ClassVar[Names] = experts.mlx_names("block_sparse_moe", "router.layer")

    def read_gguf(self, keys: GGUFKeys) -> GraniteMoeConfig:
        fields = self.read_fields(keys, experts.FOLLOWED)
        return GraniteMoeConfig(**fields, **experts.read_experts(keys, fields["intermediate_size"], normalised=True))

    def read_hf(self, config: HFConfig) -> GraniteMoeConfig:
        return GraniteMoeConfig(
            **self.read_hf_fields(config),
            **experts.read_hf_experts(config, normalised=True, size="intermediate_size"),
            shared_size=config.integer("shared_intermediate_size", 0),
            shared_fused=True,
        )

    def naming(self, config: HFConfig | None) -> Naming:
        usual = super().naming(config)
        return usual if config is None else usual._replace(tensors={**usual.tensors, **HF_SHARED})

    def blocks(self, config: Any) -> list[Block]:
        turn, held = rotary(config), replace(config, rms_norm_eps=self.norm_eps(config))
        return by_window(held, lambda window: _block(held, turn, window))

    def gguf_keys(self, config: Any) -> dict[str, Value]:
        return {**super().gguf_keys(config), **experts.expert_keys(config)}


FAMILY = GraniteMoe()
