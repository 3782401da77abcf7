"""LFM2: gated short convolutions, and attention in some layers; both before a gated unit.

`config.json` has the kind of each layer (`layer_types`), or a list of the attention layers. A GGUF file has the number
of key-value heads of each layer, which is 0 for a convolution. The width of the gated unit is computed from entries of
`config.json`, as in transformers; a GGUF file states it. The last norm is named after the embedding.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from featherback.engine.formats.writer import Value
from featherback.errors import FeatherbackError
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.gguf_metadata import KV_HEADS
from featherback.models.architecture.hf_entries import GLOBAL, MOST_LAYERS, HFConfig
from featherback.models.architecture.names import GGUF_NAMES, HF_NAMES, Names
from featherback.models.families.base import Family, mlp_sizes, rotary, silu_block
from featherback.nn.block import Block
from featherback.nn.glu import GatedUnit
from featherback.nn.short_conv import ShortConv

TAPS = "shortconv.l_cache"
CONV = "conv"
MOST_TAPS, MOST_FACTOR = 64, 1024

HF_DEFAULTS: Mapping[str, Any] = {
    "block_auto_adjust_ff_dim": True,
    "block_multiple_of": 256,
    "conv_L_cache": 3,
    "hidden_size": 2560,
    "intermediate_size": 12_288,
    "max_position_embeddings": 128_000,
    "norm_eps": 1e-5,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "vocab_size": 65_536,
}
"""The defaults of transformers for missing entries of config.json."""
OTHER_NAMES = {"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}
"""Entry -> the entry that it replaces."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Lfm2Config(ModelConfig):
    taps: int  # number of taps of a convolution
    convolves: tuple[bool, ...]  # for each layer: a convolution, else attention

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.taps <= MOST_TAPS:
            raise FeatherbackError(f"The model's convolutions have {self.taps} taps; 2 to {MOST_TAPS} are supported.")
        if len(self.convolves) != self.num_hidden_layers:
            raise FeatherbackError(
                f"The model's list of convolution and attention layers has {len(self.convolves)} entries; it needs one "
                f"for each of its {self.num_hidden_layers} layers."
            )


class Lfm2(Family):
    architecture = "lfm2"
    called = "LFM2"
    model_types = ("lfm2",)
    gguf_names: ClassVar[Names] = {
        **GGUF_NAMES,
        "norm": "token_embd_norm.weight",
        "conv_in_proj": "blk.{}.shortconv.in_proj.weight",
        "conv": "blk.{}.shortconv.conv.weight",
        "conv_out_proj": "blk.{}.shortconv.out_proj.weight",
    }
    hf_names: ClassVar[Names] = {
        **HF_NAMES,
        "norm": "model.embedding_norm.weight",
        "input_layernorm": "model.layers.{}.operator_norm.weight",
        "post_attention_layernorm": "model.layers.{}.ffn_norm.weight",
        "q_norm": "model.layers.{}.self_attn.q_layernorm.weight",
        "k_norm": "model.layers.{}.self_attn.k_layernorm.weight",
        "o_proj": "model.layers.{}.self_attn.out_proj.weight",
        "gate_proj": "model.layers.{}.feed_forward.w1.weight",
        "up_proj": "model.layers.{}.feed_forward.w3.weight",
        "down_proj": "model.layers.{}.feed_forward.w2.weight",
        "conv_in_proj": "model.layers.{}.conv.in_proj.weight",
        "conv": "model.layers.{}.conv.conv.weight",
        "conv_out_proj": "model.layers.{}.conv.out_proj.weight",
    }

    def read_gguf(self, keys: GGUFKeys) -> Lfm2Config:
        return Lfm2Config(**self.read_fields(keys))

    def read_fields(self, keys: GGUFKeys, followed: Collection[str] = ()) -> dict[str, Any]:
        """Read the arguments of Lfm2Config. `followed`: further keys that the family reads itself."""
        common = self.common(keys, (KV_HEADS, *followed))
        heads = keys.integers(KV_HEADS, common["num_hidden_layers"])
        kinds = {count for count in heads if count}
        if len(kinds) > 1:
            raise keys.wrong(KV_HEADS, sorted(kinds), "the same number in all layers with attention")
        return {
            **common,
            "num_key_value_heads": kinds.pop() if kinds else common["num_attention_heads"],
            "taps": keys.integer(TAPS),
            "convolves": tuple(count == 0 for count in heads),
        }

    def read_hf(self, config: HFConfig) -> Lfm2Config:
        stated = with_defaults(config, HF_DEFAULTS)
        return Lfm2Config(**self.read_hf_fields(stated) | {"intermediate_size": _width(stated)})

    def read_hf_fields(self, config: HFConfig) -> dict[str, Any]:
        """Read the arguments of Lfm2Config from the entries of `with_defaults`."""
        if config.flag("conv_bias", False):
            raise config.unsupported("conv_bias", True)
        return {**self.common_hf(config), "taps": config.integer("conv_L_cache"), "convolves": _convolves(config)}

    def blocks(self, config: Lfm2Config) -> list[Block]:
        attention = silu_block(config, rotary(config), window=0, qk_norm="heads")
        first = ShortConv(hidden_size=config.hidden_size, taps=config.taps, eps=config.rms_norm_eps)
        convolution = Block([first, GatedUnit(**mlp_sizes(config))])
        return [convolution if convolves else attention for convolves in config.convolves]

    def gguf_keys(self, config: Lfm2Config) -> dict[str, Value]:
        heads = [0 if convolves else config.num_key_value_heads for convolves in config.convolves]
        return {KV_HEADS: np.array(heads, np.int32), TAPS: config.taps}


def with_defaults(config: HFConfig, defaults: Mapping[str, Any]) -> HFConfig:
    """Return the entries with transformers' defaults, under the names that other families have."""
    entries = config.with_defaults(defaults).entries
    renamed = {name: entries[other] for other, name in OTHER_NAMES.items() if other in entries}
    return HFConfig(config.path, {**entries, **renamed, "rms_norm_eps": entries["norm_eps"]})


def _width(config: HFConfig) -> int:
    """The width of the gated unit: two thirds of the entry, times a factor, rounded up to a multiple."""
    width = config.integer("intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim", True):
        return width
    width = int(2 * width / 3)
    multiple = config.integer("block_multiple_of")
    if multiple < 1:
        raise config.unsupported("block_multiple_of", multiple)
    factor = config.number("block_ffn_dim_multiplier", 1)
    if not 0 < factor < MOST_FACTOR:
        raise config.unsupported("block_ffn_dim_multiplier", factor)
    return -(-int(factor * width) // multiple) * multiple


def _convolves(config: HFConfig) -> tuple[bool, ...]:
    """Whether each layer is a convolution: from `layer_types`, or `full_attn_idxs`; without either, none is."""
    layers, types = config.integer("num_hidden_layers"), config.entries.get("layer_types")
    if not 0 < layers <= MOST_LAYERS:
        raise config.unsupported("num_hidden_layers", layers)
    if types is None:
        attending = config.entries.get("full_attn_idxs", list(range(layers)))
        if not isinstance(attending, list) or any(type(layer) is not int for layer in attending):
            raise config.unsupported("full_attn_idxs", attending, ("a list of layer numbers",))
        listed = set(attending)
        types = [GLOBAL if layer in listed else CONV for layer in range(layers)]
    if not isinstance(types, list) or len(types) != layers or not {CONV, GLOBAL}.issuperset(map(str, types)):
        raise config.unsupported("layer_types", types)
    return tuple(kind == CONV for kind in types)


FAMILY = Lfm2()
