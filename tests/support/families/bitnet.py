"""BitNet b1.58: norms inside attention and inside the gated unit, squared ReLU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featherback.engine.formats.types import TensorType
from featherback.models.families.bitnet import BitNetConfig
from tests.support.families.base import Cases, Family
from tests.support.families.qwen2 import TINY_QWEN2
from tests.support.families.twin import BLOCK, Twin, entry, rope

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

TINY_BITNET = BitNetConfig(
    **{
        **vars(TINY_QWEN2),
        "architecture": "bitnet",
        "attention_bias": False,
        "rms_norm_eps": 1e-5,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 512,
    },
    activation="relu2",
)
"""As wide as a block of TQ2_0."""


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    from transformers import BitNetConfig, BitNetForCausalLM

    block = BLOCK | {"attn_sub_norm": "self_attn.attn_sub_norm", "ffn_sub_norm": "mlp.ffn_sub_norm"}
    usual = "relu2" if reader.get_field("general.architecture").contents() == "bitnet-b1.58" else "silu"
    settings = {"hidden_act": entry(reader, "hidden_act", usual), "pad_token_id": None}
    return Twin(BitNetConfig, BitNetForCausalLM, settings | rope(reader), block)


def earlier(name: str) -> str:
    """A tensor's name in the first models of this kind, which the gguf package knows."""
    return name.replace("attn_sub_norm", "inner_attn_ln").replace("ffn_sub_norm", "ffn_layernorm")


def converted(writer: GGUFWriter, c: Any) -> None:
    from gguf import RopeScalingType

    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_rope_scaling_type(RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(1.0)
    writer.add_vocab_size(c.vocab_size)
    writer.add_string("bitnet.hidden_act", c.hidden_act)


def variants() -> Cases:
    narrow = {"hidden_size": 96, "num_attention_heads": 4, "head_dim": 24, "intermediate_size": 160}
    return {
        "bitnet-untied-tq1": (replace(TINY_BITNET, tie_word_embeddings=False), TensorType.TQ1_0),
        "bitnet-silu": (replace(TINY_BITNET, activation="silu", **narrow), TensorType.Q8_0),
        "bitnet-microsoft": (replace(TINY_BITNET, architecture="bitnet-b1.58", **narrow), TensorType.F32),
    }


FAMILY = Family(
    TINY_BITNET,
    TensorType.TQ2_0,
    twin,
    variants=variants,
    other_architectures=("bitnet-b1.58",),
    hf={
        "bitnet": {"hidden_act": "relu2", "tie_word_embeddings": True},
        "bitnet, silu": {
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
        },
    },
    converted=converted,
    llama_cpp={"activation": "silu"},  # the only one that it computes
    mlx=None,  # it reads packed weights only
)
