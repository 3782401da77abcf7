"""A batch passes through the blocks, forward and backward, whole or in chunks of tokens.

`Sweep` is the forward pass: it holds the residual stream, and has a block's weights ready while the batch is in it.
`RoundTrip` adds the backward pass: checkpoints of the blocks' inputs, kept intermediates, and the sink that takes the
gradients. A method passes in the function that differentiates a block.

Three memories: the scratch (`ctx.floats`, `ctx.operands`), which frames free; the kept intermediates
(`resources.kept`), freed when the round trip ends; the stores (`resources.checkpoints`, `resources.residual`), which
live as long as the method and are overwritten by the next batch.
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
    """The part of a model that methods work on: a `models.Model`, or its shapes without weights."""

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
    """A sweep of `batch`, before the first block. FeatherbackError if it has more tokens than the plan.

    `draw`: random numbers of the adapter, None if it draws none. Its scratch memory is freed at the end.
    """
    if batch.n_tokens > plan.tokens:
        raise FeatherbackError(f"The batch has {batch.n_tokens} tokens; the plan allows {plan.tokens}.")
    longest = int(np.diff(batch.cu_seqlens).max())
    # Sequences share prefixes only where equal tokens have equal values: random numbers differ from token to token.
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
    # A whole batch has one set of rotary tables for all blocks; `rows` makes those of a chunk.
    with ctx.at(parts[0], model.rotaries if len(parts) == 1 else ()) as ctx:
        yield Sweep(ctx, batch, parts, model, adapter, plan, resources)


@dataclass(frozen=True)
class Sweep:
    """The residual stream x (T, D), float32, of a batch; later its gradient, in the same memory.

    A whole batch: one scratch array, from `embed` to the end of `begin`. In chunks: the rows wait in
    `resources.residual`, and `rows` brings one chunk at a time to scratch.
    """

    ctx: Context
    batch: Batch
    spans: Sequence[Span]
    model: ModelLike
    adapter: Adapter | None
    plan: Plan
    resources: Resources
    _whole: list[Array] = field(default_factory=list)  # the one array of a whole batch, once `embed` took it

    def embed(self) -> None:
        """Fill the residual stream with the embeddings of the batch's tokens."""
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
        """Pass the residual stream through a block, in place. `parameters`: in place of the adapter's own values.

        Intermediates are written where `kept` has room. `save_input` gets each span of the block's input x (T, D)
        before x changes. The block's weights and carry are freed at the end.
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
        """A layer's weights and its adapter, as `layer_weights`. `then`: the layer to read ahead, if there is such."""
        return layer_weights(self.ctx, self.resources.weights, index, then, self.adapter, **adapted)

    @contextmanager
    def rows(
        self, span: Span, rotaries: tuple[Rotary, ...] = (), *, load: bool = True, save: bool = True
    ) -> Iterator[tuple[Context, Array]]:
        """A context for a span, and its rows (T, D) of the residual stream, to be changed in place.

        In chunks, the rows are a scratch array that is loaded, saved and freed here. `load` False: the rows are
        written for the first time. `save` False: they are only read.
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
                store.save(0, x, span.start, x)  # x may be overwritten: it is freed next


class Layer(NamedTuple):
    """A block in its backward pass, with what all spans of the batch share."""

    block: Block
    w: BlockWeights  # with the arrays that gradients of its adapter are added to, or the sink of its own weights
    carry: Sequence[Any]  # of each branch: k and v of attention, for example
    kept: Kept  # intermediates that the plan keeps


BackwardBlock = Callable[[Context, Layer, Array, Array], None]
"""(ctx, layer, dy, x): dy (T, D), the gradient of the block's output, becomes that of its input x (T, D), in place.

It is called once per span, the last span first."""


@dataclass(frozen=True)
class RoundTrip:
    """A sweep with a backward pass through some of its blocks."""

    sweep: Sweep
    back: Sequence[int]  # those blocks, in the order of the backward pass
    sink: Destination
    _kept: dict[int, Kept] = field(default_factory=dict)  # by block, from its forward pass on

    def forward(self, index: int) -> None:
        """Pass the residual stream through a block. If the block has a backward pass, save its input as a checkpoint,
        and keep the intermediates that the plan keeps."""
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
        """The residual stream, dy of a block's output, becomes dx of its input; the sink gets the block's gradients.

        In chunks: first `rebuild` fills the carries with what all chunks left there in the forward pass; then the
        chunks are differentiated, the last one first (`nn/branch.py`).
        """
        sweep, kept = self.sweep, self._kept[index]
        block, ctx, tokens = sweep.model.blocks[index], sweep.ctx, sweep.batch.n_tokens
        then = ([*self.back, -1])[self.back.index(index) + 1]  # the next block to read ahead; -1: none
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
                with sweep.rows(span, block.rotaries) as (part, dy), part.frame():  # the frame frees the checkpoint
                    block_backward(part, layer, dy, self._input(part, kept))

    def finish(self) -> None:
        """Hand the gradient of the first block's input to the sink, if the embedding is trained."""
        self.sink.embedding(self.sweep)

    def _input(self, ctx: Context, kept: Kept) -> Array:
        """The checkpoint of a block's input: x (T, D), an operand of the current frame."""
        x = ctx.operands("checkpoint", ctx.tokens, self.sweep.model.embed_tokens.cols)
        self._checkpoints.load(kept.place, x, ctx.span.start)
        return x

    @property
    def _checkpoints(self) -> TokenStore:
        """The inputs of the blocks that have a backward pass, a slot for each: `Kept.place`."""
        assert self.sweep.resources.checkpoints is not None
        return self.sweep.resources.checkpoints

    def _room(self, block: Block, place: int) -> Kept:
        """Room for the intermediates that the plan keeps of a block, until the round trip ends. `place`: the block's
        number among those with a backward pass, which is also the slot of its checkpoint."""
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
    """`sweep` with a backward pass through the blocks `back`. Gradients go to `sink`.

    Kept intermediates are freed at the end.
    """
    trained: Destination = OwnWeights(cast(WeightSink, sink))
    if sweep.adapter is not None:
        trained = AdapterOnly(cast(GradientSink, sink), sweep.adapter.layout.size)
    with sweep.resources.kept.frame():
        yield RoundTrip(sweep, back, trained)


class Destination(Protocol):
    """Where a round trip leaves gradients: of an adapter, or of the model's own weights."""

    @property
    def head(self) -> WeightSink | None:
        """The sink of the output head's gradient, if the head is trained."""

    def layer(self, ctx: Context, index: int) -> AbstractContextManager[dict[str, Any]]:
        """Arguments of `layer_weights` that say where a layer's gradients go. At the end they belong to the sink."""

    def embedding(self, sweep: Sweep) -> None:
        """Called when the residual stream holds the gradient of the first block's input."""


@dataclass(frozen=True)
class AdapterOnly:
    """An adapter's gradients, a flat vector (size,) per layer, in scratch while its layer is differentiated."""

    sink: GradientSink
    size: int
    head: None = None

    @contextmanager
    def layer(self, ctx: Context, index: int) -> Iterator[dict[str, Array]]:
        with self.sink.gather(index, ctx.floats("adapter's gradients of a layer", self.size), ctx) as collected:
            yield {"gradients": collected}

    def embedding(self, sweep: Sweep) -> None:
        """Nothing: adapters have no part at the embedding."""


@dataclass(frozen=True)
class OwnWeights:
    """The gradients of the model's own weights. The sink takes them one weight at a time."""

    head: WeightSink

    def layer(self, ctx: Context, index: int) -> AbstractContextManager[dict[str, LayerSink]]:
        return nullcontext({"sink": self.head.layer(index)})

    def embedding(self, sweep: Sweep) -> None:
        with sweep.rows(sweep.spans[0], save=False) as (ctx, dx):
            self.head.embedding(ctx, sweep.batch.tokens, dx)
