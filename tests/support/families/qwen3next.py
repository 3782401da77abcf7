"""Qwen3-Next: delta nets whose a and b are one product, attention with an output gate, and experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from featherback.engine.formats.types import TensorType
from featherback.models.families.qwen35moe import DeltaMoeConfig
from tests.support.families import experts, qwen35, qwen35moe
from tests.support.families.base import Cases, Family
from tests.support.families.qwen35 import LINEAR, delta_settings
from tests.support.families.qwen35moe import PARTS, TINY_QWEN35MOE, routed
from tests.support.families.twin import Twin, entry

if TYPE_CHECKING:
    from gguf import GGUFReader

TINY_QWEN3NEXT = DeltaMoeConfig(**{**vars(TINY_QWEN35MOE), "architecture": "qwen3next"})
DELTA = {
    "attn_qkv": f"{LINEAR}.qkv",
    "attn_gate": f"{LINEAR}.z",
    "ssm_ba": f"{LINEAR}.in_proj_ba",
    "ssm_out": f"{LINEAR}.out_proj",
    "ssm_conv1d": f"{LINEAR}.conv1d",
    "ssm_norm": f"{LINEAR}.norm",
    "post_attention_norm": "post_attention_layernorm",
}


def restore(part: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """A tensor of a block as the file has it -> in transformers, except that qkv and z are joined there."""
    if part == "ssm_a":
        return f"{LINEAR}.A_log", np.log(-array)
    if part == "ssm_dt.bias":
        return f"{LINEAR}.dt_bias", array
    stem, kind = part.rsplit(".", 1)
    return f"{({**PARTS} | DELTA)[stem]}.{kind}", array[:, None] if stem == "ssm_conv1d" else array


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    k_heads = entry(reader, "ssm.group_count")
    k_size = k_heads * entry(reader, "ssm.state_size")

    def arranged(state: Mapping[str, Any]) -> dict[str, Any]:
        """Of each K head: the rows of q, of k, of v, of z."""
        import torch

        found = experts.joined(state)
        for name in [name for name in found if name.endswith(f"{LINEAR}.qkv.weight")]:
            stem, qkv = name.removesuffix("qkv.weight"), found.pop(name)
            parts = (*qkv.split([k_size, k_size, len(qkv) - 2 * k_size]), found.pop(f"{stem}z.weight"))
            by_head = [part.reshape(k_heads, -1, qkv.shape[1]) for part in parts]
            found[f"{stem}in_proj_qkvz.weight"] = torch.cat(by_head, dim=1).reshape(-1, qkv.shape[1])
        return found

    own = routed(reader) | delta_settings(reader, head_dim) | {"norm_topk_prob": True}
    return Twin(
        Qwen3NextConfig, Qwen3NextForCausalLM, own, norms_from_one=True, restore=restore, arrange=arranged
    )  # fmt: skip


def separate(state: Mapping[str, Any], c: Any) -> dict[str, Any]:
    """The converter's way: the rows of q of all K heads, those of k, of v, of z."""
    import torch

    found = experts.separate(state)
    k_heads = c.linear_num_key_heads
    v_rows = c.linear_num_value_heads // k_heads * c.linear_value_head_dim
    for name in [name for name in found if name.endswith("in_proj_qkvz.weight")]:
        both = found.pop(name)
        heads = both.reshape(k_heads, -1, both.shape[1])
        parts = heads.split([c.linear_key_head_dim] * 2 + [v_rows] * 2, dim=1)
        q, k, v, z = (part.reshape(-1, both.shape[1]) for part in parts)
        found[name.replace("qkvz", "qkv")] = torch.cat([q, k, v])
        found[name.replace("qkvz", "z")] = z.contiguous()
    return found


def written(name: str, array: np.ndarray, c: Any) -> tuple[str, np.ndarray]:
    if name.endswith("norm.weight") and not name.endswith(f"{LINEAR}.norm.weight"):
        array = array + np.float32(1)
    if name.endswith("conv1d.weight"):
        array = array.squeeze(1)
    if name.endswith("A_log"):
        array = -np.exp(array)
    return name.replace("dt_bias", "dt_proj.bias"), array


def variants() -> Cases:
    return {
        "qwen3next-untied": (
            replace(TINY_QWEN3NEXT, tie_word_embeddings=False, delta_v_heads=2, delta_v_dim=16, taps=3),
            {"": TensorType.Q8_0, "router": TensorType.F32},
        )
    }


FAMILY = Family(
    TINY_QWEN3NEXT,
    TensorType.F32,
    twin,
    variants=variants,
    hf={
        "qwen3-next": qwen35.SIZES
        | {
            "rms_norm_eps": 0.03,  # see TINY_QWEN35
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
        }
    },
    hf_type="qwen3_next",
    converted=qwen35moe.converted,
    written=written,
    separate=separate,
    llama_cpp=qwen35.LLAMA_CPP,
)
