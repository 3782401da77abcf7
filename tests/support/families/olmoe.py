"""OLMoE: weights of experts not normalised, a norm over all heads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from featherback.engine.formats.types import TensorType
from featherback.models.architecture.experts import ExpertsConfig
from tests.support.families.base import Cases, Family
from tests.support.families.experts import EXPERTS, converted, names, settings
from tests.support.families.olmo2 import TINY_OLMO2
from tests.support.families.twin import Twin, entry, rope

if TYPE_CHECKING:
    from gguf import GGUFReader

TINY_OLMOE = ExpertsConfig(
    **{**vars(TINY_OLMO2), "architecture": "olmoe", "intermediate_size": 256, "head_dim": 24},
    **EXPERTS,
    weights_normalised=False,
)


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    from transformers import OlmoeConfig, OlmoeForCausalLM

    experts = settings(reader) | {"norm_topk_prob": entry(reader, "expert_weights_norm")}
    return Twin(OlmoeConfig, OlmoeForCausalLM, experts | rope(reader), names())


def variants() -> Cases:
    return {
        "olmoe-normalised": (
            replace(TINY_OLMOE, weights_normalised=True, experts=5, experts_used=2, tie_word_embeddings=False),
            {"": TensorType.Q8_0, "router": TensorType.F32},
        )
    }


FAMILY = Family(
    TINY_OLMOE,
    TensorType.Q8_0,
    twin,
    variants=variants,
    compositions=(),
    hf={"olmoe": {"num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": False}},
    converted=converted,
    llama_cpp={"num_key_value_heads": 4},  # it expects as many as heads
)
