"""What a stretched rotary embedding says of itself. Each other module of this folder is one: its class, `SCALING`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from featherback.engine.formats.writer import Value
from featherback.errors import FeatherbackError
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig

Float32 = NDArray[np.float32]

MOST_HEAD_DIM = 1 << 14
"""Rotary tables are made by it, before any tensor tells its size."""

ORIGINAL = "rope.scaling.original_context_length"


@dataclass(frozen=True)
class Plain:
    """The embedding before it is stretched."""

    dim: int  # columns of a head that are rotated
    theta: float
    context: int  # most tokens of a text, once stretched

    def __post_init__(self) -> None:
        if self.dim > MOST_HEAD_DIM:
            raise FeatherbackError(f"The model's head_dim is {self.dim}; the most is {MOST_HEAD_DIM}.")
        positive("rope_theta", self.theta)

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """theta^(-2i/dim): (dim/2,)."""
        with np.errstate(all="ignore"):
            return float(self.theta) ** (-np.arange(0, self.dim, 2) / self.dim)


@dataclass(frozen=True, eq=False)
class Scaling(ABC):
    """How the frequencies of a rotary embedding differ from theta^(-2i/dim)."""

    hf_types: ClassVar[tuple[str, ...]]
    """The entries rope_type of config.json."""
    gguf_type: ClassVar[str | None] = None
    """The entry rope.scaling.type of a GGUF file, if it has one there."""
    gguf_tensors: ClassVar[tuple[str, ...]] = ()
    """Tensors of a GGUF file that it reads."""
    gguf_followed: ClassVar[tuple[str, ...]] = ()
    """Metadata keys that it reads where other scalings want their neutral values."""

    @classmethod
    @abstractmethod
    def read_hf(cls, config: HFConfig, rope: Mapping[str, Any], plain: Plain) -> Scaling:
        """From the entries `rope` of a config.json that has one of the `hf_types`, as transformers takes them."""

    @classmethod
    @abstractmethod
    def read_gguf(cls, keys: GGUFKeys, kind: str | None, plain: Plain) -> Scaling | None:
        """From a GGUF file, None if it has not this scaling. `kind`: its rope.scaling.type, if it has one."""

    @abstractmethod
    def factors(self, plain: Plain) -> Float32:
        """What divides the inverse frequencies: (dim/2,)."""

    @property
    def attention_factor(self) -> float:
        """What cosines and sines are multiplied by."""
        return 1.0

    @property
    def beyond(self) -> tuple[int, Float32] | None:
        """(n, factors) where sequences of more than n tokens have other factors."""
        return None

    @abstractmethod
    def gguf_keys(self) -> dict[str, Value]:
        """The metadata that tells it, without the architecture's prefix; FeatherbackError if none can."""

    def gguf_arrays(self) -> dict[str, Float32]:
        """The `gguf_tensors` that tell it."""
        return {}


def positive(name: str, value: float) -> float:
    """`value`; FeatherbackError if it is not finite and positive, in float32 too."""
    with np.errstate(all="ignore"):
        stored = float(np.float32(value))
    if not (math.isfinite(stored) and stored > 0):
        raise FeatherbackError(f"The model's {name} is {value}; it must be finite and positive.")
    return value


def checked(factors: ArrayLike) -> Float32:
    """Frequency factors in float32; FeatherbackError if they are not all finite and positive."""
    with np.errstate(all="ignore"):
        divisors = np.asarray(factors, np.float32)
    if not (np.isfinite(divisors).all() and (divisors > 0).all()):
        raise FeatherbackError("The model's rotary frequency factors are not all finite and positive.")
    return divisors


def original_context(config: HFConfig, rope: Mapping[str, Any], plain: Plain) -> int:
    """The context before stretching. What stands beside the entries about rotary embedding goes before them."""
    name = "original_max_position_embeddings"
    entries = config.entries if config.entries.get(name) is not None else rope
    return int(positive("rotary scaling's original_context", config.integer(name, plain.context, entries)))
