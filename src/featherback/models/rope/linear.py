"""Linear scaling: positions are divided by a factor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from featherback.engine.formats.writer import Value
from featherback.models.architecture.gguf_keys import SCALING_FACTOR, SCALING_TYPE, GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.rope.base import Float32, Plain, Scaling, checked, positive


@dataclass(frozen=True, eq=False)
class Linear(Scaling):
    factor: float

    hf_types = ("linear",)
    gguf_type = "linear"

    def __post_init__(self) -> None:
        positive("rotary scaling factor", self.factor)

    @classmethod
    def read_hf(cls, config: HFConfig, rope: Mapping[str, Any], plain: Plain) -> Linear:
        return cls(config.number("factor", 0, rope))

    @classmethod
    def read_gguf(cls, keys: GGUFKeys, kind: str | None, plain: Plain) -> Linear | None:
        """Read the scaling. A file with a factor but no type has linear scaling."""
        factor = keys.number(SCALING_FACTOR, 0)
        return cls(factor) if kind in (None, "linear") and factor not in (0, 1) else None

    def factors(self, plain: Plain) -> Float32:
        return checked(np.full(plain.dim // 2, self.factor))

    def gguf_keys(self) -> dict[str, Value]:
        return {SCALING_TYPE: self.gguf_type, SCALING_FACTOR: self.factor}


SCALING = Linear
