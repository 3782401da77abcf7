"""Gemma 3's text model: Gemma 2 with norms of query and key heads, and five local layers for each global one.

Global and local layers rotate with different bases. If a GGUF file does not state them, llama.cpp's values are used:
every sixth layer is global, the local base is 10,000, and scores are multiplied by head_dim^-1/2, or by
(hidden_size / heads)^-1/2 in the 27B model. Caps are rare, and are used only if the file states them.

A Hugging Face folder may also hold a vision model, which text does not use. It is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from featherback.engine.formats.writer import Value
from featherback.models.architecture.gguf_keys import LOCAL_THETA, SCALING_FACTOR, SCALING_TYPE, GGUFKeys
from featherback.models.architecture.hf_entries import GLOBAL, LOCAL, HFConfig
from featherback.models.architecture.names import Naming
from featherback.models.families.base import by_window
from featherback.models.families.gemma2 import CAPS, SCALE, Gemma, GemmaConfig, hf_scores, with_defaults
from featherback.nn.block import Block
from featherback.nn.rope import Rotary

WITH_IMAGES = "gemma3"
IMAGE_PARTS = ("vision_tower.", "multi_modal_projector.")
PERIOD = 6  # every sixth layer is global
LOCAL_BASE = 10_000.0

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
"""The defaults of transformers for missing entries of config.json."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Gemma3Config(GemmaConfig):
    """`rope_theta` is the base of the global layers, which have no window."""

    local_theta: float = LOCAL_BASE
    rope_divisor: float = 1.0  # divides the positions, in global layers

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("local_theta", "rope_divisor")


class Gemma3(Gemma):
    architecture = "gemma3"
    called = "Gemma 3"
    model_types = ("gemma3_text", WITH_IMAGES)
    window_period = PERIOD
    layers_27b = 62

    def read_gguf(self, keys: GGUFKeys) -> Gemma3Config:
        common = self.common(keys, (SCALING_TYPE, SCALE, LOCAL_THETA, *CAPS))
        return Gemma3Config(
            **common,
            local_theta=keys.number(LOCAL_THETA, LOCAL_BASE),
            rope_divisor=keys.linear_scaling(),
            attention_scale=self.scale_in_gguf(keys, common),
            **self.caps_in_gguf(keys),
        )

    def read_hf(self, config: HFConfig) -> Gemma3Config:
        config = with_defaults(config.text_part((WITH_IMAGES,)), HF_DEFAULTS)
        everywhere, local = _rope(config)
        period = config.integer("sliding_window_pattern", PERIOD)
        return Gemma3Config(
            **self.common_hf(config, ("hidden_act",), {"rope_theta": everywhere.get("rope_theta")}),
            windows=config.windows(config.integer("sliding_window"), lambda layer: (layer + 1) % max(period, 1) != 0),
            local_theta=config.number("rope_theta", LOCAL_BASE, local),
            rope_divisor=_divisor(config, everywhere),
            **hf_scores(config),
        )

    def naming(self, config: HFConfig | None) -> Naming:
        naming = super().naming(config)
        if config is None or config.entries["model_type"] != WITH_IMAGES:
            return naming
        tensors = {part: f"language_model.{name}" for part, name in self.hf_names.items()}
        modules = {part: name.replace("model.", "model.language_model.", 1) for part, name in self.hf_names.items()}
        return Naming(tensors, modules, IMAGE_PARTS, self.hf_norm_offset)

    def blocks(self, config: Gemma3Config) -> list[Block]:
        factors = None
        if config.rope_divisor != 1:
            factors = np.full(config.head_dim // 2, config.rope_divisor, np.float32)
        everywhere = Rotary(config.rope_theta, config.head_dim, config.rope_interleaved, factors)
        local = Rotary(config.local_theta, config.head_dim, config.rope_interleaved)
        return by_window(
            config, lambda window: self.block(config, local if window else everywhere, window, qk_norm="heads")
        )

    def gguf_keys(self, config: Any) -> dict[str, Value]:
        keys = super().gguf_keys(config) | {LOCAL_THETA: config.local_theta}
        if config.rope_divisor != 1:
            keys |= {SCALING_TYPE: "linear", SCALING_FACTOR: config.rope_divisor}
        return keys


def _rope(config: HFConfig) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The entries about rotary embedding, for global and for local layers.

    transformers 5 stores them by kind of layer, earlier versions in flat entries.
    """
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
    """The divisor of the positions. Raises FeatherbackError if the scaling is not linear."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "linear"):
        raise config.unsupported("rope_type", kind)
    return 1.0 if kind == "default" else config.number("factor", 0, rope)


FAMILY = Gemma3()
