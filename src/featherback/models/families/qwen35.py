"""Qwen 3.5 (dense, the text model): gated delta nets, and attention with an output gate in every fourth layer.

Queries and keys are normed by head, and a quarter of each head rotates. The model has three sets of positions, for
images; in text they are equal, so that the sections of the rotation do not matter. A model may also hold layers that
predict further tokens, and a folder a vision model. They are not used.

A GGUF file stores 1 + w for norms but the one inside the delta net, A instead of log(-A), and V heads in another order:
those that share a K head are not neighbours (`nn.branch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from featherback.engine.formats.writer import Value
from featherback.errors import FeatherbackError
from featherback.models.architecture import hf_config
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.expert_tensors import Stored, Tensors
from featherback.models.architecture.gguf_keys import ROTARY_DIM, GGUFKeys
from featherback.models.architecture.hf_entries import GLOBAL, MOST_LAYERS, HFConfig
from featherback.models.architecture.names import GGUF_NAMES, HF_NAMES, Names, Naming
from featherback.models.families.base import Family, attention_sizes, mlp_sizes, rotary
from featherback.nn.block import Block
from featherback.nn.delta_net import DeltaNet
from featherback.nn.gated_attention import GatedAttention
from featherback.nn.glu import GatedUnit

TAPS, STATE, GROUPS = "ssm.conv_kernel", "ssm.state_size", "ssm.group_count"
V_HEADS, INNER, INTERVAL = "ssm.time_step_rank", "ssm.inner_size", "full_attention_interval"
RECURRENT = "attention.recurrent_layers"
FURTHER_TOKENS = "nextn_predict_layers"
SECTIONS = "rope.dimension_sections"
PERIOD = 4  # every fourth layer is attention, if a file does not say
DELTA = "linear_attention"
WITH_IMAGES = ("qwen3_5", "qwen3_5_moe")
OTHERS = ("model.visual.", "vision_tower.", "mtp.")
MLX_PREFIX, CONV_WEIGHT = "language_model.", ".conv1d.weight"
MOST_TAPS, MOST_HEADS, MOST_HEAD_SIZE = 64, 1 << 12, 1 << 10

HF_DEFAULTS: Mapping[str, Any] = {
    "attn_output_gate": True,
    "full_attention_interval": PERIOD,
    "head_dim": 256,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 32_768,
    "num_attention_heads": 16,
    "num_hidden_layers": 32,
    "num_key_value_heads": 4,
    "partial_rotary_factor": 0.25,
    "vocab_size": 248_320,
}
"""The defaults of transformers for missing entries of config.json."""

_DELTA, _HF_DELTA = "blk.{}.", "model.layers.{}.linear_attn."


@dataclass(frozen=True, eq=False, kw_only=True)
class DeltaConfig(ModelConfig):
    """A model some of whose layers are gated delta nets."""

    delta_k_heads: int
    delta_v_heads: int
    delta_k_dim: int
    delta_v_dim: int
    taps: int  # of the convolution
    delta_layers: tuple[bool, ...]  # for each layer: a delta net, else attention
    converted: bool = False  # A and the V heads are stored as in a GGUF file

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = {"delta_k_heads": MOST_HEADS, "delta_v_heads": MOST_HEADS}
        for name, most in (sizes | {"delta_k_dim": MOST_HEAD_SIZE, "delta_v_dim": MOST_HEAD_SIZE}).items():
            if not 1 <= getattr(self, name) <= most:
                raise FeatherbackError(f"The model's {name} is {getattr(self, name)}; 1 to {most} are supported.")
        if self.delta_v_heads % self.delta_k_heads:
            raise FeatherbackError(
                f"The {self.delta_v_heads} value heads of the model's delta nets do not divide into groups for "
                f"{self.delta_k_heads} key heads."
            )
        if not 2 <= self.taps <= MOST_TAPS:
            raise FeatherbackError(f"The model's convolutions have {self.taps} taps; 2 to {MOST_TAPS} are supported.")
        if len(self.delta_layers) != self.num_hidden_layers:
            raise FeatherbackError(
                f"The model's list of delta nets and attention layers has {len(self.delta_layers)} entries; it needs "
                f"one for each of its {self.num_hidden_layers} layers."
            )


class Qwen35(Family):
    architecture = "qwen35"
    called = "Qwen 3.5"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_5", "qwen3_5_text")
    gguf_names: ClassVar[Names] = {
        **GGUF_NAMES,
        "post_attention_layernorm": _DELTA + "post_attention_norm.weight",
        "qkv_proj": _DELTA + "attn_qkv.weight",
        "z_proj": _DELTA + "attn_gate.weight",
        "a_proj": _DELTA + "ssm_alpha.weight",
        "b_proj": _DELTA + "ssm_beta.weight",
        "delta_out_proj": _DELTA + "ssm_out.weight",
        "conv": _DELTA + "ssm_conv1d.weight",
        "decay": _DELTA + "ssm_a",
        "dt": _DELTA + "ssm_dt.bias",
        "gain": _DELTA + "ssm_norm.weight",
    }
    hf_names: ClassVar[Names] = {
        **HF_NAMES,
        **{f"{part}_proj": f"{_HF_DELTA}in_proj_{part}.weight" for part in ("qkv", "z", "a", "b")},
        "delta_out_proj": _HF_DELTA + "out_proj.weight",
        "conv": _HF_DELTA + "conv1d.weight",
        "decay": _HF_DELTA + "A_log",
        "dt": _HF_DELTA + "dt_bias",
        "gain": _HF_DELTA + "norm.weight",
    }
    mlx_names: ClassVar[Names] = {name: f"language_model.{module}" for name, module in hf_names.items()}
    hf_norm_offset = 1.0

    def read_gguf(self, keys: GGUFKeys) -> DeltaConfig:
        common = self.common(keys, (ROTARY_DIM,))
        return DeltaConfig(**(common | delta_in_gguf(keys, common)))

    def unused(self, keys: GGUFKeys) -> tuple[str, ...]:
        """The tensors of the layers that predict further tokens: the last ones."""
        layers, further = keys.integer("block_count"), keys.integer(FURTHER_TOKENS, 0)
        prefixes = tuple(f"blk.{layers - 1 - number}." for number in range(min(further, len(keys.file.tensors))))
        return tuple(name for name in keys.file.tensors if name.startswith(prefixes))

    def read_hf(self, config: HFConfig) -> DeltaConfig:
        return DeltaConfig(**delta_in_hf(config.text_part(WITH_IMAGES).with_defaults(HF_DEFAULTS), self.architecture))

    def naming(self, config: HFConfig | None) -> Naming:
        if config is None:
            return Naming(self.gguf_names, self.hf_names)
        names = self.hf_names
        if config.entries["model_type"] in WITH_IMAGES:
            names = {part: name.replace("model.", "model.language_model.", 1) for part, name in names.items()}
        return Naming(names, names, OTHERS, self.hf_norm_offset)

    def as_stored(self, config: ModelConfig, naming: Naming, tensors: Tensors) -> Stored:
        """MLX's folders put `language_model.` before every name, store 1 + w for norms, and (C, K, 1) for taps."""
        if any(name.startswith(MLX_PREFIX) for name in tensors):
            plain = {part: name.replace("model.language_model.", "model.", 1) for part, name in naming.tensors.items()}
            naming = naming._replace(tensors={part: MLX_PREFIX + name for part, name in plain.items()})
        conv = next((info for name, info in tensors.items() if name.endswith(CONV_WEIGHT)), None)
        if conv is not None and len(conv.shape) == 3 and conv.shape[-1] == 1:
            naming = naming._replace(norm_offset=0.0)
        return super().as_stored(config, naming, tensors)

    def blocks(self, config: DeltaConfig) -> list[Block]:
        attention = GatedAttention(**attention_sizes(config), rotary=rotary(config))
        mlp = GatedUnit(**mlp_sizes(config))
        return by_kind(config, Block([delta_net(config), mlp]), Block([attention, mlp]))

    def gguf_keys(self, config: DeltaConfig) -> dict[str, Value]:
        return delta_gguf_keys(config)


def delta_net(config: DeltaConfig, kind: type[DeltaNet] = DeltaNet) -> DeltaNet:
    """Make the delta net of a configuration."""
    return kind(
        hidden_size=config.hidden_size,
        k_heads=config.delta_k_heads,
        v_heads=config.delta_v_heads,
        k_dim=config.delta_k_dim,
        v_dim=config.delta_v_dim,
        taps=config.taps,
        eps=config.rms_norm_eps,
        converted=config.converted,
    )


def by_kind(config: DeltaConfig, delta: Block, attention: Block) -> list[Block]:
    """Return the layers in order."""
    return [delta if is_delta else attention for is_delta in config.delta_layers]


def delta_in_gguf(keys: GGUFKeys, common: Mapping[str, Any]) -> dict[str, Any]:
    """Read the delta nets of a GGUF file, as arguments of DeltaConfig, and the number of layers that text uses."""
    heads, inner = keys.integer(V_HEADS), keys.integer(INNER)
    if heads < 1 or inner % heads:
        raise keys.wrong(V_HEADS, heads, f"a number of heads that divides {INNER}, {inner}")
    stored, further = common["num_hidden_layers"], keys.integer(FURTHER_TOKENS, 0)
    if not 0 <= further < max(stored, 1):
        raise keys.wrong(FURTHER_TOKENS, further, f"0 or more, and less than the {stored} layers of the file")
    layers = stored - further
    return {
        "num_hidden_layers": layers,
        "delta_k_heads": keys.integer(GROUPS),
        "delta_v_heads": heads,
        "delta_k_dim": keys.integer(STATE),
        "delta_v_dim": inner // heads,
        "taps": keys.integer(TAPS),
        "delta_layers": _delta_layers(keys, stored, layers),
        "converted": True,
    }


def _delta_layers(keys: GGUFKeys, stored: int, layers: int) -> tuple[bool, ...]:
    """Read which of the first `layers` layers are delta nets: a list for all `stored` layers, or an interval."""
    if (listed := keys.flags(RECURRENT, stored)) is not None:
        return tuple(listed[:layers])
    if (interval := keys.integer(INTERVAL, PERIOD)) < 1:
        raise keys.wrong(INTERVAL, interval, "at least 1")
    return every(interval, min(layers, len(keys.file.tensors) + 1))  # a corrupt file may claim many


def delta_in_hf(config: HFConfig, architecture: str) -> dict[str, Any]:
    """Read the arguments of DeltaConfig from a config.json. Rejects attention without an output gate."""
    for name, wanted in {"attn_output_gate": True, "attention_bias": False}.items():
        if config.flag(name, wanted) != wanted:
            raise config.unsupported(name, not wanted)
    layers, types = config.integer("num_hidden_layers"), config.entries.get("layer_types")
    interval = config.integer("full_attention_interval")
    if not 0 < layers <= MOST_LAYERS:
        raise config.unsupported("num_hidden_layers", layers)
    if interval < 1:
        raise config.unsupported("full_attention_interval", interval)
    if types is None:
        types = [DELTA if is_delta else GLOBAL for is_delta in every(interval, layers)]
    if not isinstance(types, list) or len(types) != layers or not {DELTA, GLOBAL}.issuperset(map(str, types)):
        raise config.unsupported("layer_types", types)
    return {
        **hf_config.common_config(config, architecture, ("partial_rotary_factor",)),
        "delta_k_heads": config.integer("linear_num_key_heads"),
        "delta_v_heads": config.integer("linear_num_value_heads"),
        "delta_k_dim": config.integer("linear_key_head_dim"),
        "delta_v_dim": config.integer("linear_value_head_dim"),
        "taps": config.integer("linear_conv_kernel_dim"),
        "delta_layers": tuple(kind == DELTA for kind in types),
    }


def delta_gguf_keys(config: DeltaConfig) -> dict[str, Value]:
    """The inverse of `delta_in_gguf`."""
    layers, rotated = config.num_hidden_layers, config.rotary_dim or config.head_dim
    interval = config.delta_layers.index(False) + 1 if False in config.delta_layers else layers + 1
    regular = config.delta_layers == every(interval, layers)
    return {
        ROTARY_DIM: rotated,
        SECTIONS: np.array([(rotated // 2 + 2 - axis) // 3 for axis in range(3)] + [0], np.int32),
        TAPS: config.taps,
        STATE: config.delta_k_dim,
        GROUPS: config.delta_k_heads,
        V_HEADS: config.delta_v_heads,
        INNER: config.delta_v_heads * config.delta_v_dim,
        **({INTERVAL: interval} if regular else {RECURRENT: np.array(config.delta_layers)}),
    }


def every(interval: int, layers: int) -> tuple[bool, ...]:
    """Whether each layer is a delta net, if each `interval`-th is attention."""
    return tuple((layer + 1) % interval != 0 for layer in range(layers))


FAMILY = Qwen35()
