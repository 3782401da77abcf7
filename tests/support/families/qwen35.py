"""Qwen 3.5: gated delta nets, and attention with an output gate in every n-th layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from featherback.engine.formats.types import TensorType
from featherback.models.families.qwen35 import DeltaConfig
from tests.support.families.base import Cases, Family
from tests.support.families.qwen2 import TINY_QWEN2
from tests.support.families.twin import BLOCK, Twin, entry, rope

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

K_HEADS, V_HEADS, K_DIM, V_DIM = 2, 8, 12, 8
# Random heads of 8 columns often have a small output, whose norm would magnify every rounding but for a large eps.
TINY_QWEN35 = DeltaConfig(
    **{**vars(TINY_QWEN2), "architecture": "qwen35", "attention_bias": False, "num_hidden_layers": 3}
    | {"rotary_dim": 6, "rms_norm_eps": 0.03},
    delta_k_heads=K_HEADS,
    delta_v_heads=V_HEADS,
    delta_k_dim=K_DIM,
    delta_v_dim=V_DIM,
    taps=4,
    delta_layers=(True, False, True),
    converted=True,
)
LINEAR = "linear_attn"
DELTA = {
    "attn_qkv": f"{LINEAR}.in_proj_qkv",
    "attn_gate": f"{LINEAR}.in_proj_z",
    "ssm_alpha": f"{LINEAR}.in_proj_a",
    "ssm_beta": f"{LINEAR}.in_proj_b",
    "ssm_out": f"{LINEAR}.out_proj",
    "ssm_conv1d": f"{LINEAR}.conv1d",
    "ssm_norm": f"{LINEAR}.norm",
}


def grouped(array: np.ndarray, k_heads: int, v_heads: int) -> np.ndarray:
    """V heads along the first axis, tiled in the file, in the order of transformers: those of a K head together."""
    tiles = array.reshape(v_heads // k_heads, k_heads, len(array) // v_heads, *array.shape[1:])
    return tiles.swapaxes(0, 1).reshape(array.shape)


def restored(reader: GGUFReader, parts: Mapping[str, str] = BLOCK) -> Any:
    """What llama.cpp's converter changed, changed back: (part of a block, its values) -> the same in transformers.

    `parts`: the names of what is no delta net.
    """
    k_heads, v_heads = entry(reader, "ssm.group_count"), entry(reader, "ssm.time_step_rank")
    before = 2 * k_heads * entry(reader, "ssm.state_size")

    def restore(part: str, array: np.ndarray) -> tuple[str, np.ndarray]:
        if part in ("attn_qkv.weight", "ssm_conv1d.weight"):
            array = np.concatenate([array[:before], grouped(array[before:], k_heads, v_heads)])
        if part in ("attn_gate.weight", "ssm_alpha.weight", "ssm_beta.weight", "ssm_a", "ssm_dt.bias"):
            array = grouped(array, k_heads, v_heads)
        if part == "ssm_out.weight":
            array = grouped(array.T, k_heads, v_heads).T.copy()
        if part == "ssm_conv1d.weight":
            array = array[:, None]
        if part == "ssm_a":
            return f"{LINEAR}.A_log", np.log(-array)
        if part == "ssm_dt.bias":
            return f"{LINEAR}.dt_bias", array
        stem, kind = part.rsplit(".", 1)
        block = {**parts} | DELTA | {"post_attention_norm": "post_attention_layernorm"}
        return f"{block[stem]}.{kind}", array

    return restore


def delta_settings(reader: GGUFReader, head_dim: int) -> dict[str, Any]:
    """What delta nets and the attention beside them add to a configuration of transformers."""
    layers, interval = entry(reader, "block_count"), entry(reader, "full_attention_interval", 4)
    recurrent = entry(reader, "attention.recurrent_layers", [(i + 1) % interval != 0 for i in range(layers)])
    heads = entry(reader, "ssm.time_step_rank")
    own = {
        "linear_conv_kernel_dim": entry(reader, "ssm.conv_kernel"),
        "linear_key_head_dim": entry(reader, "ssm.state_size"),
        "linear_value_head_dim": entry(reader, "ssm.inner_size") // heads,
        "linear_num_key_heads": entry(reader, "ssm.group_count"),
        "linear_num_value_heads": heads,
        "layer_types": ["linear_attention" if is_delta else "full_attention" for is_delta in recurrent],
        "pad_token_id": None,
    } | rope(reader)
    own["rope_parameters"]["partial_rotary_factor"] = entry(reader, "rope.dimension_count") / head_dim
    return own


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    own = delta_settings(reader, head_dim)
    return Twin(
        Qwen3_5TextConfig, Qwen3_5ForCausalLM, own, BLOCK | DELTA, norms_from_one=True, restore=restored(reader)
    )


def converted(writer: GGUFWriter, c: Any) -> None:
    rope = c.rope_parameters
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(c.head_dim * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([1, 1, 1, 0])
    writer.add_ssm_conv_kernel(c.linear_conv_kernel_dim)
    writer.add_ssm_state_size(c.linear_key_head_dim)
    writer.add_ssm_group_count(c.linear_num_key_heads)
    writer.add_ssm_time_step_rank(c.linear_num_value_heads)
    writer.add_ssm_inner_size(c.linear_value_head_dim * c.linear_num_value_heads)
    recurrent = [kind == "linear_attention" for kind in c.layer_types]
    writer.add_array(f"{writer.arch}.attention.recurrent_layers", recurrent)
    writer.add_full_attention_interval(4)  # which the list overrules


def tiled(name: str, array: np.ndarray, c: Any) -> tuple[str, np.ndarray]:
    """A tensor of transformers as llama.cpp's converter writes it: its name there, and its values."""
    k_heads, v_heads = c.linear_num_key_heads, c.linear_num_value_heads
    before, part = 2 * k_heads * c.linear_key_head_dim, name.rpartition(f"{LINEAR}.")[2]

    def tiles(rows: np.ndarray) -> np.ndarray:
        heads = rows.reshape(k_heads, v_heads // k_heads, len(rows) // v_heads, *rows.shape[1:])
        return np.ascontiguousarray(heads.swapaxes(0, 1).reshape(rows.shape))

    if name.endswith("norm.weight") and part != "norm.weight":
        array = array + np.float32(1)
    if LINEAR not in name:
        return name, array
    if part == "conv1d.weight":
        array = array.squeeze(1)
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        array = np.concatenate([array[:before], tiles(array[before:])])
    elif part == "out_proj.weight":
        array = np.ascontiguousarray(tiles(array.T).T)
    elif part != "norm.weight":
        array = tiles(array)
    if part == "A_log":
        array = -np.exp(array)
    return name.replace("dt_bias", "dt_proj.bias"), array


SIZES: dict[str, Any] = {
    "head_dim": 16,
    "full_attention_interval": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}
IRREGULAR = ["linear_attention", "full_attention", "full_attention", "linear_attention", "linear_attention"]
LLAMA_CPP = {"delta_k_dim": 16, "delta_v_dim": 16, "rms_norm_eps": 1e-6}
"""It has one size for heads of k and v, and the norms' eps also for the lengths of q and k, as in all real models."""


def variants() -> Cases:
    return {
        "qwen35-untied": (
            replace(
                TINY_QWEN35, tie_word_embeddings=False, num_hidden_layers=4, delta_layers=(True, True, True, False),
                rotary_dim=8, taps=3, delta_v_heads=K_HEADS, delta_v_dim=16,
            ),
            TensorType.Q8_0,
        )
    }  # fmt: skip


FAMILY = Family(
    TINY_QWEN35,
    TensorType.F32,
    twin,
    variants=variants,
    hf={"qwen3.5": SIZES, "qwen3.5, irregular": SIZES | {"layer_types": IRREGULAR}},
    hf_type="qwen3_5_text",
    converted=converted,
    written=tiled,
    llama_cpp=LLAMA_CPP,
)
