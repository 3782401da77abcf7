"""gpt-oss: sinks, windows in every second layer, experts with biases and a clipped activation, MXFP4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featherback.engine.formats.types import TensorType
from featherback.models.architecture.experts import ExpertsConfig
from tests.support.families import converter
from tests.support.families.base import YARN, Cases, Family
from tests.support.families.experts import EXPERTS, names, settings
from tests.support.families.qwen3 import TINY_QWEN3
from tests.support.families.twin import Twin, entry, layer_types, rope

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

TINY_GPT_OSS = ExpertsConfig(
    **{
        **vars(TINY_QWEN3),
        "architecture": "gpt-oss",
        "attention_bias": True,
        "intermediate_size": EXPERTS["expert_size"],
        "num_hidden_layers": 3,
        "windows": (7, 0, 7),
        "tie_word_embeddings": False,
        "rope_scaling": replace(YARN, beta_fast=4.3),  # whose limits are fractions
    },
    **EXPERTS,
)
STACKS = {f"{name}_exps": TensorType.MXFP4 for name in ("gate", "up", "down")}
TYPES = {"": TensorType.Q8_0, **STACKS, "router": TensorType.F32}


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    from transformers import GptOssConfig, GptOssForCausalLM

    layers, stated = entry(reader, "block_count"), rope(reader)
    if stated["rope_parameters"]["rope_type"] == "yarn":
        stated["rope_parameters"]["truncate"] = False
    own = {
        "sliding_window": entry(reader, "attention.sliding_window"),
        "layer_types": layer_types(entry(reader, "attention.sliding_window_pattern", [True, False] * layers)[:layers]),
        "attention_bias": True,
    }
    block = names(router="router") | {
        "post_attention_norm": "post_attention_layernorm",
        "attn_sinks": "self_attn.sinks",
    }
    return Twin(
        GptOssConfig,
        GptOssForCausalLM,
        own | stated | settings(reader, count="num_local_experts"),
        block,
        arrange=arrange,
    )


def arrange(state: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of gate and up alternate, matrices of experts are (E, in, out), and sinks are no module."""
    import torch

    found, parts = dict[str, Any](), dict[str, dict[str, Any]]()
    for name, tensor in state.items():
        stem, mark, part = name.partition(".experts.")
        if mark:
            parts.setdefault(f"{stem}.experts", {})[part] = tensor
        else:
            found[name.removesuffix(".weight") if name.endswith("sinks.weight") else name] = tensor
    for stem, own in parts.items():
        both = {
            kind: torch.stack([own[f"gate.{kind}"], own[f"up.{kind}"]], 2).flatten(1, 2) for kind in ("weight", "bias")
        }
        found |= {
            f"{stem}.gate_up_proj": both["weight"].transpose(1, 2),
            f"{stem}.gate_up_proj_bias": both["bias"],
            f"{stem}.down_proj": own["down.weight"].transpose(1, 2),
            f"{stem}.down_proj_bias": own["down.bias"],
        }
    return found


def variants() -> Cases:
    return {
        "gpt-oss-tied-all-used": (
            replace(
                TINY_GPT_OSS, tie_word_embeddings=True, experts=4, experts_used=4, num_hidden_layers=2, windows=(9, 0),
                rope_scaling=None,
            ),
            TensorType.Q8_0,
        ),
    }  # fmt: skip


def converted(writer: GGUFWriter, c: Any) -> None:
    converter.usual(writer, c)
    writer.add_sliding_window(c.sliding_window)
    writer.add_expert_count(c.num_local_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    writer.add_expert_feed_forward_length(c.intermediate_size)


EXPERTS_OF_HF = {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 9}


FAMILY = Family(
    TINY_GPT_OSS,
    TYPES,
    twin,
    variants=variants,
    hf={
        "gpt-oss": EXPERTS_OF_HF | {"rope_parameters": {"rope_type": "default", "rope_theta": 15e4}},
        "gpt-oss, yarn": EXPERTS_OF_HF
        | {
            "rope_parameters": {
                **converter.YARN,
                "rope_theta": 15e4,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
            }
        },
    },
    converted=converted,
    llama_cpp={"rope_scaling": None},  # it rounds the limits of YaRN
    mlx={"rope_scaling": None},  # it rounds the limits of YaRN
    hf_type="gpt_oss",
)
