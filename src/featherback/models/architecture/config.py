"""The configuration of a model, with Hugging Face's names."""

from __future__ import annotations

import math
from dataclasses import dataclass

from featherback.errors import FeatherbackError
from featherback.models.rope.base import MOST_HEAD_DIM, Scaling

_COUNTS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
)


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelConfig:
    """Shapes and constants of a decoder. Raises FeatherbackError if they contradict each other."""

    architecture: str  # a key of `families.all_families()`
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int  # need not be hidden_size / num_attention_heads
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool = False  # q, k and v have biases; o never has one
    rope_interleaved: bool = False  # rotate neighbouring columns (GGUF llama) instead of halves; see `gguf_metadata`
    rope_scaling: Scaling | None = None  # None: the frequencies are plain powers of rope_theta
    rotary_dim: int | None = None  # number of rotated columns, the first of each head; None: all
    windows: tuple[int, ...] = ()  # for each layer, the most keys that a query sees (0: no limit); empty: no limits

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise FeatherbackError(f"The model's {name} is {getattr(self, name)}; it must be positive.")
        self.require_positive("rms_norm_eps", "rope_theta")
        if self.num_attention_heads % self.num_key_value_heads:
            raise FeatherbackError(
                f"The model's {self.num_attention_heads} attention heads do not divide into groups of "
                f"{self.num_key_value_heads} key-value heads."
            )
        if self.head_dim > MOST_HEAD_DIM:
            raise FeatherbackError(f"The model's head_dim is {self.head_dim}; the most is {MOST_HEAD_DIM}.")
        if self.head_dim % 2:
            raise FeatherbackError(f"The model's head_dim is {self.head_dim}; rotary embedding needs an even one.")
        if self.windows and (len(self.windows) != self.num_hidden_layers or min(self.windows) < 0):
            raise FeatherbackError(
                f"The model's attention windows are {self.windows}; it needs one for each of its "
                f"{self.num_hidden_layers} layers, 0 for no window."
            )
        rotated = self.head_dim if self.rotary_dim is None else self.rotary_dim
        if rotated % 2 or not 0 < rotated <= self.head_dim:
            raise FeatherbackError(
                f"The model rotates {rotated} columns of each head; it must be an even number up to {self.head_dim}."
            )

    def require_positive(self, *names: str) -> None:
        """Raise FeatherbackError unless all of these fields are finite and positive."""
        for name in names:
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise FeatherbackError(f"The model's {name} is {value}; it must be finite and positive.")

    @property
    def widest_unit(self) -> int:
        """The width of the widest gated unit."""
        return self.intermediate_size

    @property
    def q_size(self) -> int:
        """The number of rows of the query projection."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """The number of rows of the key projection, and of the value projection."""
        return self.num_key_value_heads * self.head_dim


def _qwen(
    hidden_size: int, intermediate_size: int, layers: int, heads: int, kv_heads: int, tied: bool = False
) -> ModelConfig:
    return ModelConfig(
        architecture="qwen2",
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden_size // heads,
        vocab_size=151_936 if tied else 152_064,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        max_position_embeddings=32_768,
        tie_word_embeddings=tied,
        attention_bias=True,
        rope_interleaved=False,
    )


QWEN2_5: dict[str, ModelConfig] = {
    "0.5B": _qwen(896, 4864, 24, 14, 2, tied=True),
    "1.5B": _qwen(1536, 8960, 28, 12, 2, tied=True),
    "3B": _qwen(2048, 11_008, 36, 16, 2, tied=True),
    "7B": _qwen(3584, 18_944, 28, 28, 4),
    "14B": _qwen(5120, 13_824, 48, 40, 8),
    "32B": _qwen(5120, 27_648, 64, 40, 8),
    "72B": _qwen(8192, 29_568, 80, 64, 8),
}
"""Size -> configuration, the smallest first."""
