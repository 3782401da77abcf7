"""A residual branch: y = x + f(x), such as attention. A block is a list of them; only the branch itself knows f.

A branch declares its weights and the intermediates that may be kept. It computes forward and backward, one span of
tokens at a time. A whole batch is one span; chunks of a batch are several. The *carry* is what passes from one span of
a layer to the next: keys and values, or a recurrent state, and their gradients in the backward pass. Only the branch
reads its carry.

    forward    spans in order:   state = forward(x, carry);   add_output(state): x becomes y
    backward   spans in order:   rebuild(x, carry), where there are several
               in reverse:       state = recompute(x, carry);   backward(dy, x, state, carry): dy becomes dx

The *state* is what a span computes from x. It lies in the caller's frame, which frees it after `add_output` or
`backward`.

Two functions of one input are one branch that has both. Where the amount of work depends on values, as in routing to
experts, the branch takes as much memory as `ctx.backend.most(found, bound)` says: `found` on a device that computes,
`bound` where a plan is counted, which no batch may exceed. A choice such as a routing must not differ between forward
and backward pass, although the checkpoint may be rounded: so keep the choice, or make it from rounded values both
times. Experts that a file stores as one tensor (E, out, in) are one projection (E out, in): `stacks` names it, and
`parts` names the rows of each expert.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from featherback.engine.backend.protocol import Array
from featherback.nn.context import Context
from featherback.nn.kept import NOTHING, Intermediate, Kept
from featherback.nn.linear import BlockWeights, Rows
from featherback.nn.rope import Rotary


class Remembered(NamedTuple):
    """The shape of an array, float32, that a decoder keeps of the tokens so far."""

    width: int
    rows: int | None = None  # None: a row per token; else a state of so many rows, whatever the number of tokens

    def shape(self, tokens: int) -> tuple[int, int]:
        """(rows, width) after this many tokens."""
        return (tokens if self.rows is None else self.rows, self.width)


class Branch(ABC):
    """Declarations, then computation. A subclass sets what it has; the defaults here mean: none."""

    projections: Mapping[str, tuple[int, int]]
    """Name -> (out, in) of its stored matrices."""
    vectors: Mapping[str, tuple[int, ...]]
    """Name -> shape of its norms, biases, and whatever else is not quantised."""
    intermediates: Mapping[str, Intermediate]
    """What may be kept from the forward to the backward pass, by name."""
    bundles: Sequence[tuple[str, ...]]
    """Names of intermediates that are worth keeping. Those of one tuple are kept together or not at all."""
    input: str
    """Name of its input among the intermediates of a block. The first branch's is not kept: it is the checkpoint."""
    output: str
    """Name of f(x), before it is added to x, among `intermediates`."""
    rotaries: tuple[Rotary, ...] = ()
    """The rotary embeddings that it needs cos and sin tables of."""
    parts: Mapping[str, Rows] = {}
    """Parts of stored projections, such as q of a fused qkv: name -> its rows."""
    stacks: Mapping[str, int] = {}
    """Projections (out, in) that a file stores as one tensor (E, out / E, in): name -> E."""
    heads_of_parts: Mapping[str, int] = {}
    """Parts whose two rows that rotate together are neighbours in some files (interleaved): name -> heads."""
    interleaved_heads: Mapping[str, int] = {}
    """Those of `heads_of_parts` that are interleaved in this model."""
    remembered: Mapping[str, Remembered] = {}
    """Arrays that a decoder keeps of the tokens so far, by name."""

    def shares_prefixes(self, longest: int) -> bool:
        """Whether sequences of at most `longest` tokens may share a common prefix, computed once.

        True if a token's carry depends only on the token and earlier ones, and every later token sees it.
        """
        return not self.remembered

    def carry(self, ctx: Context, tokens: int, kept: Kept, *, backward: bool) -> Any:
        """The carry of a layer: arrays of the current frame for all `tokens` of the batch. A span has `ctx.tokens`.

        The arrays are uninitialised. A sequence begins where `span.positions` is 0; no earlier state is read there.
        """
        return None

    def resumed(self, arrays: Mapping[str, Array]) -> Any:
        """The carry of a decoder, made of the arrays of `remembered`. The next span continues where the last ended."""
        return None

    def rebuild(self, ctx: Context, x: Callable[[], Array], w: BlockWeights, carry: Any, kept: Kept) -> None:
        """Put into the carry what this span put there in the forward pass: before the backward pass of several spans.

        `x` gives the span's input (T, D); call it only if the input is needed, because it may compute much.
        """
        return None

    @abstractmethod
    def forward(self, ctx: Context, x: Array, w: BlockWeights, carry: Any, kept: Kept = NOTHING) -> Any:
        """The state of a span, in the caller's frame, from its input x (T, D), float32. Intermediates are written where
        `kept` has room."""

    @abstractmethod
    def add_output(self, ctx: Context, state: Any, x: Array, w: BlockWeights) -> None:
        """x (T, D), float32, becomes x + f(x) in place. `state` was made from this x."""

    @abstractmethod
    def recompute(self, ctx: Context, x: Array, w: BlockWeights, carry: Any, kept: Kept = NOTHING) -> Any:
        """As `forward`, for `backward`: kept intermediates are read, not computed. x (T, D): float32 or operand."""

    @abstractmethod
    def backward(self, ctx: Context, dy: Array, x: Array, state: Any, w: BlockWeights, carry: Any) -> None:
        """dy (T, D), float32, the gradient of x + f(x), becomes that of x in place.

        Gradients of an adapter are added to the arrays in `w`; those of the weights themselves go to `w.sink`.
        """
