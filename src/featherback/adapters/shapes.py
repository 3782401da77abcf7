"""The sizes of an adapter, from a model's configuration alone."""

from __future__ import annotations

from collections.abc import Iterable

from featherback.models.config import ModelConfig


def projection_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(out, in) of every projection."""
    hidden, inner, q, kv = config.hidden_size, config.intermediate_size, config.q_size, config.kv_size
    return {
        "q_proj": (q, hidden),
        "k_proj": (kv, hidden),
        "v_proj": (kv, hidden),
        "o_proj": (hidden, q),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }


def layer_size(config: ModelConfig, rank: int, targets: Iterable[str]) -> int:
    """Floats in one layer of an adapter."""
    shapes = projection_shapes(config)
    return sum(rank * (shapes[target][0] + shapes[target][1]) for target in targets)
