"""SPARTAN (Deshpande et al., 2022, arXiv 2211.16634): a sparse memory behind each block, as a branch of its own.

Parents E (P, D) own c cells each: keys K and values V, both (P c, D). With n = x / rms(x), for each token:

    l = n E^T (P);   the k parents with the largest l are selected;   p = softmax of their l
    a_e = softmax(n K_e^T / temperature)  (c), for each selected parent e
    y = x + sum over the selected e of p_e a_e V_e

Backward, from g = dy (D), for each selected parent:

    c_e = V_e g (c);   dV_e = p_e a_e g^T;   dp_e = a_e . c_e;   da_e = p_e c_e
    dz_e = a_e (da_e - a_e . da_e) / temperature;   dK_e = dz_e n^T
    dl_e = p_e (dp_e - sum over the selected of p dp);   dE_e = dl_e n^T
    dn = sum over the selected of (dz_e K_e + dl_e E_e);   dx = dy + the gradient of x / rms(x) from dn

The selection has no gradient. A checkpoint may be rounded, so the selection is kept from the forward to the backward
pass. The tokens of one parent are read together, at most `ROWS` at a time, so no cell is computed for a token that did
not select its parent, and no array holds a row of K or V per token. See docs/derivations/spartan.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.core.naming import arguments
from featherback.core.noise import Key, uniform
from featherback.core.options import check, option
from featherback.engine.backend.protocol import Array
from featherback.errors import FeatherbackError
from featherback.nn.adapters.base import Float32, Kind, Part, Setup, Shape, Values
from featherback.nn.branch import Branch
from featherback.nn.context import Context
from featherback.nn.kept import NOTHING, Intermediate, Kept, KeptState
from featherback.nn.linear import BlockWeights
from featherback.nn.router import Gating, Routing

MEMORY, SELECTED = "memory_proj", "selected parents"
ROWS = 128
"""Tokens of a parent that are computed at a time."""
EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class SpartanOptions:
    """The size of the memory, as in the paper."""

    parents: int = option(16, least=1, help="Parents in the memory behind each block. A parent owns some of the cells.")
    cells: int = option(48, least=1, help="Cells of all parents of a block together. Each has a key and a value.")
    selected_parents: int = option(8, least=1, help="Parents whose cells a token reads.")
    cell_temperature: float = option(
        1.6, above=0, help="Divisor of the cells' logits. A higher value mixes the cells of a parent more evenly."
    )

    def __post_init__(self) -> None:
        check(self)
        if self.cells % self.parents:
            raise FeatherbackError(
                f"{self.cells} cells cannot be shared evenly by {self.parents} parents. Make "
                f"{arguments('cells')} a multiple of {arguments('parents')}, such as {3 * self.parents}."
            )
        if self.selected_parents > self.parents:
            raise FeatherbackError(
                f"A token cannot select {self.selected_parents} of {self.parents} parents. Lower "
                f"{arguments('selected_parents')} to at most {self.parents}."
            )

    @property
    def own(self) -> int:
        """c, the cells of one parent."""
        return self.cells // self.parents


class Memory(NamedTuple):
    """The values of one block's memory, and the arrays that their gradients are added to (None: not wanted)."""

    layer: int
    parents: Array  # E (P, D)
    keys: Array  # K (P c, D)
    values: Array  # V (P c, D)
    d_parents: Array | None
    d_keys: Array | None
    d_values: Array | None


class Tile(NamedTuple):
    """Some tokens of one parent."""

    parent: int
    cells: slice  # rows of K and V
    entries: slice  # of the routing
    rows: NDArray[np.int32]  # tokens


class SparseMemory(Branch):
    """The memory behind a block of this width."""

    def __init__(self, options: SpartanOptions, width: int) -> None:
        self.options, self.width = options, width
        self.gating = Gating(experts=options.parents, used=options.selected_parents)
        self.projections, self.vectors = {}, {}
        self.own = {MEMORY: (width, width)}
        self.input, self.output = "memory in", "memory out"
        self.intermediates = {
            "memory out": Intermediate(width),
            SELECTED: Intermediate(options.selected_parents, ("float32",), always=True),
        }
        self.bundles = []

    def forward(self, ctx: Context, x: Array, w: BlockWeights, carry: None = None, kept: Kept = NOTHING) -> KeptState:
        """Return a state without arrays: `add_output` computes the memory, parent by parent."""
        return KeptState(kept, again=False)

    def recompute(self, ctx: Context, x: Array, w: BlockWeights, carry: None = None, kept: Kept = NOTHING) -> KeptState:
        """Return the state. Nothing is computed here, except for MeBP (`ctx.autodiff`), which holds the output."""
        state = KeptState(kept, again=True)
        if ctx.autodiff:
            y = ctx.floats("y", *x.shape)
            ctx.ops.cast(x, y)
            self.add_output(ctx, state, y, w)
        return state

    def add_output(self, ctx: Context, state: KeptState, x: Array, w: BlockWeights) -> None:
        """x (T, D), float32, becomes y in place."""
        memory: Memory = w.adapters[MEMORY]
        with ctx.frame():
            n = self._normed(ctx, x)
            routing = self._route(ctx, self._scores(ctx, n, memory), memory, state)
            count = min(len(x), ROWS)
            read = ctx.operands("rows of a parent", count, self.width)
            out = ctx.floats("output of a parent", count, self.width)
            z, shares = (ctx.floats(name, count, self.options.own) for name in ("cells' logits", "cells' shares"))
            operand = ctx.operands("cells' shares, operand", count, self.options.own)
            for tile in self._tiles(ctx, routing):
                size = len(tile.rows)
                ctx.ops.take_rows(n, tile.rows, read[:size])
                self._logits(ctx, read[:size], memory, tile, z[:size])

                def share(tile: Tile = tile, size: int = size) -> None:
                    with ctx.backend.host(z[:size]) as logits, ctx.backend.host(shares[:size], write=True) as u:
                        np.multiply(_softmax(logits), routing.weights[tile.entries, None], out=u)

                ctx.backend.most(share, None)
                ctx.ops.cast(shares[:size], operand[:size])
                self._times(ctx, operand[:size], memory.values[tile.cells], out[:size])
                ctx.ops.add_rows(out[:size], tile.rows, x)

    def backward(
        self, ctx: Context, dy: Array, x: Array, state: KeptState, w: BlockWeights, carry: None = None
    ) -> None:
        """dy (T, D), float32, the gradient of y, becomes that of x in place. x (T, D) is float32 or an operand."""
        memory: Memory = w.adapters[MEMORY]
        with ctx.frame():
            n = self._normed(ctx, x)
            scores = self._scores(ctx, n, memory)
            routing = self._route(ctx, scores, memory, state)
            dn = ctx.floats("dn of the memory", *x.shape)
            ctx.ops.fill(dn, 0)
            self._cells_backward(ctx, dy, n, dn, memory, routing)
            self._parents_backward(ctx, scores, n, dn, memory, routing)
            ctx.ops.rms_norm_backward(dn, x, self._ones(ctx), EPS, dy, accumulate=True)

    def _cells_backward(
        self, ctx: Context, dy: Array, n: Array, dn: Array, memory: Memory, routing: Routing
    ) -> None:  # fmt: skip
        """Add to dn (T, D) what the cells pass back, and dK and dV. The routing receives dp of its entries."""
        count, own = min(len(dn), ROWS), self.options.own
        with ctx.frame():
            read, g = (ctx.operands(name, count, self.width) for name in ("rows of a parent", "rows of dy"))
            dx = ctx.floats("gradient of the rows", count, self.width)
            z, c, u, dz = (ctx.floats(name, count, own) for name in ("cells' logits", "V g", "cells' shares", "dz"))
            used, slopes = (ctx.operands(name, count, own) for name in ("cells' shares, operand", "dz, operand"))
            for tile in self._tiles(ctx, routing):
                size = len(tile.rows)
                ctx.ops.take_rows(n, tile.rows, read[:size])
                ctx.ops.take_rows(dy, tile.rows, g[:size])
                self._logits(ctx, read[:size], memory, tile, z[:size])
                ctx.ops.lora_in(g[:size], memory.values[tile.cells], c[:size], 1.0)
                ctx.backend.most(lambda: self._slopes(ctx, routing, tile, z, c, u, dz), None)  # noqa: B023
                ctx.ops.cast(u[:size], used[:size])
                ctx.ops.cast(dz[:size], slopes[:size])
                if memory.d_values is not None:
                    ctx.ops.lora_gradient(used[:size], g[:size], memory.d_values[tile.cells], accumulate=True)
                if memory.d_keys is not None:
                    ctx.ops.lora_gradient(slopes[:size], read[:size], memory.d_keys[tile.cells], accumulate=True)
                self._times(ctx, slopes[:size], memory.keys[tile.cells], dx[:size])
                ctx.ops.add_rows(dx[:size], tile.rows, dn)

    def _slopes(self, ctx: Context, routing: Routing, tile: Tile, z: Array, c: Array, u: Array, dz: Array) -> None:
        """u = p a and dz (n, c) of a tile, from z and c = V g (n, c); dp of its entries goes to the routing."""
        size = len(tile.rows)
        with (
            ctx.backend.host(z[:size]) as logits,
            ctx.backend.host(c[:size]) as through,
            ctx.backend.host(u[:size], write=True) as shares,
            ctx.backend.host(dz[:size], write=True) as slopes,
        ):
            a, p = _softmax(logits), routing.weights[tile.entries]
            dp = (a * through).sum(axis=1)  # a . c, so a . da = p dp
            routing.gradients[tile.entries] = dp
            np.multiply(a, p[:, None], out=shares)
            np.multiply(shares, through - dp[:, None], out=slopes)
            slopes /= np.float32(self.options.cell_temperature)

    def _parents_backward(
        self, ctx: Context, scores: Array, n: Array, dn: Array, memory: Memory, routing: Routing
    ) -> None:  # fmt: skip
        """dn (T, D) += dl E and dE += dl^T n, with dl (T, P) from the gradients of p."""
        with ctx.frame():
            dl, operand = ctx.floats("dl", *scores.shape), ctx.operands("dl, operand", *scores.shape)
            self.gating.scores_backward(ctx, scores, routing, dl)
            ctx.ops.cast(dl, operand)
            if memory.d_parents is not None:
                ctx.ops.lora_gradient(operand, n, memory.d_parents, accumulate=True)
            self._times(ctx, operand, memory.parents, dn, accumulate=True)

    def _route(self, ctx: Context, scores: Array, memory: Memory, state: KeptState) -> Routing:
        """Select the parents of each token by l (T, P), or read the kept selection; compute p."""
        place = state.kept.rows(SELECTED, ctx.span)
        return self.gating.route(ctx, scores, place, state.again, f"The memory of layer {memory.layer}")

    def _tiles(self, ctx: Context, routing: Routing) -> Iterator[Tile]:
        """Yield the tokens of each parent, at most ROWS at a time."""
        own = self.options.own
        for group in ctx.each(routing.groups):
            for first, last in ctx.tiles(group.last, ROWS, group.first):
                cells = slice(group.expert * own, (group.expert + 1) * own)
                yield Tile(group.expert, cells, slice(first, last), routing.rows[first:last])

    def _logits(self, ctx: Context, read: Array, memory: Memory, tile: Tile, z: Array) -> None:
        """z (n, c) = n K_e^T / temperature, from the rows (n, D) of a tile."""
        ctx.ops.lora_in(read, memory.keys[tile.cells], z, 1 / self.options.cell_temperature)

    def _scores(self, ctx: Context, n: Array, memory: Memory) -> Array:
        """Return l (T, P) = n E^T, float32, in the current frame."""
        scores = ctx.floats("parents' logits", len(n), self.gating.experts)
        ctx.ops.lora_in(n, memory.parents, scores, 1.0)
        return scores

    def _times(self, ctx: Context, x: Array, matrix: Array, out: Array, *, accumulate: bool = False) -> None:
        """out (n, D) (+)= x (n, m), an operand, times a matrix (m, D)."""
        ctx.ops.linear_backward(x, ctx.ops.dense(matrix), out, accumulate=accumulate)

    def _normed(self, ctx: Context, x: Array) -> Array:
        """Return n (T, D) = x / rms(x), an operand of the current frame."""
        n = ctx.operands("n of the memory", *x.shape)
        ctx.ops.rms_norm(x, self._ones(ctx), EPS, n)
        return n

    def _ones(self, ctx: Context) -> Array:
        """Return the weight (D,) of a norm that has none."""
        ones = ctx.floats("ones", self.width)
        ctx.ops.fill(ones, 1)
        return ones


def _softmax(z: Float32) -> Float32:
    a: Float32 = np.exp(z - z.max(axis=1, keepdims=True))
    a /= a.sum(axis=1, keepdims=True)
    return a


@dataclass(frozen=True, kw_only=True)
class SpartanKind(SpartanOptions, Kind):
    """SPARTAN. E and K are drawn so that logits of a normed input have variance 1; V is zero, which changes nothing."""

    title: ClassVar[str] = "SPARTAN"
    is_branch: ClassVar[bool] = True
    settings: ClassVar[type] = SpartanOptions
    rate_width: ClassVar[int | None] = 576

    @property
    def growth(self) -> float:
        return 0.2

    @property
    def briefly(self) -> str:
        return f"{self.title}, {self.cells} cells"

    def describe(self) -> str:
        return f"{self.cells} cells of {self.parents} parents, of which a token reads {self.selected_parents}"

    def options(self) -> dict[str, Any]:
        own = {entry.name: getattr(self, entry.name) for entry in fields(SpartanOptions)}
        return {"adapter": "spartan", "rank": None, "alpha": None, "rslora": False, "dora": False, **own}

    def branch(self, width: int) -> SparseMemory:
        return SparseMemory(self, width)

    def parts(self, target: str, shape: Shape) -> dict[str, Part]:
        rows = {"parents": self.parents, "keys": self.cells, "values": self.cells}
        return {name: Part(name, (count, shape[1]), (count, shape[1])) for name, count in rows.items()}

    def initialise(self, values: Values, fixed: Float32 | None, key: Key) -> None:
        for number, name in enumerate(("parents", "keys")):
            drawn = values[name]
            drawn[...] = (2 * uniform((*key, number), drawn.size) - 1).reshape(drawn.shape) * (
                3 / drawn.shape[1]
            ) ** 0.5

    def attach(self, setup: Setup) -> Memory:
        gradients: Mapping[str, Any] = setup.gradients
        names = ("parents", "keys", "values")
        return Memory(setup.layer, *(setup.values[name] for name in names), *(gradients.get(name) for name in names))


KIND = SpartanKind
