"""BitNet b1.58: ternary weights, squared ReLU, and a norm inside attention and inside the gated unit.

m = x + lin_o(rms(attention(rms(x) g)) g');   y = m + down(rms(relu(gate(n))^2 up(n)) g''),  n = rms(m) g

llama.cpp calls the architecture bitnet, and reads the activation from the key `hidden_act`: SiLU if it is missing, as
in the first community models. Microsoft's fork calls it bitnet-b1.58, whose activation is always squared ReLU. The
weights are frozen, and activations are not rounded: docs/families/bitnet.md says what exact gradients refer to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from featherback.engine.formats.writer import Value
from featherback.errors import FeatherbackError, excerpt
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import GGUF_NAMES, HF_NAMES, Names
from featherback.models.families.base import Family, attention_sizes, mlp_sizes, rotary
from featherback.nn.block import Block
from featherback.nn.sub_norm import SubNormedAttention, SubNormedUnit

ACTIVATION = "hidden_act"
ACTIVATIONS = ("relu2", "silu")
MICROSOFT = "bitnet-b1.58"

HF_DEFAULTS: Mapping[str, Any] = {
    ACTIVATION: "relu2",
    "hidden_size": 2560,
    "intermediate_size": 6912,
    "max_position_embeddings": 2048,
    "num_attention_heads": 20,
    "num_hidden_layers": 30,
    "num_key_value_heads": 5,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "vocab_size": 128_256,
}
"""The defaults of transformers for missing entries of config.json."""


@dataclass(frozen=True, eq=False, kw_only=True)
class BitNetConfig(ModelConfig):
    activation: str  # of the gate: one of ACTIVATIONS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activation not in ACTIVATIONS:
            raise FeatherbackError(
                f"The model's activation is {excerpt(self.activation)}; supported: {', '.join(ACTIVATIONS)}."
            )


class BitNet(Family):
    architecture = "bitnet"
    other_architectures = (MICROSOFT,)
    called = "BitNet b1.58"
    model_types = ("bitnet",)
    gguf_names: ClassVar[Names] = {
        **GGUF_NAMES,
        "attn_sub_norm": "blk.{}.attn_sub_norm.weight",
        "ffn_sub_norm": "blk.{}.ffn_sub_norm.weight",
    }
    hf_names: ClassVar[Names] = {
        **HF_NAMES,
        "attn_sub_norm": "model.layers.{}.self_attn.attn_sub_norm.weight",
        "ffn_sub_norm": "model.layers.{}.mlp.ffn_sub_norm.weight",
    }

    def read_gguf(self, keys: GGUFKeys) -> BitNetConfig:
        usual = "relu2" if keys.architecture == MICROSOFT else "silu"
        return BitNetConfig(**self.common(keys), activation=keys.text(ACTIVATION) or usual)

    def read_hf(self, config: HFConfig) -> BitNetConfig:
        config = config.with_defaults(HF_DEFAULTS)
        if config.flag("attention_bias", False):
            raise config.unsupported("attention_bias", True)
        activation = config.entries[ACTIVATION]
        if activation not in ACTIVATIONS:
            raise config.unsupported(ACTIVATION, activation, ACTIVATIONS)
        return BitNetConfig(**self.common_hf(config, (ACTIVATION,)), activation=activation)

    def blocks(self, config: BitNetConfig) -> list[Block]:
        block = Block(
            [
                SubNormedAttention(**attention_sizes(config), rotary=rotary(config)),
                SubNormedUnit(**mlp_sizes(config), activation=config.activation),
            ]
        )
        return [block] * config.num_hidden_layers

    def gguf_keys(self, config: BitNetConfig) -> dict[str, Value]:
        return {ACTIVATION: config.activation}


FAMILY = BitNet()
