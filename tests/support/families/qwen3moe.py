"""Qwen 3 with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from featherback.engine.formats.types import TensorType
from featherback.models.architecture.experts import ExpertsConfig
from tests.support.families.base import YARN, Cases, Family
from tests.support.families.experts import EXPERTS, converted, names, settings
from tests.support.families.qwen3 import TINY_QWEN3
from tests.support.families.twin import Twin, entry, rope

if TYPE_CHECKING:
    from gguf import GGUFReader

TINY_QWEN3MOE = ExpertsConfig(**{**vars(TINY_QWEN3), "architecture": "qwen3moe"}, **EXPERTS)
TYPES = {"": TensorType.Q4_0, "down_exps": TensorType.Q6_K, "router": TensorType.F32}


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    experts = settings(reader) | {
        "moe_intermediate_size": entry(reader, "expert_feed_forward_length"),
        "norm_topk_prob": entry(reader, "expert_weights_norm"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    return Twin(Qwen3MoeConfig, Qwen3MoeForCausalLM, experts | rope(reader), names())


def variants() -> Cases:
    return {
        "qwen3moe-plain-weights": (
            replace(TINY_QWEN3MOE, weights_normalised=False, rope_scaling=YARN, num_hidden_layers=3),
            TensorType.Q8_0,
        ),
        "qwen3moe-untied-fused-all-used": (
            replace(TINY_QWEN3MOE, tie_word_embeddings=False, experts=4, experts_used=4, gate_up_fused=True),
            TensorType.Q8_0,
        ),
    }


FAMILY = Family(
    TINY_QWEN3MOE,
    TYPES,
    twin,
    variants=variants,
    hf={
        "qwen3moe": {
            "head_dim": 32,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        }
    },
    hf_type="qwen3_moe",
    converted=converted,
    llama_cpp={},
)
