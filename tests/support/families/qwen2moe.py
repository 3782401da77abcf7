"""Qwen 2 with experts, and a shared expert with a gate of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featherback.engine.formats.types import TensorType
from featherback.models.architecture.experts import ExpertsConfig
from tests.support.families import experts
from tests.support.families.base import Cases, Family
from tests.support.families.experts import EXPERTS, names, settings
from tests.support.families.qwen2 import TINY_QWEN2
from tests.support.families.twin import Twin, entry, rope

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

TINY_QWEN2MOE = ExpertsConfig(
    **{**vars(TINY_QWEN2), "architecture": "qwen2moe"}, **EXPERTS, weights_normalised=False, shared_size=512
)
SHARED = {
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    routed = settings(reader) | {
        "moe_intermediate_size": entry(reader, "expert_feed_forward_length"),
        "shared_expert_intermediate_size": entry(reader, "expert_shared_feed_forward_length"),
        "norm_topk_prob": entry(reader, "expert_weights_norm"),
    }
    return Twin(Qwen2MoeConfig, Qwen2MoeForCausalLM, routed | rope(reader), names() | SHARED)


def converted(writer: GGUFWriter, c: Any) -> None:
    experts.converted(writer, c)
    writer.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)


def variants() -> Cases:
    return {
        "qwen2moe-normalised": (
            replace(TINY_QWEN2MOE, weights_normalised=True, num_hidden_layers=3, tie_word_embeddings=False),
            {"": TensorType.Q4_0, "router": TensorType.F32},
        )
    }


FAMILY = Family(
    TINY_QWEN2MOE,
    TensorType.Q8_0,
    twin,
    variants=variants,
    hf={
        "qwen2moe": {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64,
            "norm_topk_prob": False,
        }
    },
    hf_type="qwen2_moe",
    converted=converted,
    llama_cpp={"tie_word_embeddings": False},  # it expects a head of its own
    mlx={"tie_word_embeddings": False},
)
