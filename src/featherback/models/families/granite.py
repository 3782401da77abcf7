"""Granite 3 (dense): Llama with four multipliers: of embeddings, of each branch's output, of scores, of logits.

    x_0 = e E[t];   m = x + s attention(rms(x) g);   y = m + s mlp(rms(m) g');   logits = rms(x_L) g W^T / c

The residual stream divided by s is the stream of a Llama whose embeddings are multiplied by e / s. A norm depends on
the factor only through its eps: rms(x, eps) = rms(x / s, eps / s^2). So the stream is stored divided by s, and no layer
multiplies. The weights of the last norm include 1 / c.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from featherback.engine.formats.writer import Value
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.families.base import Family, by_window, rotary, silu_block
from featherback.nn.block import Block

MULTIPLIERS: Mapping[str, tuple[str, str]] = {
    "embedding_scale": ("embedding_scale", "embedding_multiplier"),
    "residual_scale": ("residual_scale", "residual_multiplier"),
    "attention_scale": ("attention.scale", "attention_multiplier"),
    "logit_divisor": ("logit_scale", "logits_scaling"),
}
"""Field of GraniteConfig -> (key in a GGUF file, entry in config.json)."""
ROTATES = "rope.scaling.finetuned"  # llama.cpp's switch for Granite's rotary embedding


@dataclass(frozen=True, eq=False, kw_only=True)
class GraniteConfig(ModelConfig):
    embedding_scale: float  # e
    residual_scale: float  # s
    attention_scale: float  # factor of the scores
    logit_divisor: float  # c

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive(*MULTIPLIERS)


class Granite(Family):
    architecture = "granite"
    called = "Granite 3"
    model_types: ClassVar[tuple[str, ...]] = ("granite",)
    gguf_interleaved = True

    def read_gguf(self, keys: GGUFKeys) -> GraniteConfig:
        return GraniteConfig(**self.read_fields(keys))

    def read_fields(self, keys: GGUFKeys, followed: Collection[str] = ()) -> dict[str, Any]:
        """Read the arguments of GraniteConfig. `followed`: further keys that the family reads itself.

        A missing multiplier, or 0, means 1, as in llama.cpp; the logits' is required.
        """
        common = self.common(keys, [*followed, *(key for key, _ in MULTIPLIERS.values())])
        if keys.file.metadata.get(f"{keys.architecture}.{ROTATES}", True) is not True:
            raise keys.wrong(ROTATES, False, "True (rotary embedding in all layers)")
        return {
            **common,
            "rope_interleaved": self.gguf_interleaved,
            "embedding_scale": keys.number("embedding_scale", 0) or 1.0,
            "residual_scale": keys.number("residual_scale", 0) or 1.0,
            "attention_scale": keys.number("attention.scale", 0) or common["head_dim"] ** -0.5,
            "logit_divisor": keys.number("logit_scale"),
        }

    def read_hf(self, config: HFConfig) -> GraniteConfig:
        return GraniteConfig(**self.read_hf_fields(config))

    def read_hf_fields(self, config: HFConfig) -> dict[str, Any]:
        """Read the arguments of GraniteConfig from a config.json."""
        for name in ("attention_bias", "mlp_bias"):
            if config.flag(name, False):
                raise config.unsupported(name, True)
        stated: dict[str, Any] = {field: config.number(entry, 1.0) for field, (_, entry) in MULTIPLIERS.items()}
        return {**self.common_hf(config), **stated}

    def blocks(self, config: GraniteConfig) -> list[Block]:
        turn, held = rotary(config), replace(config, rms_norm_eps=self.norm_eps(config))
        return by_window(held, lambda window: silu_block(held, turn, window, scale=config.attention_scale))

    def embedding_scale(self, config: GraniteConfig) -> float:
        return config.embedding_scale / config.residual_scale

    def norm_eps(self, config: GraniteConfig) -> float:
        return config.rms_norm_eps / config.residual_scale**2

    def logit_divisor(self, config: GraniteConfig) -> float:
        return config.logit_divisor

    def gguf_keys(self, config: ModelConfig) -> dict[str, Value]:
        return {key: float(getattr(config, field)) for field, (key, _) in MULTIPLIERS.items()}


FAMILY = Granite()
