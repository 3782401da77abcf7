"""The plan: choices that trade memory against time.

They change gradients only by rounding, unless the user allows intermediates of lower precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from featherback.core.decode import Amount, Positive
from featherback.core.sizes import MB
from featherback.engine import kernels
from featherback.models.architecture.config import ModelConfig
from featherback.nn.encodings import ENCODINGS

Storage = Literal["ram", "file"]

LEAST, MOST = BUDGETS = ("least", "max")
"""Budgets with a name: the least that is enough, and the one beyond which nothing gets faster."""

Weights = Literal["resident", "paged", "by_matrix", "streamed"]
"""resident: weights stay mapped. paged: a layer is unmapped after use, the next one read ahead. by_matrix: the same,
matrix by matrix. streamed: weights are read past the page cache, through two buffers."""

MLP_STEP = 256
"""MLP tiles are multiples of this, so that they contain whole blocks of every tensor type and whole reduction steps."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The memory layout of one training process."""

    tokens: Positive  #: most tokens per batch
    compute: Annotated[str, tuple(kernels.OPERANDS)] = "bf16"  #: type of the operands of matrix products
    rates: Mapping[str, Amount] = field(default_factory=dict, hash=False)
    """Measured speed of each compute in 10^9 operations per second, if `compute` was chosen automatically."""
    chunk: Positive | None = None  #: tokens that pass a block together; None: the whole batch
    mlp_tile: Positive = 2 * MLP_STEP  #: MLP columns computed at a time
    vocab_tile: Positive = 1024  #: vocabulary columns computed at a time
    keep_h: bool = True  #: keep adapters' x A^T (T x rank) between recomputation and gradient
    keep: Mapping[str, Positive] = field(default_factory=dict, hash=False)
    """Intermediate of a block -> number of layers that keep it from the forward to the backward pass, counted from the
    first layer with a backward pass."""
    encodings: Mapping[str, Annotated[str, tuple(ENCODINGS.names)]] = field(default_factory=dict, hash=False)
    """Kept intermediate -> its encoding, unless it is exact."""
    checkpoints: Storage = "ram"  #: where block inputs are stored until the backward pass
    states: Storage = "ram"  #: where an adapter's parameters, gradients and optimiser states are stored
    weights: Weights = "resident"
    slots: Positive | None = None  #: answers that the model writes at once; None: it writes none
    predicted_rss_mb: Amount | None = None  #: peak RSS of the whole process, in 10^6 bytes
    predicted_footprint_mb: Amount | None = None  #: its private part, in 10^6 bytes
    predicted_step_seconds: Amount | None = None  #: time per step on this machine
    predicted_reading_seconds: Amount | None = None
    """Seconds of a step for reading weights from the disk, if the page cache cannot hold them. They overlap with
    computing."""
    least_mb: Positive | None = None  #: the least budget that is enough, in 10^6 bytes
    least_step_seconds: Amount | None = None  #: time per step with this budget
    fastest_mb: Positive | None = None  #: the least budget with the shortest step, in 10^6 bytes
    fastest_step_seconds: Amount | None = None  #: time per step with this budget
    predicted_vram_mb: Amount | None = None
    """Peak memory of a card, in 10^6 bytes. None: the CPU computes, and the amounts above are this machine's."""
    least_vram_mb: Positive | None = None  #: the least memory of a card that is enough, in 10^6 bytes
    free_mb: Positive | None = None
    """Free memory that the plan was limited to, in 10^6 bytes. None: free memory did not limit it."""

    @property
    def needed(self) -> int:
        """The predicted peak RSS in bytes; 0 if there is no prediction."""
        return round((self.predicted_rss_mb or 0) * MB)

    def budget(self, asked: int | str | None) -> int | None:
        """Convert a budget to bytes. A named budget has the plan's value."""
        if not isinstance(asked, str):
            return asked
        found = {LEAST: self.least_mb, MOST: self.fastest_mb}[asked]
        return None if found is None else found * MB

    def within_command(self, needed: int) -> Plan:
        """Return the plan with the amounts of a command whose programs need `needed` bytes in all.

        No budget is enough below that, so none is faster either.
        """
        least, fastest = needed // MB, self.fastest_mb
        if fastest is None or least <= fastest:
            return replace(self, least_mb=least)
        return replace(self, least_mb=least, least_step_seconds=self.fastest_step_seconds, fastest_mb=least)

    @property
    def chunk_tokens(self) -> int:
        """Maximum number of tokens that pass a block together."""
        return min(self.tokens, self.chunk or self.tokens)

    @property
    def chunked(self) -> bool:
        """Whether a full batch passes a block in several chunks."""
        return self.chunk_tokens < self.tokens

    @property
    def chunks(self) -> int:
        """The number of chunks of a full batch."""
        return -(-self.tokens // self.chunk_tokens)

    @property
    def approximated(self) -> dict[str, int]:
        """The intermediates of which only slopes are kept, so that gradients are approximate -> number of layers."""
        return {name: self.keep[name] for name, each in self.encodings.items() if ENCODINGS[each].slopes_of is not None}

    def kept(self, position: int) -> tuple[str, ...]:
        """Return the intermediates that a layer keeps. `position`: its index among the layers with a backward pass."""
        return tuple(name for name, layers in self.keep.items() if position < layers)

    @classmethod
    def default(cls, config: ModelConfig, *, tokens: int, compute: str = "bf16") -> Plan:
        """Return a plan with everything in RAM, for a machine with memory to spare or for a single gradient."""
        return cls(tokens=tokens, compute=compute, mlp_tile=min(512, -(-config.widest_unit // MLP_STEP) * MLP_STEP))
