"""StarCoder2: LayerNorms, an MLP without a gate, and biases everywhere. RoPE and grouped queries are Llama's.

m = x + lin_o(attention(ln(x)));   y = m + down(gelu(up(ln(m)))),   ln(x) = (x - mean) / std g + b

transformers calls up and down c_fc and c_proj. A folder states a window, which all layers have. llama.cpp ignores the
window, and its converter does not write it: a GGUF file has one only if it states it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from featherback.engine.formats.writer import Value
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.gguf_metadata import LAYER_NORM_EPS
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import GGUF_NAMES, HF_NAMES, Names, without
from featherback.models.families.base import Family, attention_sizes, mlp_sizes
from featherback.nn.attention import Attention
from featherback.nn.block import Block
from featherback.nn.glu import PlainMLP
from featherback.nn.linear import bias_of
from featherback.nn.rope import Rotary
from featherback.nn.slots import NORM, NORM_BIAS

EPS = "norm_epsilon"
ACTIVATION, ACTIVATIONS = "hidden_act", ("gelu_pytorch_tanh", "gelu_new")

HF_DEFAULTS: Mapping[str, Any] = {
    EPS: 1e-5,
    ACTIVATION: ACTIVATIONS[0],
    "hidden_size": 3072,
    "intermediate_size": 12_288,
    "max_position_embeddings": 4096,
    "num_attention_heads": 24,
    "num_hidden_layers": 30,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": 49_152,
}
"""The defaults of transformers for missing entries of config.json."""


def _with_biases(names: Names) -> Names:
    """Add the names of the biases of all norms, of o, up and down, and leave out the gate."""
    owners = {bias_of(norm): norm for norm in (NORM, "input_layernorm", "post_attention_layernorm")}
    owners |= {f"{part}_bias": f"{part}_proj" for part in ("o", "up", "down")}
    biases = {bias: f"{names[owner].removesuffix('.weight')}.bias" for bias, owner in owners.items()}
    return {**without(("gate_proj",), names), **biases}


class StarCoder2(Family):
    architecture = "starcoder2"
    called = "StarCoder2"
    model_types = ("starcoder2",)
    gguf_names: ClassVar[Names] = _with_biases(GGUF_NAMES)
    hf_names: ClassVar[Names] = _with_biases(
        {**HF_NAMES, "up_proj": "model.layers.{}.mlp.c_fc.weight", "down_proj": "model.layers.{}.mlp.c_proj.weight"}
    )
    window_period = 0

    def read_gguf(self, keys: GGUFKeys) -> ModelConfig:
        common = self.common(keys, eps=LAYER_NORM_EPS)
        return ModelConfig(**common, attention_bias=True)

    def read_hf(self, config: HFConfig) -> ModelConfig:
        config = config.with_defaults(HF_DEFAULTS)
        if not config.flag("use_bias", True):
            raise config.unsupported("use_bias", False)
        if (activation := config.entries[ACTIVATION]) not in ACTIVATIONS:
            raise config.unsupported(ACTIVATION, activation, ACTIVATIONS)
        config = HFConfig(config.path, {**config.entries, "rms_norm_eps": config.entries[EPS]})
        return ModelConfig(
            **self.common_hf(config, (ACTIVATION,)),
            attention_bias=True,
            windows=config.windows(config.integer("sliding_window", 0), lambda layer: True),
        )

    def block(self, config: ModelConfig, turn: Rotary, window: int) -> Block:
        further: dict[str, Any] = {"bias": True, "output_bias": True, "layer_norm": True}
        first = Attention(**attention_sizes(config), rotary=turn, window=window, **further)
        return Block([first, PlainMLP(**mlp_sizes(config))])

    def top_vectors(self, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        return {NORM_BIAS: (config.hidden_size,)}

    def gguf_keys(self, config: ModelConfig) -> dict[str, Value]:
        return {LAYER_NORM_EPS: config.rms_norm_eps}


FAMILY = StarCoder2()
