"""A batch on its way through the blocks, and back: whole or in chunks, a layer's weights at hand while it is in it.

`Sweep` is the way forward. `RoundTrip` adds the way back: checkpoints of the blocks' inputs, intermediates that are
kept, gradients handed to where they belong. How a block is differentiated is the method's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from featherback.core.noise import Draw
from featherback.data.batch import Batch
from featherback.data.prefixes import share_prefixes
from featherback.engine.backend.protocol import Array
from featherback.engine.formats.matrix import Matrix
from featherback.errors import FeatherbackError
from featherback.methods.assembly import Adapter, Parameters, layer_weights
from featherback.methods.memory.plan import Plan
from featherback.methods.memory.resources import Resources, TokenStore
from featherback.methods.sinks import GradientSink, WeightSink
from featherback.nn.block import Block
from featherback.nn.context import Context, Moves
from featherback.nn.encodings import ENCODINGS
from featherback.nn.kept import NOTHING, Kept
from featherback.nn.linear import BlockWeights, LayerSink
from featherback.nn.loss import Head
from featherback.nn.moved import Spot, table_rows
from featherback.nn.objectives.base import Objective, PerTarget
from featherback.nn.roles import EMBEDDING
from featherback.nn.rope import Rotary
from featherback.nn.span import Span, spans

STREAM = "residual stream, then dy"


class ModelLike(Protocol):
    """The part of a model that methods work on: `models.Model`, or its shapes alone."""

    @property
    def blocks(self) -> Sequence[Block]: ...
    @property
    def rotaries(self) -> tuple[Rotary, ...]: ...
    @property
    def head(self) -> Head: ...
    @property
    def embed_tokens(self) -> Matrix: ...
    @property
    def embedding_scale(self) -> float: ...


@contextmanager
def begin(
    model: ModelLike,
    adapter: Adapter | None,
    plan: Plan,
    resources: Resources,
    batch: Batch,
    draw: Draw | None,
    moves: Moves | None,
) -> Iterator[Sweep]:
    """A batch before the first block. FeatherbackError if it has more tokens than the plan."""
    if batch.n_tokens > plan.tokens:
        raise FeatherbackError(f"The batch has {batch.n_tokens} tokens; the plan allows {plan.tokens}.")
    longest = int(np.diff(batch.cu_seqlens).max())
    if draw is None and all(branch.shares_prefixes(longest) for block in model.blocks for branch in block.branches):
        batch = share_prefixes(batch)
    parts = list(spans(batch.cu_seqlens, batch.positions, plan.chunk_tokens, batch.prefix))
    ctx = Context(
        resources.backend,
        resources.scratch,
        plan.compute,
        parts[0],
        plan.mlp_tile,
        plan.vocab_tile,
        plan.keep_h and len(parts) == 1,
        release=resources.weights.release,
        draw=draw,
        moves=moves,
    )
    with ctx.at(parts[0], model.rotaries if len(parts) == 1 else ()) as ctx:
        yield Sweep(ctx, batch, parts, model, adapter, plan, resources)


@dataclass(frozen=True)
class Sweep:
    """The residual stream x (T, D) of a batch, later its gradient: one array, or chunks of it that wait in a store."""

    ctx: Context
    batch: Batch
    spans: Sequence[Span]
    model: ModelLike
    adapter: Adapter | None
    plan: Plan
    resources: Resources
    _whole: list[Array] = field(default_factory=list)

    def embed(self) -> None:
        """The residual stream before the first block."""
        tokens, width = self.batch.tokens, self.model.embed_tokens.cols
        if len(self.spans) == 1:
            self._whole.append(self.ctx.floats(STREAM, len(tokens), width))
        for span in self.spans:
            with self.rows(span, load=False) as (ctx, x):
                self.resources.weights.gather(self.model.embed_tokens, tokens[span.own], x)
                table_rows(ctx, tokens[span.own], Spot(EMBEDDING), x)
                if self.model.embedding_scale != 1:
                    ctx.ops.scale(x, self.model.embedding_scale)

    def forward(
        self,
        index: int,
        parameters: Parameters | None = None,
        kept: Kept = NOTHING,
        save_input: Callable[[Context, Array], None] | None = None,
    ) -> None:
        """The residual stream goes through a block, with other values of the adapter if given.

        What `kept` has room for is kept; `save_input` gets each span of the block's input before it changes.
        """
        block = self.model.blocks[index]
        with self.layer(index, index + 1, parameters=parameters, prepared=kept.prepared) as w:
            carry = block.carry(self.ctx, self.batch.n_tokens, kept)
            for span in self.spans:
                with self.rows(span, block.rotaries) as (ctx, x):
                    if save_input is not None:
                        save_input(ctx, x)
                    block.forward(ctx, x, w, carry, kept)

    def loss(self, objective: Objective) -> float:
        """The summed loss (nats) of the residual stream after the last block."""
        total, found = 0.0, []
        for span in self.spans:
            targets = self.batch.supervised(span.own)
            with self.rows(span, save=False) as (ctx, x):
                found.append(
                    self.model.head.log_probs(
                        ctx, x, targets, self.resources.weights, over_vocabulary=objective.over_vocabulary
                    )
                )
            if not objective.whole_batch:
                total += objective(targets, found.pop())[0]
        return objective(self.batch.supervised(), PerTarget.joined(found))[0] if found else total

    def layer(self, index: int, then: int, **adapted: Any) -> AbstractContextManager[BlockWeights]:
        """A layer's weights with the adapter's factors; `then`: the layer that comes next. As `layer_weights`."""
        return layer_weights(self.ctx, self.resources.weights, index, then, self.adapter, **adapted)

    @contextmanager
    def rows(
        self, span: Span, rotaries: tuple[Rotary, ...] = (), *, load: bool = True, save: bool = True
    ) -> Iterator[tuple[Context, Array]]:
        """A span's rows (T, D) of the residual stream, to be changed in place, and a context for them.

        `load` False: they are about to be written for the first time. `save` False: they are only read.
        """
        if self._whole:
            yield self.ctx, self._whole[0]
            return
        store = self.resources.residual
        assert store is not None
        with self.ctx.at(span, rotaries) as ctx:
            x = ctx.floats(STREAM, span.tokens, self.model.embed_tokens.cols)
            if load:
                store.load(0, x, span.start)
            yield ctx, x
            if save:
                store.save(0, x, span.start, x)


class Layer(NamedTuple):
    """A block on the way back, and what its spans share."""

    block: Block
    w: BlockWeights  # with places for the gradients of what is trained
    carry: Sequence[Any]
    kept: Kept


BackwardBlock = Callable[[Context, Layer, Array, Array], None]
"""(ctx, layer, dy, x): dy (T, D), the gradient of the block's output, becomes that of its input x (T, D), in place."""


@dataclass(frozen=True)
class RoundTrip:
    """A sweep that comes back through some of its blocks."""

    sweep: Sweep
    back: Sequence[int]  # those blocks, in the order in which it comes back through them
    sink: Destination
    _kept: dict[int, Kept] = field(default_factory=dict)

    def forward(self, index: int) -> None:
        """The residual stream goes through a block. If it comes back there, the block's input is checkpointed, and what
        the plan keeps is kept."""
        if index not in self.back:
            self.sweep.forward(index)
            return
        kept = self._kept[index] = self._room(self.sweep.model.blocks[index], place=len(self._kept))

        def checkpoint(ctx: Context, x: Array) -> None:
            with ctx.frame():
                scratch = ctx.operands("checkpoint on its way out", *x.shape)
                self._checkpoints.save(kept.place, x, ctx.span.start, scratch)

        self.sweep.forward(index, kept=kept, save_input=checkpoint)

    def backward(self, index: int, block_backward: BackwardBlock) -> None:
        """The gradient of a block's output becomes that of its input; those of what is trained go to the sink.

        Where tokens pass in chunks, the carries of all are there first, and the last chunk goes back first
        (`nn/branch.py`).
        """
        sweep, kept = self.sweep, self._kept[index]
        block, ctx, tokens = sweep.model.blocks[index], sweep.ctx, sweep.batch.n_tokens
        then = ([*self.back, -1])[self.back.index(index) + 1]
        with (
            ctx.frame(),
            self.sink.layer(ctx, index) as places,
            sweep.layer(index, then, prepared=kept.prepared, **places) as w,
        ):
            carry = block.carry(ctx, tokens, kept, backward=True)
            layer = Layer(block, w, carry, kept)
            if len(sweep.spans) > 1:
                for span in sweep.spans:
                    with ctx.at(span, block.rotaries) as part:
                        block.rebuild(part, partial(self._input, part, kept), w, carry, kept)
            for span in reversed(sweep.spans):
                with sweep.rows(span, block.rotaries) as (part, dy), part.frame():
                    block_backward(part, layer, dy, self._input(part, kept))

    def finish(self) -> None:
        """What lies before the first block has its gradient, too."""
        self.sink.embedding(self.sweep)

    def _input(self, ctx: Context, kept: Kept) -> Array:
        """The checkpoint of a block's input (T, D), an operand."""
        x = ctx.operands("checkpoint", ctx.tokens, self.sweep.model.embed_tokens.cols)
        self._checkpoints.load(kept.place, x, ctx.span.start)
        return x

    @property
    def _checkpoints(self) -> TokenStore:
        """The inputs of the blocks, a slot per block that the gradient comes back to."""
        assert self.sweep.resources.checkpoints is not None
        return self.sweep.resources.checkpoints

    def _room(self, block: Block, place: int) -> Kept:
        """Room for the intermediates that the plan keeps of a block; `place`: how many before it are returned to."""
        sweep = self.sweep
        take, operand = sweep.resources.kept.take, sweep.ctx.operand
        names = [name for name in sweep.plan.kept(place) if name in block.intermediates]
        chosen = {name: block.intermediates[name] for name in names}
        encodings = {name: each for name, each in sweep.plan.encodings.items() if name in chosen}
        arrays = {
            name: take(name, *about.placed(sweep.batch.n_tokens, operand, encodings.get(name)))
            for name, about in chosen.items()
        }
        size = 0 if sweep.adapter is None else sweep.adapter.layout.prepared.size
        prepared = take("what the adapter prepares of a layer", (size,)) if size else None
        by_head = [name for name, about in chosen.items() if about.by_head]
        return Kept(arrays, by_head, prepared, place, {name: ENCODINGS[each] for name, each in encodings.items()})


@contextmanager
def round_trip(sweep: Sweep, back: Sequence[int], sink: GradientSink | WeightSink) -> Iterator[RoundTrip]:
    """`sweep` with a way back through the blocks `back`; gradients go to `sink`, what is kept stays until the end."""
    trained: Destination = OwnWeights(cast(WeightSink, sink))
    if sweep.adapter is not None:
        trained = AdapterOnly(cast(GradientSink, sink), sweep.adapter.layout.size)
    with sweep.resources.kept.frame():
        yield RoundTrip(sweep, back, trained)


class Destination(Protocol):
    """Where a round trip leaves the gradients of what is trained."""

    @property
    def head(self) -> WeightSink | None:
        """What trains the head."""

    def layer(self, ctx: Context, index: int) -> AbstractContextManager[dict[str, Any]]:
        """For `layer_weights`: where gradients of a layer are to go; after, they are the sink's."""

    def embedding(self, sweep: Sweep) -> None:
        """The residual stream holds the gradient before the first block."""


@dataclass(frozen=True)
class AdapterOnly:
    """An adapter's gradients, a flat vector per layer."""

    sink: GradientSink
    size: int
    head: None = None

    @contextmanager
    def layer(self, ctx: Context, index: int) -> Iterator[dict[str, Array]]:
        with self.sink.gather(index, ctx.floats("adapter's gradients of a layer", self.size), ctx) as collected:
            yield {"gradients": collected}

    def embedding(self, sweep: Sweep) -> None:
        """It is not adapted."""


@dataclass(frozen=True)
class OwnWeights:
    """The gradients of the model's own weights, one weight at a time."""

    head: WeightSink

    def layer(self, ctx: Context, index: int) -> AbstractContextManager[dict[str, LayerSink]]:
        return nullcontext({"sink": self.head.layer(index)})

    def embedding(self, sweep: Sweep) -> None:
        with sweep.rows(sweep.spans[0], save=False) as (ctx, dx):
            self.head.embedding(ctx, sweep.batch.tokens, dx)
