"""gpt-oss: attention with sinks, and experts with biases and a clipped activation.

Each head has a sink, a logit that takes part in the softmax of every row. Of every two layers, the first has a window.
The norm before the experts is stored as `post_attention_norm`. The limits of YaRN's interpolation are not rounded, as
the model's published configuration says; GGUF files do not state it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from featherback.models.architecture import experts
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.expert_tensors import Stored, Tensors
from featherback.models.architecture.experts import GATING, SOFTMAX_OF_SELECTED, ExpertsConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import GGUF_NAMES, HF_NAMES, MLP, Names, Naming, without
from featherback.models.families.base import Family, attention_sizes, by_window, mixture, rotary
from featherback.models.rope.yarn import Yarn
from featherback.models.source import Piece
from featherback.nn.attention import Attention
from featherback.nn.block import Block
from featherback.nn.rope import Rotary

PERIOD = 2  # every second layer has no window

BIASES: Names = {
    "o_bias": "blk.{}.attn_output.bias",
    "router_bias": "blk.{}.ffn_gate_inp.bias",
    "gate_exps_bias": "blk.{}.ffn_gate_exps.bias",
    "up_exps_bias": "blk.{}.ffn_up_exps.bias",
    "down_exps_bias": "blk.{}.ffn_down_exps.bias",
}


HF_EXPERTS = "model.layers.{}.mlp.experts"
HF_BIASES: Names = {
    "o_bias": "model.layers.{}.self_attn.o_proj.bias",
    "router_bias": "model.layers.{}.mlp.router.bias",
    **{f"{part}_exps_bias": f"{HF_EXPERTS}.{part}_proj_bias" for part in ("gate", "up", "down")},
    "sinks": "model.layers.{}.self_attn.sinks",
}
HF_NEUTRAL = {"attention_bias": True, "swiglu_alpha": 1.702, "swiglu_limit": 7.0}
"""Entries of config.json that have one value in all models."""


class GptOss(Family):
    architecture = "gpt-oss"
    called = "gpt-oss"
    model_types = ("gpt_oss",)
    gguf_names: ClassVar[Names] = {
        **without(MLP, GGUF_NAMES),
        **experts.GGUF_NAMES,
        **BIASES,
        "post_attention_layernorm": "blk.{}.post_attention_norm.weight",
        "sinks": "blk.{}.attn_sinks.weight",
    }
    hf_names: ClassVar[Names] = {**without(MLP, HF_NAMES), **experts.hf_names(router="router")}
    mlx_names: ClassVar[Names] = experts.mlx_names(router="router", stacks="experts")
    gate_up_in_turns = True
    turned = (".experts.gate_up_proj", ".experts.down_proj")
    window_period = PERIOD

    def read_gguf(self, keys: GGUFKeys) -> ExpertsConfig:
        common = self.common(keys, experts.FOLLOWED)
        found = experts.read_experts(keys, common["intermediate_size"], normalised=True, gating=SOFTMAX_OF_SELECTED)
        if found["sigmoid_gating"] or not found["weights_normalised"]:
            raise keys.wrong(
                GATING, keys.integer(GATING, 0), f"{SOFTMAX_OF_SELECTED} (softmax of the selected experts)"
            )
        own = {"shared_size": 0, "gate_up_fused": False}  # tensors of such parts are then rejected by their names
        return ExpertsConfig(**common, **found | own, attention_bias=True)

    def read_hf(self, config: HFConfig) -> ExpertsConfig:
        for name, value in HF_NEUTRAL.items():
            if config.entries.get(name, value) != value:
                raise config.unsupported(name, config.entries[name], (str(value),))
        common = self.common_hf(config)
        if isinstance(scaling := common["rope_scaling"], Yarn) and scaling.truncate:
            raise config.unsupported("truncate", True, ("False",))
        return ExpertsConfig(
            **common,
            **experts.read_hf_experts(config, normalised=True, size="intermediate_size"),
            attention_bias=True,
            windows=config.windows(config.integer("sliding_window", 0), lambda layer: layer % PERIOD == 0),
        )

    def naming(self, config: HFConfig | None) -> Naming:
        usual = super().naming(config)
        return usual if config is None else usual._replace(tensors={**usual.tensors, **HF_BIASES})

    def as_stored(self, config: ModelConfig, naming: Naming, tensors: Tensors) -> Stored:
        """transformers joins gate and up, whose rows take turns. MLX keeps them apart, as in a GGUF file."""
        if f"{HF_EXPERTS}.gate_proj.weight".format(0) in tensors:
            found = {}
            for part in ("gate", "up", "down"):
                found[f"{part}_exps"] = f"{HF_EXPERTS}.{part}_proj.weight"
                found[f"{part}_exps_bias"] = f"{HF_EXPERTS}.{part}_proj.bias"
            return Stored(config, naming._replace(tensors={**naming.tensors, **found}), {})
        made = {}
        for layer in range(config.num_hidden_layers):
            for turn, part in enumerate(("gate_exps", "up_exps")):
                both, rows = f"{HF_EXPERTS}.gate_up_proj".format(layer), slice(turn, None, 2)
                made[naming.tensors[part].format(layer)] = (Piece(both, rows),)
                made[naming.tensors[f"{part}_bias"].format(layer)] = (Piece(f"{both}_bias", rows, columns=True),)
        return Stored(config, naming, made)

    def blocks(self, config: ExpertsConfig) -> list[Block]:
        scaling = config.rope_scaling
        unrounded = replace(scaling, truncate=False) if isinstance(scaling, Yarn) else scaling
        turn = rotary(replace(config, rope_scaling=unrounded))
        return by_window(config, lambda window: self.block(config, turn, window))

    def block(self, config: ExpertsConfig, turn: Rotary, window: int) -> Block:
        sizes = attention_sizes(config)
        first = Attention(**sizes, rotary=turn, window=window, bias=True, output_bias=True, sinks=True)
        return Block([first, mixture(config, activation="clipped_silu", bias=True)])


FAMILY = GptOss()
