"""Gemma 3's text model: GELU, four norms per block, norms of query and key heads, local layers among global ones.

Global layers see all tokens before; local ones see a window of them, and rotate by another base. Three things that
`config.json` states a GGUF file may leave to the reader, and they are then what llama.cpp takes: every sixth layer is
global, the local base is 10,000, and scores are multiplied by head_dim^-1/2, in the 27B model by
(hidden_size / heads)^-1/2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from featherback.architecture import hf_config
from featherback.architecture.config import ModelConfig
from featherback.architecture.gguf_metadata import SCALING, SCALING_FACTOR, GGUFKeys, common_config
from featherback.architecture.hf_config import GLOBAL, LOCAL, HFConfig
from featherback.architecture.names import GGUF_NAMES, HF_NAMES, Names
from featherback.errors import FeatherbackError
from featherback.families.base import Family, attention_sizes, by_window, mlp_sizes
from featherback.layers.attention import Attention
from featherback.layers.block import Block
from featherback.layers.glu import GatedUnit
from featherback.layers.rope import Rotary
from featherback.weights.writer import Value

PERIOD = 6  # every sixth layer is global
LOCAL_THETA = 10_000.0
LAYERS_27B = 62
SCALE, LOCAL_BASE = "attention.scale", "rope.freq_base_swa"
ATTENTION_CAP, FINAL_CAP = "attn_logit_softcapping", "final_logit_softcapping"

HF_DEFAULTS: Mapping[str, Any] = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1_000_000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "use_bidirectional_attention": False,
    "vocab_size": 262_208,
}
"""What transformers takes where config.json does not say."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Gemma3Config(ModelConfig):
    """`rope_theta` is that of the global layers: those without a window."""

    local_theta: float = LOCAL_THETA
    rope_divisor: float = 1.0  # of positions, in global layers
    attention_scale: float  # of the scores, float32
    attention_softcap: float = 0.0
    final_softcap: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("local_theta", "rope_divisor", "attention_scale"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise FeatherbackError(f"The model's {name} is {value}; it must be finite and positive.")
        for name in ("attention_softcap", "final_softcap"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise FeatherbackError(
                    f"The model's {name} is {value}; it must be finite, and 0 if there is none."
                )


class Gemma3Block(Block):
    """m = x + rms(attention(rms(x) g)) g';   y = m + rms(mlp(rms(m) g)) g'"""

    def __init__(self, config: Gemma3Config, turn: Rotary, window: int) -> None:
        super().__init__(
            Attention(
                **attention_sizes(config),
                rotary=turn,
                post_norm="post_attention_layernorm",
                bias=config.attention_bias,
                qk_norm=True,
                window=window,
                scale=config.attention_scale,
                softcap=config.attention_softcap,
            ),
            GatedUnit(
                **mlp_sizes(config),
                activation="gelu_tanh",
                pre_norm="pre_feedforward_layernorm",
                post_norm="post_feedforward_layernorm",
            ),
        )


class Gemma3(Family):
    architecture = "gemma3"
    model_types = ("gemma3_text", "gemma3")
    gguf_names: ClassVar[Names] = {
        **GGUF_NAMES,
        "post_attention_layernorm": "blk.{}.post_attention_norm.weight",
        "pre_feedforward_layernorm": "blk.{}.ffn_norm.weight",
        "post_feedforward_layernorm": "blk.{}.post_ffw_norm.weight",
    }
    hf_names: ClassVar[Names] = {
        **HF_NAMES,
        "pre_feedforward_layernorm": "model.layers.{}.pre_feedforward_layernorm.weight",
        "post_feedforward_layernorm": "model.layers.{}.post_feedforward_layernorm.weight",
    }
    window_period = PERIOD
    hf_norm_offset = 1.0

    def read_gguf(self, keys: GGUFKeys) -> Gemma3Config:
        followed = (SCALING, SCALE, ATTENTION_CAP, FINAL_CAP)
        common = common_config(keys, self.window_period, followed)
        width = common["head_dim"]
        if common["num_hidden_layers"] == LAYERS_27B:
            width = common["hidden_size"] // common["num_attention_heads"]
        return Gemma3Config(
            **common,
            attention_bias=False,
            rope_interleaved=False,
            local_theta=keys.number(LOCAL_BASE, LOCAL_THETA),
            rope_divisor=keys.linear_scaling(),
            attention_scale=keys.number(SCALE, 0) or _inverse_root(width),
            attention_softcap=keys.number(ATTENTION_CAP, 0),
            final_softcap=keys.number(FINAL_CAP, 0),
        )

    def read_hf(self, config: HFConfig) -> Gemma3Config:
        if config.entries.get("model_type") == "gemma3":
            raise FeatherbackError(
                f"{config.path} describes Gemma 3 with its image part; use a text-only folder (gemma3_text), or "
                f"the text model as GGUF."
            )
        given = {name: value for name, value in config.entries.items() if value is not None}
        config = HFConfig(config.path, {**HF_DEFAULTS, **given})
        for name in ("hidden_activation", "use_bidirectional_attention"):
            if config.entries[name] != HF_DEFAULTS[name]:
                raise config.unsupported(name, config.entries[name])
        everywhere, local = _rope(config)
        period = config.integer("sliding_window_pattern", PERIOD)
        return Gemma3Config(
            **hf_config.common_config(
                config, "gemma3", ("hidden_act",), {"rope_theta": everywhere.get("rope_theta")}
            ),
            attention_bias=config.flag("attention_bias", False),
            windows=config.windows(
                config.integer("sliding_window"), lambda layer: (layer + 1) % max(period, 1) != 0
            ),
            local_theta=config.number("rope_theta", LOCAL_THETA, local),
            rope_divisor=_divisor(config, everywhere),
            attention_scale=_inverse_root(config.number("query_pre_attn_scalar", 0)),
            attention_softcap=config.number(ATTENTION_CAP, 0),
            final_softcap=config.number(FINAL_CAP, 0),
        )

    def blocks(self, config: ModelConfig) -> list[Block]:
        assert isinstance(config, Gemma3Config)
        factors = None
        if config.rope_divisor != 1:
            factors = np.full(config.head_dim // 2, config.rope_divisor, np.float32)
        everywhere = Rotary(config.rope_theta, config.head_dim, config.rope_interleaved, factors)
        local = Rotary(config.local_theta, config.head_dim, config.rope_interleaved)
        return by_window(config, lambda window: Gemma3Block(config, local if window else everywhere, window))

    def embedding_scale(self, config: ModelConfig) -> float:
        return math.sqrt(config.hidden_size)

    def logit_softcap(self, config: ModelConfig) -> float:
        assert isinstance(config, Gemma3Config)
        return config.final_softcap

    def gguf_keys(self, config: ModelConfig) -> dict[str, Value]:
        assert isinstance(config, Gemma3Config)
        keys: dict[str, Value] = {LOCAL_BASE: config.local_theta, SCALE: config.attention_scale}
        if config.rope_divisor != 1:
            keys |= {SCALING: "linear", SCALING_FACTOR: config.rope_divisor}
        caps = {ATTENTION_CAP: config.attention_softcap, FINAL_CAP: config.final_softcap}
        return keys | {key: cap for key, cap in caps.items() if cap}


def _inverse_root(size: float) -> float:
    """size^-1/2 in float32; infinite for 0, which no configuration may have."""
    return float(np.float32(size**-0.5)) if size > 0 else math.inf


def _rope(config: HFConfig) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The entries about rotary embedding of global and local layers: by kind (transformers 5), or flat (before)."""
    found: dict[str, dict[str, Any]] = {}
    for name in ("rope_parameters", "rope_scaling"):
        found[name] = config.entries.get(name, {})
        if not isinstance(found[name], dict):
            raise config.unsupported(name, found[name])
    kinds, scaling = found["rope_parameters"], found["rope_scaling"]
    if not kinds.keys() <= {GLOBAL, LOCAL}:
        raise config.unsupported("rope_parameters", kinds)
    everywhere = {"rope_theta": config.entries["rope_theta"], **(kinds.get(GLOBAL) or {}), **scaling}
    local = {"rope_theta": config.entries.get("rope_local_base_freq"), **(kinds.get(LOCAL) or {})}
    if local.get("rope_type", "default") != "default":
        raise config.unsupported("rope_type of local layers", local["rope_type"])
    return everywhere, local


def _divisor(config: HFConfig, rope: Mapping[str, Any]) -> float:
    """Of positions, by the entries about rotary embedding."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "linear"):
        raise config.unsupported("rope_type", kind)
    return 1.0 if kind == "default" else config.number("factor", 0, rope)


FAMILY = Gemma3()
