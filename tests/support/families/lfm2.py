"""LFM2: gated short convolutions, attention in some layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featherback.engine.formats.types import TensorType
from featherback.models.families.lfm2 import Lfm2Config
from tests.support.families.base import Cases, Family
from tests.support.families.qwen2 import TINY_QWEN2
from tests.support.families.twin import BLOCK, Twin, entry, rope

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

KV_HEADS = "attention.head_count_kv"
TINY_LFM2 = Lfm2Config(
    **{**vars(TINY_QWEN2), "architecture": "lfm2", "attention_bias": False, "num_hidden_layers": 4},
    taps=3,
    convolves=(True, False, True, True),
)


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    from transformers import Lfm2Config, Lfm2ForCausalLM

    block = BLOCK | {
        "attn_norm": "operator_norm",
        "ffn_norm": "ffn_norm",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
        **{f"shortconv.{part}": f"conv.{part}" for part in ("in_proj", "conv", "out_proj")},
    }
    settings = {
        "conv_L_cache": entry(reader, "shortconv.l_cache"),
        "layer_types": ["full_attention" if heads else "conv" for heads in entry(reader, KV_HEADS)],
        "norm_eps": entry(reader, "attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,
        "pad_token_id": None,
    }
    return Twin(Lfm2Config, Lfm2ForCausalLM, settings | rope(reader), block)


def converted(writer: GGUFWriter, c: Any) -> None:
    """Key-value heads layer by layer, and the width that the modules have."""
    for key in (KV_HEADS, "feed_forward_length"):
        del writer.kv_data[0][f"lfm2.{key}"]
    writer.add_head_count_kv([c.num_key_value_heads if kind == "full_attention" else 0 for kind in c.layer_types])
    writer.add_feed_forward_length(256)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_vocab_size(c.vocab_size)
    writer.add_shortconv_l_cache(c.conv_L_cache)


def variants() -> Cases:
    return {
        "lfm2-untied-four-taps": (
            replace(TINY_LFM2, taps=4, convolves=(False, True, True, False), tie_word_embeddings=False),
            TensorType.Q8_0,
        )
    }


FAMILY = Family(
    TINY_LFM2,
    TensorType.Q4_0,
    twin,
    variants=variants,
    hf={
        # 256 wide, of 390: two thirds, rounded up to a multiple
        "lfm2": {"intermediate_size": 300, "full_attn_idxs": [1, 3], "conv_L_cache": 3},
        "lfm2, four taps": {
            "block_ff_dim": 390,
            "block_ffn_dim_multiplier": 0.75,
            "block_multiple_of": 128,
            "layer_types": ["conv", "full_attention", "conv", "conv", "conv"],
            "conv_L_cache": 4,
        },
    },
    converted=converted,
)
