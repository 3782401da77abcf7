"""A residual branch: y = x + f(x), such as attention. A block is a list of branches, and only the branch knows its f.

A branch declares its weights and the intermediates that may be kept. It computes forward and backward, one span of
tokens at a time. A whole batch is one span; chunks of a batch are several. The *carry* passes from one span of a layer
to the next: keys and values, or a recurrent state, and in the backward pass their gradients. Only the branch reads its
carry.

    forward    spans in order:   state = forward(x, carry);   add_output(state): x becomes y
    backward   spans in order:   rebuild(x, carry), if there are several
               in reverse:       state = recompute(x, carry);   backward(dy, x, state, carry): dy becomes dx

The *state* is what a span computes from x. It is allocated in the caller's frame, which frees it after `add_output` or
`backward`.

Two functions of one input are one branch that contains both. If the amount of work depends on values, as in routing to
experts, the branch allocates `ctx.backend.most(found, bound)`: `found` on a device that computes, `bound` when a plan
is counted. No batch may exceed `bound`. A choice such as a routing must be the same in forward and backward pass,
although the checkpoint may be rounded: so keep the choice, or make it from rounded values both times. Experts that a
file stores as one tensor (E, out, in) are one projection (E out, in): `stacks` names it, and `parts` names the rows of
each expert.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.protocol import Array
from featherback.nn.context import Context
from featherback.nn.kept import NOTHING, Intermediate, Kept
from featherback.nn.linear import BlockWeights, Rows
from featherback.nn.rope import Rotary


@dataclass(frozen=True)
class GroupedHeads:
    """V heads of `size` rows (or columns) each, behind `first` others.

    Grouped, V heads h R ... h R + R - 1 belong to K head h, with R = v_heads / k_heads. Tiled, V heads h, h + k_heads,
    h + 2 k_heads ... do.
    """

    k_heads: int
    v_heads: int
    size: int
    first: int = 0

    def after(self, count: int) -> GroupedHeads:
        """Return these heads behind `count` other rows."""
        return replace(self, first=count)

    def tiled(self) -> NDArray[np.intp]:
        """Return an index (first + v_heads size,) such that `grouped[index]` is tiled."""
        heads = np.arange(self.v_heads * self.size).reshape(self.k_heads, self.v_heads // self.k_heads, self.size)
        return np.concatenate([np.arange(self.first), self.first + heads.swapaxes(0, 1).reshape(-1)])


class Remembered(NamedTuple):
    """The shape of a float32 array in which a decoder keeps information about earlier tokens."""

    width: int
    rows: int | None = None  # None: a row per token; else a state with this many rows, whatever the number of tokens

    def shape(self, tokens: int) -> tuple[int, int]:
        """Return (rows, width) after this many tokens."""
        return (tokens if self.rows is None else self.rows, self.width)


class KeyHeads(NamedTuple):
    """The heads of the keys that a decoder keeps for each token, and of as many values."""

    heads: int
    size: int


class Branch(ABC):
    """Declarations, then computation. A subclass sets the declarations that apply; the defaults mean "none"."""

    projections: Mapping[str, tuple[int, int]]
    """Its stored matrices: name -> (out, in)."""
    vectors: Mapping[str, tuple[int, ...]]
    """Its norms, biases and other weights that are not quantised: name -> shape."""
    intermediates: Mapping[str, Intermediate]
    """The intermediates that may be kept from the forward to the backward pass, by name."""
    bundles: Sequence[tuple[str, ...]]
    """Names of intermediates that are worth keeping. Each tuple is kept whole or not at all."""
    input: str
    """Name of its input among the block's intermediates.

    The first branch's input is not kept, because it is the checkpoint.
    """
    output: str
    """Name of f(x), before it is added to x, among `intermediates`."""
    hides_weights: bool = False
    """Whether products read other weights than PEFT's modules hold, so that no kind of adapter may read the weights."""
    rotaries: tuple[Rotary, ...] = ()
    """The rotary embeddings for which it needs tables of cos and sin."""
    own: Mapping[str, tuple[int, int]] = {}
    """The places of an adapter that is this branch, where the model has no weight: name -> (out, in)."""
    parts: Mapping[str, Rows] = {}
    """The named parts of stored projections, such as q of a fused qkv: name -> rows."""
    stacks: Mapping[str, int] = {}
    """Projections (out, in) that a file stores as one tensor (E, out / E, in): name -> E."""
    frozen: Sequence[str] = ()
    """Projections that adapters cannot change."""
    requested: Sequence[str] = ()
    """Projections that adapters change only on request."""
    heads_of_parts: Mapping[str, int] = {}
    """Parts with rotated heads, whose paired rows are neighbours (interleaved) in some files: name -> heads."""
    interleaved_heads: Mapping[str, int] = {}
    """The entries of `heads_of_parts` that are interleaved in this model."""
    grouped_rows: Mapping[str, GroupedHeads] = {}
    """Projections whose outputs are V heads that share K heads, and that are tiled in GGUF files: name -> heads."""
    grouped_columns: Mapping[str, GroupedHeads] = {}
    """Projections whose inputs are such heads."""
    tiled: bool = False
    """Whether these heads are tiled in this model."""
    remembered: Mapping[str, Remembered] = {}
    """The arrays that a decoder keeps about earlier tokens, by name."""
    key_heads: KeyHeads | None = None
    """The heads, if a decoder keeps keys and values. Its carry is then an `AttentionCarry`."""

    noted: Remembered | None = None
    """What `rebuild` notes for each chunk in `ctx.noted`, outside the scratch memory: this many rows per chunk."""

    def shares_prefixes(self, longest: int) -> bool:
        """Return whether sequences of at most `longest` tokens may share a common prefix, computed once.

        True if a token's carry depends only on the token and earlier ones, and every later token sees it.
        """
        return not self.remembered

    def carry(self, ctx: Context, tokens: int, kept: Kept, *, backward: bool) -> Any:
        """Return the carry of a layer: arrays of the current frame for all `tokens` of the batch. A span has
        `ctx.tokens`.

        The arrays are uninitialised. A sequence begins where `span.positions` is 0, and no earlier state is read there.
        """
        return None

    def resumed(self, arrays: Mapping[str, Array]) -> Any:
        """Return the carry of a decoder, made of the `remembered` arrays.

        The next span continues where the last one ended.
        """
        return None

    def rebuild(self, ctx: Context, x: Callable[[], Array], w: BlockWeights, carry: Any, kept: Kept) -> None:
        """Restore in the carry what this span left there in the forward pass. Called before a backward pass of several
        spans.

        `x` returns the span's input (T, D). Call it only if the input is needed, because it may compute much.
        """
        return None

    @abstractmethod
    def forward(self, ctx: Context, x: Array, w: BlockWeights, carry: Any, kept: Kept = NOTHING) -> Any:
        """Return the state of a span, in the caller's frame, from its input x (T, D), float32.

        Intermediates are written to `kept`, where it has arrays for them.
        """

    @abstractmethod
    def add_output(self, ctx: Context, state: Any, x: Array, w: BlockWeights) -> None:
        """x (T, D), float32, becomes x + f(x) in place. `state` was made from this x."""

    @abstractmethod
    def recompute(self, ctx: Context, x: Array, w: BlockWeights, carry: Any, kept: Kept = NOTHING) -> Any:
        """Like `forward`, for use by `backward`: kept intermediates are read. x (T, D) is float32 or an operand."""

    @abstractmethod
    def backward(self, ctx: Context, dy: Array, x: Array, state: Any, w: BlockWeights, carry: Any) -> None:
        """Turn dy (T, D), float32, the gradient of x + f(x), into dx, the gradient of x, in place.

        Gradients of an adapter are added to the arrays in `w`. Gradients of the weights themselves go to `w.sink`.
        """
