"""What every operation of one pass shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.backprop.rope import rope_tables
from featherback.data.batch import Batch
from featherback.memory.arena import Arena
from featherback.models.config import ModelConfig

Array = NDArray[Any]
Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Context:
    """One batch's constants and the scratch memory."""

    config: ModelConfig
    arena: Arena
    operand: np.dtype[Any]
    mlp_tile: int  # columns of F at a time
    vocab_tile: int  # columns of V at a time
    keep_h: bool  # keep the T x r LoRA projections from recomputation to their gradients
    tokens: int  # T
    cu_seqlens: NDArray[np.int32]
    cos: Float32  # (T, head_dim / 2)
    sin: Float32

    @classmethod
    def of(
        cls,
        batch: Batch,
        config: ModelConfig,
        arena: Arena,
        compute: str,
        mlp_tile: int,
        vocab_tile: int,
        keep_h: bool,
    ) -> Context:
        """The context of `batch`; the rotary tables are taken from the arena."""
        half = config.head_dim // 2
        cos, sin = arena.take((batch.n_tokens, half)), arena.take((batch.n_tokens, half))
        rope_tables(config, batch.positions, cos, sin)
        return cls(
            config,
            arena,
            kernels.OPERANDS[compute],
            mlp_tile,
            vocab_tile,
            keep_h,
            batch.n_tokens,
            batch.cu_seqlens,
            cos,
            sin,
        )

    def floats(self, *shape: int) -> Float32:
        """An uninitialised float32 array of the current frame."""
        return self.arena.take(shape)

    def operands(self, *shape: int) -> Array:
        """An uninitialised array of the operand type."""
        return self.arena.take(shape, self.operand)
