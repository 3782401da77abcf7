"""LongRoPE: one set of factors for sequences within the original context, and another for longer ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from featherback.engine.formats.writer import Value
from featherback.models.architecture.gguf_keys import SCALING_TYPE, GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.rope.base import ORIGINAL, Float32, Plain, Scaling, checked, original_context, positive

LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
ATTENTION = "rope.scaling.attn_factor"


@dataclass(frozen=True, eq=False)
class LongRope(Scaling):
    short: Float32  # (dim/2,), divide the inverse frequencies
    long: Float32  # (dim/2,), for sequences of more than `original_context` tokens
    original_context: int
    stated_attention_factor: float

    hf_types = ("longrope", "su")
    gguf_type = "longrope"
    gguf_tensors = (LONG, SHORT)
    gguf_followed = (ATTENTION,)

    def __post_init__(self) -> None:
        positive("rotary scaling's original_context", self.original_context)
        positive("rotary attention factor", self.stated_attention_factor)

    @classmethod
    def read_hf(cls, config: HFConfig, rope: Mapping[str, Any], plain: Plain) -> LongRope:
        original = original_context(config, rope, plain)
        factor = positive("rotary scaling factor", config.number("factor", plain.context / original, rope))
        inferred = 1.0
        if factor > 1:
            inferred = math.sqrt(1 + math.log(factor) / math.log(original)) if original > 1 else math.inf
        short, long = (config.numbers(f"{name}_factor", plain.dim // 2, rope) for name in ("short", "long"))
        attention = config.number("attention_factor", inferred, rope)
        return cls(checked(short), checked(long), original, attention)

    @classmethod
    def read_gguf(cls, keys: GGUFKeys, kind: str | None, plain: Plain) -> LongRope | None:
        if kind != cls.gguf_type and not {LONG, SHORT} & keys.file.tensors.keys():
            return None
        short, long = (checked(keys.vector(name, plain.dim // 2)) for name in (SHORT, LONG))
        return cls(short, long, keys.integer(ORIGINAL), keys.number(ATTENTION))

    def factors(self, plain: Plain) -> Float32:
        return self.short

    @property
    def attention_factor(self) -> float:
        return self.stated_attention_factor

    @property
    def beyond(self) -> tuple[int, Float32]:
        return self.original_context, self.long

    def gguf_keys(self) -> dict[str, Value]:
        return {SCALING_TYPE: self.gguf_type, ORIGINAL: self.original_context, ATTENTION: self.stated_attention_factor}

    def gguf_arrays(self) -> dict[str, Float32]:
        return {LONG: self.long, SHORT: self.short}


SCALING = LongRope
