"""Gemma 2: GELU, four norms per block, soft caps on scores and logits, local layers among global ones.

Every other layer is local, beginning with the first: a query sees only a window of the tokens before it. If a GGUF file
does not state them, llama.cpp's values are used: a window of 4096, caps of 50 on scores and 30 on logits, and scores
multiplied by head_dim^-1/2, or by (hidden_size / heads)^-1/2 in the 27B model. Gemma 3 shares the class `Gemma`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from featherback.engine.formats.writer import Value
from featherback.errors import FeatherbackError
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.gguf_metadata import layer_windows
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import GGUF_NAMES, HF_NAMES, Names
from featherback.models.families.base import Family, attention_sizes, mlp_sizes
from featherback.nn.attention import Attention
from featherback.nn.block import Block
from featherback.nn.glu import GatedUnit
from featherback.nn.rope import Rotary

SCALE = "attention.scale"
ATTENTION_CAP, FINAL_CAP = "attn_logit_softcapping", "final_logit_softcapping"
CAPS: Mapping[str, float] = {ATTENTION_CAP: 50.0, FINAL_CAP: 30.0}  # if a file does not state them
PERIOD = 2  # every other layer is global
WINDOW_SIZE = 4096

HF_DEFAULTS: Mapping[str, Any] = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": WINDOW_SIZE,
    "tie_word_embeddings": True,
    "use_bidirectional_attention": False,
    "vocab_size": 256_000,
    **CAPS,
}
"""The defaults of transformers for missing entries of config.json."""


@dataclass(frozen=True, eq=False, kw_only=True)
class GemmaConfig(ModelConfig):
    attention_scale: float  # factor of the scores, float32
    attention_softcap: float = 0.0
    final_softcap: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("attention_scale")
        for name in ("attention_softcap", "final_softcap"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise FeatherbackError(
                    f"The model's {name} is {value}; it must be a finite number that is not negative, 0 for no cap."
                )


class Gemma(Family):
    """The parts that Gemma 2 and 3 share."""

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
    also_used = ()
    hf_norm_offset = 1.0
    layers_27b: ClassVar[int]
    """The number of layers of the 27B model, whose scores have another scale. llama.cpp recognises it in this way."""
    caps: ClassVar[Mapping[str, float]] = dict.fromkeys(CAPS, 0.0)
    """The caps of a GGUF file that does not state them."""

    def scale_in_gguf(self, keys: GGUFKeys, common: Mapping[str, Any]) -> float:
        """Read the factor of the scores, float32."""
        width = common["head_dim"]
        if common["num_hidden_layers"] == self.layers_27b:
            width = common["hidden_size"] // common["num_attention_heads"]
        return keys.number(SCALE, 0) or inverse_root(width)

    def caps_in_gguf(self, keys: GGUFKeys) -> dict[str, Any]:
        """Read the caps, as arguments of GemmaConfig."""
        attention, final = (keys.number(key, self.caps[key]) for key in (ATTENTION_CAP, FINAL_CAP))
        return {"attention_softcap": attention, "final_softcap": final}

    def block(self, config: GemmaConfig, turn: Rotary, window: int, **attention: Any) -> Block:
        """Make a layer: m = x + rms(attention(rms(x) g)) g';   y = m + rms(mlp(rms(m) g)) g'.

        `attention`: further arguments of `Attention`.
        """
        first = Attention(
            **attention_sizes(config),
            rotary=turn,
            post_norm="post_attention_layernorm",
            bias=config.attention_bias,
            window=window,
            scale=config.attention_scale,
            softcap=config.attention_softcap,
            **attention,
        )
        norms: dict[str, Any] = {"pre_norm": "pre_feedforward_layernorm", "post_norm": "post_feedforward_layernorm"}
        return Block([first, GatedUnit(**mlp_sizes(config), activation="gelu_tanh", **norms)])

    def embedding_scale(self, config: ModelConfig) -> float:
        return math.sqrt(config.hidden_size)

    def logit_softcap(self, config: GemmaConfig) -> float:
        return config.final_softcap

    def gguf_keys(self, config: GemmaConfig) -> dict[str, Value]:
        caps = {ATTENTION_CAP: config.attention_softcap, FINAL_CAP: config.final_softcap}
        stated: dict[str, Value] = {key: cap for key, cap in caps.items() if cap != self.caps[key]}
        return {SCALE: config.attention_scale, **stated}


class Gemma2(Gemma):
    architecture = "gemma2"
    called = "Gemma 2"
    model_types = ("gemma2",)
    window_period = PERIOD
    layers_27b = 46
    caps = CAPS

    def read_gguf(self, keys: GGUFKeys) -> GemmaConfig:
        common = self.common(keys, (SCALE, *CAPS))
        layers, context = common["num_hidden_layers"], common["max_position_embeddings"]
        return GemmaConfig(
            **common | {"windows": layer_windows(keys, layers, context, self.window_period, WINDOW_SIZE)},
            attention_scale=self.scale_in_gguf(keys, common),
            **self.caps_in_gguf(keys),
        )

    def read_hf(self, config: HFConfig) -> GemmaConfig:
        config = with_defaults(config, HF_DEFAULTS)
        return GemmaConfig(
            **self.common_hf(config, ("hidden_act",)),
            windows=config.windows(config.integer("sliding_window"), lambda layer: (layer + 1) % PERIOD != 0),
            **hf_scores(config),
        )


def with_defaults(config: HFConfig, defaults: Mapping[str, Any]) -> HFConfig:
    """Return the entries, with `defaults` for missing ones and for null. A cap that is null means no cap.

    Raises FeatherbackError for an activation or a mask that differs from the default.
    """
    entries = {name: 0 if value is None and name in CAPS else value for name, value in config.entries.items()}
    config = HFConfig(config.path, entries).with_defaults(defaults)
    for name in ("hidden_activation", "use_bidirectional_attention"):
        if config.entries[name] != defaults[name]:
            raise config.unsupported(name, config.entries[name])
    return config


def hf_scores(config: HFConfig) -> dict[str, Any]:
    """Read the attention's bias and scale and the caps, as arguments of GemmaConfig."""
    return {
        "attention_bias": config.flag("attention_bias", False),
        "attention_scale": inverse_root(config.number("query_pre_attn_scalar", 0)),
        "attention_softcap": config.number(ATTENTION_CAP, 0),
        "final_softcap": config.number(FINAL_CAP, 0),
    }


def inverse_root(size: float) -> float:
    """Return size^-1/2 in float32, or infinity for 0, which GemmaConfig then rejects."""
    return float(np.float32(size**-0.5)) if size > 0 else math.inf


FAMILY = Gemma2()
