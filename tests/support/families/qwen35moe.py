"""Qwen 3.5 with experts: its delta nets and attention, with experts, and a shared expert with a gate of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featherback.engine.formats.types import TensorType
from featherback.models.families.qwen35moe import DeltaMoeConfig
from tests.support.families import experts, qwen35
from tests.support.families.base import Cases, Family
from tests.support.families.experts import EXPERTS, joined, settings
from tests.support.families.qwen2moe import SHARED
from tests.support.families.qwen35 import TINY_QWEN35, delta_settings, restored
from tests.support.families.twin import Twin, entry

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

TINY_QWEN35MOE = DeltaMoeConfig(**{**vars(TINY_QWEN35), "architecture": "qwen35moe"}, **EXPERTS, shared_size=512)
PARTS = {**experts.names(), **SHARED}


def routed(reader: GGUFReader) -> dict[str, Any]:
    return settings(reader) | {
        "moe_intermediate_size": entry(reader, "expert_feed_forward_length"),
        "shared_expert_intermediate_size": entry(reader, "expert_shared_feed_forward_length"),
    }


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

    own = routed(reader) | delta_settings(reader, head_dim)
    return Twin(
        Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM, own, norms_from_one=True, restore=restored(reader, PARTS),
        arrange=joined,
    )  # fmt: skip


def converted(writer: GGUFWriter, c: Any) -> None:
    qwen35.converted(writer, c)
    experts.counts(writer, c)
    writer.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)


def variants() -> Cases:
    return {
        "qwen35moe-irregular": (
            replace(
                TINY_QWEN35MOE, tie_word_embeddings=False, num_hidden_layers=4, delta_layers=(True, False, False, True),
                gate_up_fused=True,
            ),
            {"": TensorType.Q8_0, "router": TensorType.F32},
        )
    }  # fmt: skip


FAMILY = Family(
    TINY_QWEN35MOE,
    TensorType.F32,
    twin,
    variants=variants,
    hf={
        "qwen3.5 with experts": qwen35.SIZES
        | {
            "intermediate_size": None,  # the converter then writes no feed_forward_length
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
        }
    },
    hf_type="qwen3_5_moe_text",
    converted=converted,
    written=qwen35.tiled,
    llama_cpp=qwen35.LLAMA_CPP,
)
