"""Llama 3's scaling: low frequencies are divided by a factor, high ones stay, and those between are interpolated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from featherback.engine.formats.writer import Value
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.rope.base import Float32, Plain, Scaling, checked, original_context

ROPE_FREQS = "rope_freqs.weight"


@dataclass(frozen=True, eq=False)
class Llama3(Scaling):
    divisors: Float32  # (dim/2,), divide the inverse frequencies; llama.cpp's tensor `rope_freqs.weight`

    hf_types = ("llama3",)
    gguf_tensors = (ROPE_FREQS,)

    @classmethod
    def read_hf(cls, config: HFConfig, rope: Mapping[str, Any], plain: Plain) -> Llama3:
        factor, low, high = (config.number(name, 0, rope) for name in ("factor", "low_freq_factor", "high_freq_factor"))
        if not (min(factor, low, high) > 0 and low != high):
            raise config.unsupported("rope_scaling", dict(rope))
        return cls(llama3_factors(plain, factor, low, high, original_context(config, rope, plain)))

    @classmethod
    def read_gguf(cls, keys: GGUFKeys, kind: str | None, plain: Plain) -> Llama3 | None:
        return cls(keys.vector(ROPE_FREQS, plain.dim // 2)) if ROPE_FREQS in keys.file.tensors else None

    def factors(self, plain: Plain) -> Float32:
        return checked(self.divisors)

    def gguf_keys(self) -> dict[str, Value]:
        return {}

    def gguf_arrays(self) -> dict[str, Float32]:
        return {ROPE_FREQS: self.divisors}


def llama3_factors(plain: Plain, factor: float, low: float, high: float, context: int) -> Float32:
    """Compute the divisors of the inverse frequencies, shape (dim/2,).

    Frequencies that turn more than `high` times in the original context stay. Those that turn fewer than `low` times
    are divided by `factor`. Between the two, the *inverse* of the divisor is interpolated.
    """
    with np.errstate(all="ignore"):
        turns = context * plain.frequencies / (2 * math.pi)
        kept = np.clip((turns - low) / (high - low), 0, 1)  # 1: as it was, 0: divided by `factor`
        return (1 / (kept + (1 - kept) / factor)).astype(np.float32)


SCALING = Llama3
