"""A residual branch: y = x + f(x). A block is a sequence of them, and nothing outside a branch knows what f is.

A branch declares what it stores and what may be kept, and computes forward and backward, a span of tokens at a time.
What passes from one span of a layer to the next (keys and values, a recurrent state, in the backward pass the
gradients of them) is its *carry*, which no one else looks into. Where a batch passes whole, one span is all of it.

    forward    spans in order:   state = forward(x, carry);   add_output(state): x becomes y
    backward   spans in order:   rebuild(x, carry), where there are several
               in reverse:       state = recompute(x, carry);   backward(dy, x, state, carry): dy becomes dx

Two branches on one input are one branch that has both. Where work depends on values, as routing to experts does, it is
sized by `ctx.backend.most(found, bound)`: by what is found on a device that computes, by a bound that no batch exceeds
where a plan is counted. A choice made in the forward pass is made once: the checkpoint may be rounded, so the choice is
kept, or made from what is rounded alike. Experts that a file stores as one tensor (E, out, in) are one projection
(E out, in), named in `stacks`, of which `parts` names the rows of each.
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
    """An array that a decoder keeps of the tokens so far, float32."""

    width: int
    rows: int | None = None  # None: a row per token; else a state of so many rows, whatever the number of tokens

    def shape(self, tokens: int) -> tuple[int, int]:
        """(rows, width) after this many tokens."""
        return (tokens if self.rows is None else self.rows, self.width)


class Branch(ABC):
    """Declarations, then computation; what a branch does not have it leaves as it is here."""

    projections: Mapping[str, tuple[int, int]]
    """Name -> (out, in) of its stored matrices."""
    vectors: Mapping[str, tuple[int, ...]]
    """Name -> shape of its norms, biases, and whatever else is not quantised."""
    intermediates: Mapping[str, Intermediate]
    """What may be kept from the forward to the backward pass, by name."""
    bundles: Sequence[tuple[str, ...]]
    """Those that are worth keeping, and which only together."""
    input: str
    """What its input is called among the intermediates of a block, where it is not the first branch."""
    output: str
    """What its output is called among its own, before it is added to x."""
    rotaries: tuple[Rotary, ...] = ()
    """The rotations that it needs tables of."""
    parts: Mapping[str, Rows] = {}
    """Where a stored projection holds several: name -> its rows."""
    stacks: Mapping[str, int] = {}
    """Projections that a file stores as a tensor (E, out / E, in): name -> E."""
    heads_of_parts: Mapping[str, int] = {}
    """Parts whose rows some files hold in another order, two that rotate together side by side: name -> heads."""
    interleaved_heads: Mapping[str, int] = {}
    """Those of them whose rows lie so in this model."""
    remembered: Mapping[str, Remembered] = {}
    """What a decoder keeps of the tokens so far, by name."""

    def shares_prefixes(self, longest: int) -> bool:
        """Whether sequences of at most `longest` tokens may have one common prefix: what a token leaves in the carry
        depends on its own and earlier tokens alone, and all later ones see it."""
        return not self.remembered

    def carry(self, ctx: Context, tokens: int, kept: Kept, *, backward: bool) -> Any:
        """Room for what passes between the spans of `tokens` in all; `ctx.tokens` is fewer where there are several.

        It is uninitialised: the first token of a sequence follows none, as `span.positions` says.
        """
        return None

    def resumed(self, arrays: Mapping[str, Array]) -> Any:
        """The carry of a decoder, whose next spans find it as the last ones left it: `remembered`, by name."""
        return None

    def rebuild(self, ctx: Context, x: Callable[[], Array], w: BlockWeights, carry: Any, kept: Kept) -> None:
        """Before the backward pass of several spans: put into the carry what this span had put there.

        `x`: gives its input (T, D), where that is needed.
        """
        return None

    @abstractmethod
    def forward(self, ctx: Context, x: Array, w: BlockWeights, carry: Any, kept: Kept = NOTHING) -> Any:
        """The state of a span, in the caller's frame, from its input x (T, D), float32; intermediates are kept."""

    @abstractmethod
    def add_output(self, ctx: Context, state: Any, x: Array, w: BlockWeights) -> None:
        """x (T, D), float32, the input that `state` was made from, becomes x + f(x) in place."""

    @abstractmethod
    def recompute(self, ctx: Context, x: Array, w: BlockWeights, carry: Any, kept: Kept = NOTHING) -> Any:
        """As `forward`, for `backward`: what is kept is read, x (T, D) is float32 or an operand."""

    @abstractmethod
    def backward(self, ctx: Context, dy: Array, x: Array, state: Any, w: BlockWeights, carry: Any) -> None:
        """dy (T, D), the gradient of x + f(x), becomes that of x in place; those of what is trained are handed on."""
