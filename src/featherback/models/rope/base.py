"""The interface of a rotary scaling. Each other module of this folder defines one class as `SCALING`."""

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
"""Limits the size of rotary tables, which are made before the tensors are checked."""

ORIGINAL = "rope.scaling.original_context_length"


@dataclass(frozen=True)
class Plain:
    """A rotary embedding without scaling."""

    dim: int  # number of rotated columns of a head
    theta: float
    context: int  # most tokens of a text, with the scaling

    def __post_init__(self) -> None:
        if self.dim > MOST_HEAD_DIM:
            raise FeatherbackError(f"The model's head_dim is {self.dim}; the most is {MOST_HEAD_DIM}.")
        positive("rope_theta", self.theta)

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """The inverse frequencies theta^(-2i/dim), shape (dim/2,), float64."""
        with np.errstate(all="ignore"):
            return float(self.theta) ** (-np.arange(0, self.dim, 2) / self.dim)


@dataclass(frozen=True, eq=False)
class Scaling(ABC):
    """How the frequencies of a rotary embedding differ from theta^(-2i/dim)."""

    hf_types: ClassVar[tuple[str, ...]]
    """The values of rope_type in config.json."""
    gguf_type: ClassVar[str | None] = None
    """The value of rope.scaling.type in GGUF files; None if they have no value for this scaling."""
    gguf_tensors: ClassVar[tuple[str, ...]] = ()
    """The tensors of GGUF files that it reads."""
    gguf_followed: ClassVar[tuple[str, ...]] = ()
    """Metadata keys that it reads. Other scalings require neutral values of them."""

    @classmethod
    @abstractmethod
    def read_hf(cls, config: HFConfig, rope: Mapping[str, Any], plain: Plain) -> Scaling:
        """Read the scaling from the entries `rope` of a config.json, as transformers does."""

    @classmethod
    @abstractmethod
    def read_gguf(cls, keys: GGUFKeys, kind: str | None, plain: Plain) -> Scaling | None:
        """Read the scaling from a GGUF file; None if it has another one. `kind`: the file's rope.scaling.type."""

    @abstractmethod
    def factors(self, plain: Plain) -> Float32:
        """The divisors of the inverse frequencies, shape (dim/2,), float32."""

    @property
    def attention_factor(self) -> float:
        """The factor of cosines and sines."""
        return 1.0

    @property
    def beyond(self) -> tuple[int, Float32] | None:
        """(n, factors), if sequences of more than n tokens have other factors; None otherwise."""
        return None

    @abstractmethod
    def gguf_keys(self) -> dict[str, Value]:
        """The scaling as GGUF metadata, without the architecture's prefix.

        Raises FeatherbackError if GGUF cannot store it.
        """

    def gguf_arrays(self) -> dict[str, Float32]:
        """The scaling as tensors of a GGUF file."""
        return {}


def positive(name: str, value: float) -> float:
    """Return `value`. Raises FeatherbackError unless it is finite and positive, also in float32."""
    with np.errstate(all="ignore"):
        stored = float(np.float32(value))
    if not (math.isfinite(stored) and stored > 0):
        raise FeatherbackError(f"The model's {name} is {value}; it must be finite and positive.")
    return value


def checked(factors: ArrayLike) -> Float32:
    """Convert frequency factors to float32. Raises FeatherbackError unless all are finite and positive."""
    with np.errstate(all="ignore"):
        divisors = np.asarray(factors, np.float32)
    if not (np.isfinite(divisors).all() and (divisors > 0).all()):
        raise FeatherbackError("The model's rotary frequency factors must all be finite and positive.")
    return divisors


def original_context(config: HFConfig, rope: Mapping[str, Any], plain: Plain) -> int:
    """The context before scaling. An entry outside the entries about rotary embedding has precedence."""
    name = "original_max_position_embeddings"
    entries = config.entries if config.entries.get(name) is not None else rope
    return int(positive("rotary scaling's original_context", config.integer(name, plain.context, entries)))
