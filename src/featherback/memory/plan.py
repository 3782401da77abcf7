"""The choices that trade memory against time. The gradients do not depend on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from featherback.models.config import ModelConfig

Place = Literal["ram", "file"]

Weights = Literal["resident", "paged", "streamed"]
"""Stay mapped; are unmapped after use, the next layer read ahead; or go past the page cache through two buffers."""

MLP_STEP = 256
"""Tiles of F are multiples of it: whole blocks of every tensor type, and of the kernels' reduction steps."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one training process lays out its memory."""

    tokens: int  # most tokens a batch holds
    compute: str = "bf16"  # "bf16" or "fp32": operands of the matrix products
    mlp_tile: int = 2 * MLP_STEP  # columns of F at a time
    vocab_tile: int = 1024  # columns of the vocabulary at a time
    keep_h: bool = True  # keep the T x rank LoRA projections between recomputation and gradient
    keep_blocks: bool = (
        False  # keep what a block's backward needs from the forward pass: nothing is recomputed
    )
    checkpoints: Place = "ram"  # where block inputs wait for the backward pass
    states: Place = "ram"  # where LoRA parameters, gradients and optimiser states live
    weights: Weights = "resident"
    predicted_rss_mb: float | None = None
    predicted_footprint_mb: float | None = None
    predicted_step_seconds: float | None = None

    @classmethod
    def default(cls, config: ModelConfig, *, tokens: int, compute: str = "bf16") -> Plan:
        """Everything in RAM: for a machine with memory to spare, or a single gradient."""
        return cls(
            tokens=tokens,
            compute=compute,
            mlp_tile=min(512, -(-config.intermediate_size // MLP_STEP) * MLP_STEP),
        )
