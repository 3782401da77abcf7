"""LFM2 with experts: sigmoids, a bias that only selects, and first layers without experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featherback.engine.formats.types import TensorType
from featherback.models.families.lfm2moe import Lfm2MoeConfig
from tests.support.families import experts, lfm2
from tests.support.families.base import Cases, Family
from tests.support.families.experts import EXPERTS, names, settings
from tests.support.families.lfm2 import TINY_LFM2
from tests.support.families.twin import Twin, entry

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

TINY_LFM2MOE = Lfm2MoeConfig(
    **{**vars(TINY_LFM2), "architecture": "lfm2moe"},
    **EXPERTS,
    sigmoid_gating=True,
    weights_scale=2.5,
    dense_layers=1,
    selection_bias=True,
)


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    from transformers import Lfm2MoeConfig, Lfm2MoeForCausalLM

    dense = lfm2.twin(reader, head_dim)
    routed = settings(reader) | {
        "moe_intermediate_size": entry(reader, "expert_feed_forward_length"),
        "num_dense_layers": entry(reader, "leading_dense_block_count"),
        "routed_scaling_factor": entry(reader, "expert_weights_scale"),
        "norm_topk_prob": entry(reader, "expert_weights_norm"),
        "use_expert_bias": any(tensor.name.endswith("exp_probs_b.bias") for tensor in reader.tensors),
    }
    block = names("feed_forward") | {**dense.block}
    return Twin(Lfm2MoeConfig, Lfm2MoeForCausalLM, {**dense.settings, **routed}, block)


def converted(writer: GGUFWriter, c: Any) -> None:
    from gguf import ExpertGatingFuncType

    heads = [c.num_key_value_heads if kind == "full_attention" else 0 for kind in c.layer_types]
    del writer.kv_data[0]["lfm2moe.attention.head_count_kv"]
    writer.add_head_count_kv(heads)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_vocab_size(c.vocab_size)
    writer.add_shortconv_l_cache(c.conv_L_cache)
    writer.add_leading_dense_block_count(c.num_dense_layers)
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    experts.counts(writer, c)


def variants() -> Cases:
    return {
        "lfm2moe-unscaled-no-bias": (
            replace(
                TINY_LFM2MOE,
                weights_normalised=False,
                weights_scale=1.0,
                selection_bias=False,
                dense_layers=2,
                tie_word_embeddings=False,
            ),
            {"": TensorType.Q4_0, "router": TensorType.F32},
        )
    }


FAMILY = Family(
    TINY_LFM2MOE,
    TensorType.Q8_0,
    twin,
    variants=variants,
    hf={
        "lfm2moe": {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "num_dense_layers": 1,
            "layer_types": ["conv", "full_attention", "conv", "conv", "conv"],
            "norm_topk_prob": True,
        }
    },
    hf_type="lfm2_moe",
    converted=converted,
    llama_cpp={"weights_scale": 1.0},  # which it does not read
)
