"""BERT: an encoder. A token sees the tokens on both sides of it, and every sum is normed (post-LayerNorm).

x = ln(W[token] + P[position] + S[0]);   m = ln(x + lin_o(attention(x)));   y = ln(m + down(gelu(up(m))))

Here a block ends before its last norm, which the next block begins with (`nn/encoder.py`). RoBERTa's table of positions
has rows in front that no token uses, and its GGUF files lack them: there it is a BERT like the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from featherback.engine.backend.protocol import BOTH_WAYS
from featherback.engine.formats.writer import Value
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.expert_tensors import Stored, Tensors
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.gguf_metadata import LAYER_NORM_EPS
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import Names, Naming, OfLayerBefore
from featherback.models.families.base import Family, attention_sizes, mlp_sizes
from featherback.nn.attention import Attention
from featherback.nn.block import Block
from featherback.nn.encoder import PLACES, SEGMENTS, Norm, Places
from featherback.nn.glu import PlainMLP
from featherback.nn.linear import bias_of
from featherback.nn.slots import NORM, NORM_BIAS

EMBEDDING_NORM, FIRST_NORM, MIDDLE_NORM = "embedding_norm", "input_layernorm", "post_attention_layernorm"
CAUSAL, POOLING = "attention.causal", "pooling_type"
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj")
HIDDEN_ACT = "hidden_act"
ROBERTA = ("roberta", "xlm-roberta")

HF_DEFAULTS: Mapping[str, Any] = {
    HIDDEN_ACT: "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 2,
    "vocab_size": 30_522,
}
"""The defaults of transformers for missing entries of config.json; RoBERTa's config.json states them all."""


@dataclass(frozen=True, eq=False, kw_only=True)
class BertConfig(ModelConfig):
    """`max_position_embeddings` counts the rows that tokens use."""

    first_position: int = 0  # the row of the table of positions that a first token has
    segments: int = 2


def _names(layer: str, parts: Mapping[str, str], norms: Mapping[str, str], top: Names) -> Names:
    """Return the names of a format. `parts`: projection -> module; `norms`: norm -> module, the last one's as NORM."""
    names = dict(top)
    for part, module in parts.items():
        names[part] = f"{layer}{module}.weight"
        names[bias_of(part.removesuffix("_proj"))] = f"{layer}{module}.bias"
    for kind, of in (("weight", lambda norm: norm), ("bias", bias_of)):
        names[of(MIDDLE_NORM)] = f"{layer}{norms[MIDDLE_NORM]}.{kind}"
        names[of(FIRST_NORM)] = names[of(NORM)] = OfLayerBefore(f"{layer}{norms[NORM]}.{kind}")
        names[of(EMBEDDING_NORM)] = f"{norms[EMBEDDING_NORM]}.{kind}"
    return names


class Bert(Family):
    architecture = "bert"
    called = "BERT, RoBERTa"
    model_types = ("bert", *ROBERTA)
    is_encoder = True
    gguf_names: ClassVar[Names] = _names(
        "blk.{}.",
        dict(zip(PROJECTIONS, ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"), strict=True)),
        {MIDDLE_NORM: "attn_output_norm", NORM: "layer_output_norm", EMBEDDING_NORM: "token_embd_norm"},
        {
            "embed_tokens": "token_embd.weight",
            "lm_head": "output.weight",
            PLACES: "position_embd.weight",
            SEGMENTS: "token_types.weight",
        },
    )
    hf_names: ClassVar[Names] = _names(
        "encoder.layer.{}.",
        dict(
            zip(
                PROJECTIONS,
                (
                    *(f"attention.self.{name}" for name in ("query", "key", "value")),
                    "attention.output.dense",
                    "intermediate.dense",
                    "output.dense",
                ),
                strict=True,
            )
        ),
        {MIDDLE_NORM: "attention.output.LayerNorm", NORM: "output.LayerNorm", EMBEDDING_NORM: "embeddings.LayerNorm"},
        {
            "embed_tokens": "embeddings.word_embeddings.weight",
            "lm_head": "cls.predictions.decoder.weight",
            PLACES: "embeddings.position_embeddings.weight",
            SEGMENTS: "embeddings.token_type_embeddings.weight",
        },
    )

    def read_gguf(self, keys: GGUFKeys) -> BertConfig:
        if keys.flag(CAUSAL, True):
            raise keys.wrong(CAUSAL, True, "False, because tokens of BERT see both sides")
        common = self.common(keys, (CAUSAL, POOLING), eps=LAYER_NORM_EPS)
        segments = keys.tensor(self.gguf_names[SEGMENTS], 2).shape[0]
        return BertConfig(**{**common, "tie_word_embeddings": True}, attention_bias=True, segments=segments)

    def read_hf(self, config: HFConfig) -> BertConfig:
        config = config.with_defaults(HF_DEFAULTS)
        only = {
            "position_embedding_type": "absolute",
            HIDDEN_ACT: "gelu",
            "is_decoder": False,
            "add_cross_attention": False,
        }
        for name, value in only.items():
            if config.entries.get(name, value) != value:
                raise config.unsupported(name, config.entries[name], (str(value),))
        entries = {**config.entries, "rms_norm_eps": config.entries["layer_norm_eps"], "tie_word_embeddings": True}
        common = self.common_hf(HFConfig(config.path, entries), (HIDDEN_ACT,), {})
        first = config.integer("pad_token_id", 1) + 1 if config.entries["model_type"] in ROBERTA else 0
        common["max_position_embeddings"] -= first
        return BertConfig(
            **common, attention_bias=True, first_position=first, segments=config.integer("type_vocab_size")
        )

    def as_stored(self, config: ModelConfig, naming: Naming, tensors: Tensors) -> Stored:
        """Add the prefix of a model with a head, such as `bert.`, and leave out the heads."""
        table = naming.tensors["embed_tokens"]
        prefix = next((name.removesuffix(table) for name in tensors if name.endswith(f".{table}")), "")
        others = tuple({name.split(".")[0] + "." for name in tensors} - {prefix}) if prefix else ()
        named = {part: type(name)(prefix + name) for part, name in naming.tensors.items()}
        modules = {part: type(name)(prefix + name) for part, name in naming.modules.items()}
        ignored = (*others, f"{prefix}pooler.")
        return Stored(config, naming._replace(tensors=named, modules=modules, others=ignored), {})

    def of_layers(self, naming: Naming, layers: int) -> Naming:
        """The last norm is the last layer's."""
        last = {part: naming.tensors[part].format(layers) for part in (NORM, NORM_BIAS)}
        return naming._replace(tensors={**naming.tensors, **last})

    def blocks(self, config: BertConfig) -> list[Block]:
        width = config.hidden_size
        places = Places(
            config.max_position_embeddings + config.first_position, config.first_position, config.segments, width
        )
        first = [places, Norm(EMBEDDING_NORM, "embedded", width, config.rms_norm_eps)]
        return [
            self._block(config, first),
            *[self._block(config, [Norm(FIRST_NORM, "layer_in", width, config.rms_norm_eps)])]
            * (config.num_hidden_layers - 1),
        ]

    def _block(self, config: BertConfig, before: list[Any]) -> Block:
        attention = Attention(
            **{**attention_sizes(config), "interleaved": False}, rotary=None, pre_norm=None, bias=True,
            output_bias=True, window=BOTH_WAYS,
        )  # fmt: skip
        middle = Norm(MIDDLE_NORM, "attention_sum", config.hidden_size, config.rms_norm_eps)
        return Block([*before, attention, middle, PlainMLP(**mlp_sizes(config), pre_norm=None, activation="gelu")])

    def top_vectors(self, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        return {NORM_BIAS: (config.hidden_size,)}

    def gguf_keys(self, config: BertConfig) -> dict[str, Value]:
        return {CAUSAL: False, LAYER_NORM_EPS: config.rms_norm_eps}


FAMILY = Bert()
