"""Granite with experts, with and without a shared expert."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featherback.engine.formats.types import TensorType
from featherback.models.families.granitemoe import GraniteMoeConfig
from tests.support.families import granite
from tests.support.families.base import Cases, Family
from tests.support.families.experts import EXPERTS, names, settings
from tests.support.families.granite import TINY_GRANITE
from tests.support.families.twin import Twin, entry

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

TINY_GRANITEMOE = GraniteMoeConfig(
    **{**vars(TINY_GRANITE), "architecture": "granitemoe", "intermediate_size": 256}, **EXPERTS, shared_size=512
)


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    from transformers import GraniteMoeSharedConfig, GraniteMoeSharedForCausalLM

    dense = granite.twin(reader, head_dim)
    routed = settings(reader, count="num_local_experts")
    routed["shared_intermediate_size"] = entry(reader, "expert_shared_feed_forward_length", 0)
    shared = {f"ffn_{part}_shexp": f"shared_mlp.{part}" for part in ("gate", "up", "down")}
    block = names("block_sparse_moe", "router") | shared
    kinds = (GraniteMoeSharedConfig, GraniteMoeSharedForCausalLM)
    return Twin(*kinds, {**dense.settings, **routed}, block, interleaved=True)


def converted(writer: GGUFWriter, c: Any) -> None:
    granite.converted(writer, c)
    writer.add_expert_count(c.num_local_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    if c.shared_intermediate_size:
        writer.add_expert_shared_feed_forward_length(c.shared_intermediate_size)


def variants() -> Cases:
    return {
        "granitemoe-without-shared": (
            replace(TINY_GRANITEMOE, shared_size=0, tie_word_embeddings=False, experts=5, experts_used=2),
            {"": TensorType.Q4_0, "router": TensorType.F32},
        )
    }


SIZES = {
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 3.0,
}
FAMILY = Family(
    TINY_GRANITEMOE,
    TensorType.Q8_0,
    twin,
    variants=variants,
    compositions=(),
    hf={
        "granitemoe": SIZES | {"shared_intermediate_size": 0},
        "granitemoe, a shared expert": SIZES | {"shared_intermediate_size": 64},
    },
    hf_type="granitemoeshared",
    converted=converted,
    llama_cpp={},
    mlx={"shared_size": 0},  # it has no shared expert
)
