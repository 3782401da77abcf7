"""A decoder block: residual branches, one after the other. See docs/derivations/block.md.

This file has the forward pass. The backward pass of a block is MeSP's schedule, in `methods/mesp.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.protocol import Array
from featherback.nn.branch import Branch, Remembered
from featherback.nn.context import Context
from featherback.nn.kept import NOTHING, Intermediate, Kept
from featherback.nn.linear import BlockWeights, Rows
from featherback.nn.rope import Rotary


def rotaries(blocks: Iterable[Block]) -> tuple[Rotary, ...]:
    """Return the distinct rotary embeddings for which the blocks need tables of cos and sin."""
    return tuple({rotary: None for block in blocks for rotary in block.rotaries})


def bundles(blocks: Iterable[Block], outputs: bool = False) -> list[tuple[str, ...]]:
    """Return the distinct bundles of intermediates that a plan may keep. A bundle is kept whole or not at all.

    `outputs`: the adapter reads the outputs of branches, so these are offered as well.
    """
    blocks = list(blocks)
    found = dict.fromkeys(bundle for block in blocks for bundle in block.bundles)
    needed = [(branch.output,) for block in blocks for branch in block.branches] if outputs else []
    return list(found | dict.fromkeys(needed))


def noted(blocks: Iterable[Block]) -> Remembered | None:
    """Return what a layer notes for each chunk before its backward pass. All layers that do note the same."""
    found = {branch.noted for block in blocks for branch in block.branches if branch.noted is not None}
    assert len(found) < 2, "one store holds the rows of every layer"
    return next(iter(found), None)


def adaptable(blocks: Iterable[Block]) -> tuple[str, ...]:
    """Return the names of the projections that an adapter may change.

    The projections of all first branches come first, then the projections of all second branches, and so on. Those
    that are adapted only on request come last. If an adapter has branches of its own, only their places are returned.
    """
    places = zip_longest(*({id(block): block.branches for block in blocks}.values()))
    branches = [branch for place in places for branch in place if branch is not None]
    if own := dict.fromkeys(name for branch in branches for name in branch.own):
        return tuple(own)
    names = [name for branch in branches for name in branch.projections if name not in branch.frozen]
    requested = {name for branch in branches for name in branch.requested}
    return tuple(dict.fromkeys(sorted(names, key=lambda name: name in requested)))


class Block:
    """x_0 = x;   x_{n+1} = x_n + f_n(x_n) for each branch n = 0 ... N - 1;   y = x_N. All are (T, D)."""

    def __init__(self, branches: Sequence[Branch]) -> None:
        self.branches = branches
        self.projections = {name: shape for branch in branches for name, shape in branch.projections.items()}
        """Name -> (out, in)."""
        self.places = self.projections | {name: shape for branch in branches for name, shape in branch.own.items()}
        """The projections, and the places of adapters that are branches: name -> (out, in)."""
        self.vectors = {name: shape for branch in branches for name, shape in branch.vectors.items()}
        """Norms and biases: name -> shape."""
        self.intermediates: dict[str, Intermediate] = {}
        """The intermediates that may be kept from the forward to the backward pass, by name.

        These are the intermediates of all branches, and the inputs of all branches except the first.
        """
        self.bundles: list[tuple[str, ...]] = []
        """Names of intermediates that are worth keeping. Each tuple is kept whole or not at all."""
        for number, branch in enumerate(branches):
            if number:
                self.intermediates[branch.input] = Intermediate(branch.intermediates[branch.output].width)
                self.bundles.append((branch.input,))
            self.intermediates |= branch.intermediates
            self.bundles += branch.bundles

    @property
    def width(self) -> int:
        """D, the width of the residual stream."""
        last = self.branches[-1]
        return last.intermediates[last.output].width

    def followed_by(self, branch: Branch) -> Block:
        """Return a block with the same branches, and `branch` behind them."""
        return Block([*self.branches, branch])

    @property
    def stacks(self) -> dict[str, int]:
        """Projections that hold a matrix for each of E experts: name -> E."""
        return {name: count for branch in self.branches for name, count in branch.stacks.items()}

    def shape(self, target: str) -> tuple[int, ...]:
        """Return the shape of a projection or a place (out, in); of a stack of experts (E, out, in)."""
        rows, cols = self.places[target]
        count = self.stacks.get(target)
        return (rows, cols) if count is None else (count, rows // count, cols)

    @property
    def requested(self) -> frozenset[str]:
        """The projections that adapters change only on request, and that PEFT knows as parameters, not as modules."""
        return frozenset(name for branch in self.branches for name in branch.requested)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight as files store it, by name: norms, then projections, then the rest."""
        norms = {name: shape for name, shape in self.vectors.items() if name.endswith("norm")}
        matrices = {name: self.shape(name) for name in self.projections}
        return norms | matrices | self.vectors

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        """The rotary embeddings for which its branches need tables of cos and sin."""
        return tuple(dict.fromkeys(rotary for branch in self.branches for rotary in branch.rotaries))

    @property
    def parts(self) -> dict[str, Rows]:
        """The named parts of stored projections, such as q of a fused qkv: name -> rows."""
        return {name: rows for branch in self.branches for name, rows in branch.parts.items()}

    @property
    def remembered(self) -> list[Remembered]:
        """The arrays that a decoder keeps of earlier tokens, for all branches."""
        return [about for branch in self.branches for about in branch.remembered.values()]

    def row_order(
        self,
        target: str,
        order: Callable[[int, int], NDArray[np.intp]],
        interleaved: bool | None = None,
        tiled: bool | None = None,
    ) -> NDArray[np.intp]:
        """Return an index (out,) such that `rows[index]` turns Hugging Face's rows of `target` into those of a file.

        `order(heads, n)` returns the order of n rows of that many rotated heads. `interleaved`: True for a file in
        which the two rows that rotate together are neighbours, False for one in which they are not, None for this
        model's own file. `tiled`: the same for V heads that share K heads.
        """
        rows = np.arange(self.places[target][0])
        for branch in self.branches:
            heads = branch.interleaved_heads if interleaved is None else branch.heads_of_parts if interleaved else {}
            for part, count in heads.items():
                stored, first, last = branch.parts[part]
                if stored == target:
                    rows[first:last] = first + order(count, last - first)
            if target in branch.grouped_rows and (branch.tiled if tiled is None else tiled):
                rows = branch.grouped_rows[target].tiled()
        return rows

    def column_order(self, target: str, tiled: bool | None = None) -> NDArray[np.intp]:
        """Return an index (in,) such that `a[:, index]` turns Hugging Face's columns of `target` into those of a file.

        `tiled`: as in `row_order`.
        """
        columns = np.arange(self.places[target][1])
        for branch in self.branches:
            if target in branch.grouped_columns and (branch.tiled if tiled is None else tiled):
                columns = branch.grouped_columns[target].tiled()
        return columns

    def carry(self, ctx: Context, tokens: int, kept: Kept = NOTHING, *, backward: bool = False) -> list[Any]:
        """Return each branch's carry, in the current frame: the arrays that pass from span to span (`Branch.carry`)."""
        return [branch.carry(ctx, tokens, kept, backward=backward) for branch in self.branches]

    def forward(self, ctx: Context, x: Array, w: BlockWeights, carry: Sequence[Any], kept: Kept = NOTHING) -> None:
        """Pass the residual stream x (T, D), float32, through the block in place.

        Intermediates are written to `kept`, where it has arrays for them. The others are freed once the branch's output
        is added.
        """
        for number, (branch, carried) in enumerate(zip(self.branches, carry)):
            if number and (place := kept.rows(branch.input, ctx.span)) is not None:
                ctx.ops.cast(x, place)
            with ctx.frame():
                branch.add_output(ctx, branch.forward(ctx, x, w, carried, kept), x, w)

    def rebuild(self, ctx: Context, x: Callable[[], Array], w: BlockWeights, carry: Sequence[Any], kept: Kept) -> None:
        """Restore in each branch's carry what this span left there in the forward pass.

        Called before the backward pass of several spans. `x` returns the block's input (T, D). It is called only if a
        branch needs the input.
        """
        for number, (branch, carried) in enumerate(zip(self.branches, carry)):
            if number:
                x = self._following(ctx, number, x, w, carry[number - 1], kept)
            branch.rebuild(ctx, x, w, carried, kept)

    def following(self, ctx: Context, number: int, x: Array, state: Any, w: BlockWeights, kept: Kept) -> Array:
        """Return the input x_n (T, D) of branch n = `number`: kept, or x_{n-1} + f_{n-1}(x_{n-1}) in the current frame.

        x (T, D) is x_{n-1}. `state` is what branch n - 1 computed from it.
        """
        branch, before = self.branches[number], self.branches[number - 1]
        place = kept.rows(branch.input, ctx.span)
        if place is not None:
            return place
        y = ctx.floats(branch.input, *x.shape)
        ctx.ops.cast(x, y)
        before.add_output(ctx, state, y, w)
        return y

    def _following(
        self, ctx: Context, number: int, x: Callable[[], Array], w: BlockWeights, carried: Any, kept: Kept
    ) -> Callable[[], Array]:
        """Return a function that computes `following` when called. `x` returns x_{n-1}."""

        def found() -> Array:
            before = x()
            state = self.branches[number - 1].recompute(ctx, before, w, carried, kept)
            return self.following(ctx, number, before, state, w, kept)

        return found
