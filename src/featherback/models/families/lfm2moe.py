"""LFM2 with experts (8B-A1B, 24B-A2B): the first layers have a gated unit, the others a mixture of experts.

The weights of experts are sigmoids, divided by their sum. A bias is added to them for the selection of experts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from featherback.engine.formats.writer import Value
from featherback.errors import FeatherbackError
from featherback.models.architecture import experts
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.expert_tensors import Stored, Tensors
from featherback.models.architecture.experts import SIGMOID, ExpertsConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import MLP, Names, Naming
from featherback.models.families.base import attention_sizes, mixture, mlp_sizes, rotary
from featherback.models.families.lfm2 import HF_DEFAULTS as DENSE_DEFAULTS
from featherback.models.families.lfm2 import Lfm2, Lfm2Config, with_defaults
from featherback.nn.attention import Attention
from featherback.nn.block import Block
from featherback.nn.branch import Branch
from featherback.nn.glu import GatedUnit
from featherback.nn.short_conv import ShortConv

DENSE = "leading_dense_block_count"
MLX_DENSE: Names = {part: f"model.layers.{{}}.feed_forward.{part}" for part in MLP}
"""The modules of the first layers in mlx-lm."""
HF_DEFAULTS: Mapping[str, Any] = {
    **DENSE_DEFAULTS,
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "moe_intermediate_size": 1792,
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
}
"""The defaults of transformers for missing entries of config.json."""
EPS = 1e-6
"""Added to the sum of sigmoids."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Lfm2MoeConfig(Lfm2Config, ExpertsConfig):
    dense_layers: int  # number of layers, the first ones, with a gated unit instead of experts
    selection_bias: bool  # whether a bias takes part in the selection of experts

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.dense_layers <= self.num_hidden_layers:
            raise FeatherbackError(
                f"The model has {self.dense_layers} layers without experts; it must be 0 to {self.num_hidden_layers}, "
                "the number of its layers."
            )

    @property
    def has_dense_units(self) -> bool:
        return self.dense_layers > 0


class Lfm2Moe(Lfm2):
    architecture = "lfm2moe"
    called = "LFM2 with experts"
    model_types = ("lfm2_moe",)
    gguf_names: ClassVar[Names] = {**Lfm2.gguf_names, **experts.GGUF_NAMES}
    hf_names: ClassVar[Names] = {**Lfm2.hf_names, **experts.hf_names("feed_forward")}
    mlx_names: ClassVar[Names] = {**experts.mlx_names("feed_forward"), **MLX_DENSE}

    def read_gguf(self, keys: GGUFKeys) -> Lfm2MoeConfig:
        fields = self.read_fields(keys, experts.FOLLOWED)
        dense = keys.integer(DENSE, 0)
        bias = experts.GGUF_NAMES["router_selection"].format(dense)
        return Lfm2MoeConfig(
            **fields,
            **experts.read_experts(keys, fields["intermediate_size"], normalised=True, gating=SIGMOID),
            dense_layers=dense,
            selection_bias=bias in keys.file.tensors,
        )

    def read_hf(self, config: HFConfig) -> Lfm2MoeConfig:
        config = with_defaults(config, HF_DEFAULTS)
        return Lfm2MoeConfig(
            **self.read_hf_fields(config),
            **experts.read_hf_experts(config, normalised=True),
            sigmoid_gating=True,
            weights_scale=config.number("routed_scaling_factor", 1.0),
            dense_layers=config.integer("num_dense_layers"),
            selection_bias=config.flag("use_expert_bias", True),
        )

    def naming(self, config: HFConfig | None) -> Naming:
        usual = super().naming(config)
        selection = {"router_selection": "model.layers.{}.feed_forward.expert_bias"}
        return usual if config is None else usual._replace(tensors={**usual.tensors, **selection})

    def as_stored(self, config: ModelConfig, naming: Naming, tensors: Tensors) -> Stored:
        """MLX's folders have the usual names for the gated units of the first layers."""
        names = {part: f"{module}.weight" for part, module in MLX_DENSE.items()}
        if names["gate_proj"].format(0) in tensors:
            naming = naming._replace(tensors={**naming.tensors, **names})
        return super().as_stored(config, naming, tensors)

    def blocks(self, config: Any) -> list[Block]:
        firsts: dict[bool, Branch] = {
            True: ShortConv(hidden_size=config.hidden_size, taps=config.taps, eps=config.rms_norm_eps),
            False: Attention(**attention_sizes(config), rotary=rotary(config), qk_norm="heads"),
        }
        lasts: dict[bool, Branch] = {
            True: GatedUnit(**mlp_sizes(config)),
            False: mixture(config, eps=EPS, biased=config.selection_bias),
        }
        made: dict[tuple[bool, bool], Block] = {}
        for layer, convolves in enumerate(config.convolves):
            kind = (convolves, layer < config.dense_layers)
            made.setdefault(kind, Block([firsts[kind[0]], lasts[kind[1]]]))
        return [made[convolves, layer < config.dense_layers] for layer, convolves in enumerate(config.convolves)]

    def gguf_keys(self, config: Any) -> dict[str, Value]:
        return {**super().gguf_keys(config), **experts.expert_keys(config), DENSE: config.dense_layers}


FAMILY = Lfm2Moe()
