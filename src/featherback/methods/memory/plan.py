"""The choices that trade memory against time. They change the gradients by rounding at most, unless the user asked for
intermediates of less precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from featherback.core.sizes import MB
from featherback.models.architecture.config import ModelConfig

Place = Literal["ram", "file"]

LEAST, MOST = BUDGETS = ("least", "max")
"""Budgets that are named by a word: the least that will do, and all that gives speed."""

Weights = Literal["resident", "paged", "by_matrix", "streamed"]
"""resident: stay mapped. paged: a layer is unmapped after use, the next one read ahead. by_matrix: the same, matrix by
matrix. streamed: read past the page cache through two buffers."""

MLP_STEP = 256
"""Tiles of F are multiples of it: whole blocks of every tensor type, and of the kernels' reduction steps."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one training process lays out its memory."""

    tokens: int  #: most tokens a batch holds
    compute: str = "bf16"  #: "bf16", "int16" or "fp32": operands of the matrix products
    rates: Mapping[str, float] = field(default_factory=dict, hash=False)
    """10^9 operations per second of each compute's products, if `compute` was chosen by them."""
    chunk: int | None = None  #: tokens that pass a block together; None: all of a batch
    mlp_tile: int = 2 * MLP_STEP  #: columns of F at a time
    vocab_tile: int = 1024  #: columns of the vocabulary at a time
    keep_h: bool = True  #: keep what adapters read, T x rank, between recomputation and gradient
    keep: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Intermediate of a block -> in how many layers, from the first of those that a step goes back through, it stays
    from the forward to the backward pass."""
    encodings: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Intermediate that is kept -> how it is stored, where that is not exact."""
    checkpoints: Place = "ram"  #: where block inputs wait for the backward pass
    states: Place = "ram"  #: where an adapter's parameters, gradients and optimiser states live
    weights: Weights = "resident"
    predicted_rss_mb: float | None = None  #: resident peak of the whole process, in 10^6 bytes
    predicted_footprint_mb: float | None = None  #: what only this process can free of it
    predicted_step_seconds: float | None = None  #: time of a step on this machine
    least_mb: int | None = None  #: the least budget that would do, in 10^6 bytes
    least_step_seconds: float | None = None  #: time of a step within it
    fastest_mb: int | None = None  #: the budget that gives all the speed that memory can, in 10^6 bytes
    fastest_step_seconds: float | None = None  #: time of a step within it
    free_mb: int | None = None
    """The free memory that the plan was made for, in 10^6 bytes, where that was less than it would take otherwise."""

    @property
    def needed(self) -> int:
        """Bytes of the predicted resident peak; 0 if none is."""
        return round((self.predicted_rss_mb or 0) * MB)

    def budget(self, asked: int | str | None) -> int | None:
        """A budget in bytes; that of a word is the plan's."""
        if not isinstance(asked, str):
            return asked
        found = {LEAST: self.least_mb, MOST: self.fastest_mb}[asked]
        return None if found is None else found * MB

    @property
    def chunk_tokens(self) -> int:
        """Most tokens that pass a block together."""
        return min(self.tokens, self.chunk or self.tokens)

    @property
    def chunked(self) -> bool:
        """Whether a full batch passes a block in more than one piece."""
        return self.chunk_tokens < self.tokens

    def kept(self, layer: int) -> tuple[str, ...]:
        """The intermediates that a layer keeps."""
        return tuple(name for name, layers in self.keep.items() if layer < layers)

    @classmethod
    def default(cls, config: ModelConfig, *, tokens: int, compute: str = "bf16") -> Plan:
        """Everything in RAM: for a machine with memory to spare, or a single gradient."""
        return cls(
            tokens=tokens, compute=compute, mlp_tile=min(512, -(-config.intermediate_size // MLP_STEP) * MLP_STEP)
        )
