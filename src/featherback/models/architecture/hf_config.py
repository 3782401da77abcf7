"""The part of the configuration that is stored in the same entries of config.json by every family."""

from collections.abc import Collection, Mapping
from typing import Any

from featherback.models import rope
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.rope.base import Plain

# Entries whose effect Featherback does not implement, with the values that have no effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "is_causal": (True,),
    "quantization_config": (None,),
}


def common_config(
    config: HFConfig, architecture: str, followed: Collection[str] = (), rotation: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Read the arguments of ModelConfig that every family stores in the same way.

    `followed`: further entries that the family reads itself; all other entries must have no effect. `rotation`: the
    entries about rotary embedding, if the family reads them itself; default: `config.rope()`. Raises FeatherbackError
    if an entry is missing or unsupported.
    """
    for name, accepted in NEUTRAL.items():
        if name not in followed and config.entries.get(name, accepted[0]) not in accepted:
            raise config.unsupported(name, config.entries[name])
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", width // max(heads, 1))
    context = config.integer("max_position_embeddings")
    rotation = config.rope() if rotation is None else rotation
    theta = config.number("rope_theta", 10000.0, rotation)
    rotary_dim = _rotary_dim(config, rotation, head_dim, followed)
    plain = Plain(head_dim if rotary_dim is None else rotary_dim, theta, context)
    return {
        "architecture": architecture,
        "hidden_size": width,
        "intermediate_size": config.integer("intermediate_size"),
        "num_hidden_layers": config.integer("num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": config.integer("num_key_value_heads", heads),
        "head_dim": head_dim,
        "vocab_size": config.integer("vocab_size"),
        "rms_norm_eps": config.number("rms_norm_eps", 1e-6),
        "rope_theta": theta,
        "max_position_embeddings": context,
        "tie_word_embeddings": config.flag("tie_word_embeddings", False),
        "rope_scaling": rope.read_hf(config, rotation, plain),
        "rotary_dim": rotary_dim,
    }


def _rotary_dim(config: HFConfig, rotation: Mapping[str, Any], head_dim: int, followed: Collection[str]) -> int | None:
    """Read the `rotary_dim` of ModelConfig. Raises FeatherbackError if the family only rotates whole heads."""
    name = "partial_rotary_factor"
    entries = rotation if rotation.get(name) is not None else config.entries
    part = config.number(name, 1, entries)
    if part == 1:
        return None
    if name not in followed or not 0 < part < 1:
        raise config.unsupported(name, part)
    return int(head_dim * part)


def late_windows(config: HFConfig) -> tuple[int, ...]:
    """Read Qwen's `windows`: the layers from `max_window_layers` on, if `use_sliding_window` is true."""
    if not config.flag("use_sliding_window", False):
        return ()
    first = config.integer("max_window_layers", 28)
    return config.windows(config.integer("sliding_window", 4096), lambda layer: layer >= first)
