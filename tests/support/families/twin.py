"""A model's twin in transformers, as a GGUF file describes it. Nothing of Featherback is imported here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader
    from transformers import PreTrainedConfig, PreTrainedModel

BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
"""Part of a block in the file: in the model."""
FOUR_NORMS = BLOCK | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True)
class Twin:
    """What a family does not share with the others."""

    config_class: type[PreTrainedConfig]
    model_class: type[PreTrainedModel]
    settings: Mapping[str, Any]
    """The arguments of transformers' configuration."""
    block: Mapping[str, str] = field(default_factory=lambda: BLOCK)
    norms_from_one: bool = False
    """The file holds 1 + w, the modules w."""
    interleaved: bool = False
    """The file's rows of q and k are in llama.cpp's order, in which a rotated pair is adjacent."""
    restore: Callable[[str, np.ndarray], tuple[str, np.ndarray]] | None = None
    """A tensor of a block in the file -> in the model, for families that store it otherwise. None: as `block` says."""
    arrange: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    """Names and joins the tensors of experts as the model has them; None: as most models do (`experts.joined`)."""
    change: Callable[[PreTrainedModel], None] = lambda model: None
    """Changes the finished model where the family needs it."""


TwinOf = Callable[["GGUFReader", int], Twin]
"""Makes the twin of a GGUF file, given its head size."""


def entry(reader: GGUFReader, key: str, default: Any = None) -> Any:
    """The value of a key of the file's architecture."""
    architecture = reader.get_field("general.architecture").contents()
    found = reader.get_field(f"{architecture}.{key}")
    return default if found is None else found.contents()


def rope(reader: GGUFReader) -> dict[str, Any]:
    """Read the rotary entries. For Llama 3's scaling, the file holds only the resulting factors: see `oracle._fill`."""
    rope = {"rope_type": "default", "rope_theta": entry(reader, "rope.freq_base", 10000.0)}
    kind = entry(reader, "rope.scaling.type")
    if kind is not None:
        rope["rope_type"] = kind
    if kind in ("linear", "yarn"):
        rope["factor"] = entry(reader, "rope.scaling.factor")
    if kind in ("yarn", "longrope"):
        rope["original_max_position_embeddings"] = entry(reader, "rope.scaling.original_context_length")
    if kind == "yarn":
        rope |= {name: entry(reader, f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
    if kind == "longrope":
        rope["attention_factor"] = entry(reader, "rope.scaling.attn_factor")
        for tensor in reader.tensors:
            if tensor.name.startswith("rope_factors_"):
                length = tensor.name.removeprefix("rope_factors_").removesuffix(".weight")
                rope[f"{length}_factor"] = tensor.data.tolist()
    return {"rope_parameters": rope}


def layer_types(local: Sequence[bool]) -> list[str]:
    return ["sliding_attention" if is_local else "full_attention" for is_local in local]


def late_window(reader: GGUFReader) -> dict[str, Any]:
    """Qwen's window, which the layers from some number on have."""
    window = entry(reader, "attention.sliding_window")
    if window is None:
        return {}
    local = entry(reader, "attention.sliding_window_pattern")
    first = local.index(True)
    assert local == [layer >= first for layer in range(len(local))], "transformers' Qwen has no other pattern"
    return {"use_sliding_window": True, "sliding_window": window, "max_window_layers": first}
