"""YaRN: like Llama 3's scaling, but interpolated over the frequency's index, and with sharper attention scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from featherback.engine.formats.writer import Value
from featherback.errors import FeatherbackError
from featherback.models.architecture.gguf_keys import SCALING_FACTOR, SCALING_TYPE, GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.rope.base import ORIGINAL, Float32, Plain, Scaling, checked, original_context, positive

BETA_FAST, BETA_SLOW = 32.0, 1.0  # if a file does not state them
GGUF_BETA_FAST, GGUF_BETA_SLOW = "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"
GGUF_EXTRAPOLATION, GGUF_ATTENTION = "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"


@dataclass(frozen=True, eq=False)
class Yarn(Scaling):
    """YaRN's parameters.

    Frequencies with more than `beta_fast` turns in `original_context` stay. Those with fewer than `beta_slow` turns are
    divided by `factor`. Between their indices (rounded outwards if `truncate`) the frequency is interpolated.
    """

    factor: float
    original_context: int
    beta_fast: float = BETA_FAST
    beta_slow: float = BETA_SLOW
    truncate: bool = True
    stated_attention_factor: float | None = None  # None: computed from `factor`

    hf_types = ("yarn",)
    gguf_type = "yarn"

    def __post_init__(self) -> None:
        for name in ("factor", "original_context", "beta_fast", "beta_slow"):
            positive(f"rotary scaling's {name}", getattr(self, name))
        positive("rotary attention factor", self.attention_factor)

    @classmethod
    def read_hf(cls, config: HFConfig, rope: Mapping[str, Any], plain: Plain) -> Yarn:
        original = original_context(config, rope, plain)
        factor = config.number("factor", plain.context / original, rope)
        attention: float | None = None
        if rope.get("attention_factor") is not None:
            attention = config.number("attention_factor", 1, rope)
        elif rope.get("mscale") and rope.get("mscale_all_dim"):
            above, below = (_sharpness(factor, config.number(m, 1, rope)) for m in ("mscale", "mscale_all_dim"))
            attention = above / below if below else math.inf
        return cls(
            factor,
            original,
            config.number("beta_fast", BETA_FAST, rope) or BETA_FAST,
            config.number("beta_slow", BETA_SLOW, rope) or BETA_SLOW,
            config.flag("truncate", True, rope),
            attention,
        )

    @classmethod
    def read_gguf(cls, keys: GGUFKeys, kind: str | None, plain: Plain) -> Yarn | None:
        """Read the scaling. Keys that transformers and llama.cpp treat differently must have neutral values."""
        if kind != cls.gguf_type or keys.number(SCALING_FACTOR) == 1:
            return None
        found = cls(
            keys.number(SCALING_FACTOR),
            keys.integer(ORIGINAL, plain.context),
            keys.number(GGUF_BETA_FAST, BETA_FAST),
            keys.number(GGUF_BETA_SLOW, BETA_SLOW),
        )
        for key, neutral in ((GGUF_EXTRAPOLATION, 1.0), (GGUF_ATTENTION, found.attention_factor)):
            if not math.isclose(stated := keys.number(key, neutral), neutral, rel_tol=1e-6):
                raise keys.wrong(key, stated, f"{neutral:.7g}")
        return found

    def factors(self, plain: Plain) -> Float32:
        first, last = self._index(plain, self.beta_fast), self._index(plain, self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, plain.dim - 1)
        last = last + 0.001 if first == last else last
        divided = np.clip((np.arange(plain.dim // 2) - first) / (last - first), 0, 1)
        with np.errstate(all="ignore"):
            return checked(1 / (1 - divided + divided / self.factor))

    def _index(self, plain: Plain, turns: float) -> float:
        """The index (a fraction) of the frequency with this number of turns in the original context."""
        if plain.theta == 1:
            raise FeatherbackError("The model's rope_theta is 1; YaRN needs a different value.")
        # Differences of logarithms, because quotients may leave the range of floats.
        turning = math.log(self.original_context) - math.log(turns) - math.log(2 * math.pi)
        return plain.dim * turning / (2 * math.log(plain.theta))

    @property
    def attention_factor(self) -> float:
        stated = self.stated_attention_factor
        return _sharpness(self.factor, 1) if stated is None else stated

    def gguf_keys(self) -> dict[str, Value]:
        if not self.truncate or self.stated_attention_factor is not None:
            raise FeatherbackError(
                "GGUF cannot store this YaRN scaling: GGUF has no key for attention_factor, or for truncate = false."
            )
        return {
            SCALING_TYPE: self.gguf_type,
            SCALING_FACTOR: self.factor,
            ORIGINAL: self.original_context,
            GGUF_BETA_FAST: self.beta_fast,
            GGUF_BETA_SLOW: self.beta_slow,
        }


def _sharpness(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0


SCALING = Yarn
