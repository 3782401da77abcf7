"""Run a batch through the blocks, forward and backward, whole or in chunks of tokens.

`Sweep` is the forward pass. It holds the residual stream and provides a block's weights while the batch is in it.
`RoundTrip` adds the backward pass: checkpoints of the blocks' inputs, kept intermediates, and the sink that receives
the gradients. The method supplies the function that differentiates a block.

There are three kinds of memory: scratch (`ctx.floats`, `ctx.operands`), freed by frames; kept intermediates
(`resources.kept`), freed when the round trip ends; and stores (`resources.checkpoints`, `resources.residual`), which
live as long as the method and are overwritten by the next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from featherback.core.noise import Draw, Key
from featherback.data.batch import Batch
from featherback.data.prefixes import share_prefixes
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array, Int32, Operations, TokenStore
from featherback.engine.formats.matrix import Matrix
from featherback.errors import FeatherbackError
from featherback.methods.assembly import Adapter, Parameters, blocks_of, layer_weights
from featherback.methods.entry import EntryStates, StatesOf
from featherback.methods.memory.plan import Plan
from featherback.methods.memory.resources import Resources
from featherback.nn.block import Block
from featherback.nn.context import Context, Perturbations
from featherback.nn.encodings import ENCODINGS
from featherback.nn.kept import NOTHING, Kept
from featherback.nn.linear import BlockWeights, LayerSink
from featherback.nn.loss import Head, HeadSink
from featherback.nn.perturbed import WeightPart, table_rows
from featherback.nn.rope import Rotary
from featherback.nn.slots import EMBEDDING
from featherback.nn.span import Span, spans


class GradientSink(Protocol):
    """Receives the gradients of an adapter. `engine.host.paged.PagedArray` is one: it sums them over batches."""

    def gather(self, layer: int, room: Array, on: Device) -> AbstractContextManager[Array]:
        """Provide `room` (size,) with the layer's sums so far. Add gradients to it; at the end the sink stores it."""


class WeightSink(HeadSink, Protocol):
    """Receives the gradients of the model's own weights, one by one. `methods.whole.gradients` reads them in tiles."""

    def layer(self, index: int) -> LayerSink:
        """Return the sink of one layer."""

    def perturbation(self, ops: Operations, key: Key, factor: float) -> Perturbations:
        """Return the perturbation `factor` z of all trained weights. z ~ N(0, I) depends only on the key."""

    def along(self, ctx: Context, slopes: Sequence[tuple[Key, float]]) -> None:
        """Use the sum of slope z over the directions (key, slope) as the gradient of all weights."""

    def embedding(self, ctx: Context, ids: Int32, dx: Array) -> None:
        """Receive dx (T, D), float32, the gradient of the embedding's rows `ids` (T,). This is the last call."""


STREAM = "residual stream, then dy"


class ModelLike(Protocol):
    """The parts of a model that methods use. Implemented by `models.Model`, and by its shapes without weights."""

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
    perturbations: Perturbations | None,
    states: EntryStates | None = None,
) -> Iterator[Sweep]:
    """Provide a sweep of `batch`, positioned before the first block. Its scratch memory is freed at the end.

    `draw`: random numbers for the adapter; None if it needs none. `states`: the states that enter the lowest trained
    block, kept on disk. If those of the batch are not there yet, they are computed and stored before. Raises
    FeatherbackError if the batch has more tokens than the plan allows.
    """
    if batch.n_tokens > plan.tokens:
        raise FeatherbackError(
            f"The batch has {batch.n_tokens} tokens, but the plan allows at most {plan.tokens}. "
            "Use a smaller batch, or make a plan for more tokens."
        )
    blocks = blocks_of(model, adapter)
    # Without blocks, as when a head alone is counted, there is nothing to share.
    shares = len(blocks) > 0 and all(
        branch.shares_prefixes(batch.longest) for block in blocks for branch in block.branches
    )
    if batch.prefix is not None and not shares:
        raise FeatherbackError(
            "The batch has shared prompts, which the model does not support. Prepare the data again."
        )
    provided = partial(_sweep, model, adapter, plan, resources, draw, perturbations)
    stored = None if states is None else states.of(batch, _spans(batch, plan))
    if stored is not None and not stored.are_stored():
        with provided(batch) as below:
            below.enter()
            if not below.save(stored):
                stored = None
    # Equal prefixes have equal values only if nothing random is added: random numbers differ from token to token.
    if batch.prefix is None and draw is None and shares:
        batch = share_prefixes(batch)
    with provided(batch, None if stored is None else stored.selected(batch)) as sweep:
        yield sweep


def _spans(batch: Batch, plan: Plan) -> list[Span]:
    """Return the spans in which a batch passes the blocks."""
    return list(spans(batch.cu_seqlens, batch.positions, plan.chunk_tokens, batch.prefix))


@contextmanager
def _sweep(
    model: ModelLike,
    adapter: Adapter | None,
    plan: Plan,
    resources: Resources,
    draw: Draw | None,
    perturbations: Perturbations | None,
    batch: Batch,
    stored: StatesOf | None = None,
) -> Iterator[Sweep]:
    """Provide a sweep of `batch` as it is. `stored`: its states before the lowest trained block."""
    parts = _spans(batch, plan)
    ctx = Context(
        resources.backend,
        resources.scratch,
        plan.compute,
        parts[0],
        plan.mlp_tile,
        plan.vocab_tile,
        plan.keep_h and len(parts) == 1,
        release=resources.weights.release,
        release_expert=resources.weights.release_expert,
        expect=resources.weights.expect,
        draw=draw,
        perturbations=perturbations,
        noted=resources.noted,
    )
    # A whole batch uses one set of rotary tables for all blocks. For chunks, `rows` makes them.
    with ctx.at(parts[0], model.rotaries if len(parts) == 1 else ()) as ctx:
        yield Sweep(ctx, batch, parts, model, adapter, plan, resources, stored)


@dataclass(frozen=True)
class Sweep:
    """The residual stream x (T, D), float32, of a batch. In the backward pass the same memory holds its gradient.

    For a whole batch it is one scratch array, from `embed` to the end of `begin`. For chunks, the rows are stored in
    `resources.residual`, and `rows` loads one chunk at a time into scratch memory.
    """

    ctx: Context
    batch: Batch
    spans: Sequence[Span]
    model: ModelLike
    adapter: Adapter | None
    plan: Plan
    resources: Resources
    _stored: StatesOf | None = None  # the rows that enter the lowest trained block, if they are kept on disk
    _whole: list[Array] = field(default_factory=list)  # the array of a whole batch, once `embed` has allocated it

    @property
    def blocks(self) -> Sequence[Block]:
        """The blocks, with the adapter's own branches if it has any."""
        return blocks_of(self.model, self.adapter)

    @property
    def first(self) -> int:
        """The lowest trained block."""
        return 0 if self.adapter is None else self.adapter.layout.lowest

    def enter(self) -> Iterable[int]:
        """Fill the residual stream with the input of the lowest trained block; return that block and those after it.

        The rows are read from the disk if they are kept there. Otherwise the embeddings pass the blocks below.
        """
        if self._stored is None:
            self.embed()
            for below in range(self.first):
                self.forward(below)
        else:
            self._begin_stream()
            for span in self.spans:
                with self.rows(span, load=False) as (ctx, x):
                    self._stored.load(ctx, x, span)
        return range(self.first, len(self.blocks))

    def save(self, stored: StatesOf) -> bool:
        """Store the residual stream as the input of the lowest trained block. Returns False if the disk is full."""
        for span in self.spans:
            with self.rows(span, save=False) as (ctx, x):
                if not stored.save(ctx, x, span):
                    return False
        return True

    def _begin_stream(self) -> None:
        """Allocate the residual stream of a whole batch."""
        if len(self.spans) == 1:
            self._whole.append(self.ctx.floats(STREAM, self.batch.n_tokens, self.model.embed_tokens.cols))

    def embed(self) -> None:
        """Fill the residual stream with the embeddings of the batch's tokens."""
        tokens = self.batch.tokens
        self._begin_stream()
        for span in self.spans:
            with self.rows(span, load=False) as (ctx, x):
                self.resources.weights.gather(self.model.embed_tokens, tokens[span.own], x)
                table_rows(ctx, tokens[span.own], WeightPart(EMBEDDING), x)
                if self.model.embedding_scale != 1:
                    ctx.ops.scale(x, self.model.embedding_scale)

    def forward(
        self,
        index: int,
        parameters: Parameters | None = None,
        kept: Kept = NOTHING,
        save_input: Callable[[Context, Array], None] | None = None,
    ) -> None:
        """Run the residual stream through a block, in place. `parameters`: replace the adapter's own values.

        Intermediates are written to the arrays of `kept`. `save_input` receives each span of the block's input x (T, D)
        before x changes. The block's weights and carry are freed at the end.
        """
        block = self.blocks[index]
        with self.layer(index, index + 1, parameters=parameters, prepared=kept.prepared) as w:
            carry = block.carry(self.ctx, self.batch.n_tokens, kept)
            for span in self.spans:
                with self.rows(span, block.rotaries) as (ctx, x):
                    if save_input is not None:
                        save_input(ctx, x)
                    block.forward(ctx, x, w, carry, kept)

    def likely(self, count: int, temperature: float, stop: int | None) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return `Head.likely` of all supervised rows, in the order of their tokens before prefixes were shared."""
        found, head, source = [], self.model.head, self.resources.weights
        for span in self.spans:
            with self.rows(span, save=False) as (ctx, x):
                targets = self.batch.supervised(span.own)
                found.append(head.likely(ctx, x, targets, source, count, temperature, stop))
        ids, logp = map(np.concatenate, zip(*found))
        if self.batch.rows is not None:
            order = np.argsort(self.batch.rows[self.batch.supervised().rows])
            ids, logp = ids[order], logp[order]
        return ids, logp

    def layer(self, index: int, then: int, **adapted: Any) -> AbstractContextManager[BlockWeights]:
        """Provide a layer's weights with its adapter, as `layer_weights` does. `then`: the layer to read ahead."""
        return layer_weights(self.ctx, self.resources.weights, index, then, self.adapter, **adapted)

    @contextmanager
    def rows(
        self, span: Span, rotaries: tuple[Rotary, ...] = (), *, load: bool = True, save: bool = True
    ) -> Iterator[tuple[Context, Array]]:
        """Provide a context for a span, and its rows (T, D) of the residual stream, for changing in place.

        For chunks, the rows are a scratch array that is loaded, saved and freed here. `load` False: the rows are new.
        `save` False: the rows are only read.
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
                store.save(0, x, span.start, x)  # x may be overwritten, because it is freed next


class Layer(NamedTuple):
    """A block in its backward pass, with everything that the spans of the batch share."""

    block: Block
    w: BlockWeights  # with arrays for its adapter's gradients, or with the sink of its own weights
    carry: Sequence[Any]  # per branch, for example k and v of attention
    kept: Kept  # the intermediates that the plan keeps


BackwardBlock = Callable[[Context, Layer, Array, Array], None]
"""(ctx, layer, dy, x): turns dy (T, D), the gradient of the block's output, into that of its input x (T, D), in place.

It is called once per span, beginning with the last span."""


@dataclass(frozen=True)
class RoundTrip:
    """A sweep with a backward pass through some of its blocks."""

    sweep: Sweep
    back: Sequence[int]  # the indices of those blocks, in the order of the backward pass
    sink: Destination
    _kept: dict[int, Kept] = field(default_factory=dict)  # by block, after its forward pass

    def forward(self, index: int) -> None:
        """Run the residual stream through a block.

        If the block has a backward pass, save its input as a checkpoint and keep the intermediates that the plan keeps.
        """
        if index not in self.back:
            self.sweep.forward(index)
            return
        kept = self._kept[index] = self._room(self.sweep.blocks[index], place=len(self._kept))

        def checkpoint(ctx: Context, x: Array) -> None:
            with ctx.frame():
                scratch = ctx.operands("checkpoint, to be saved", *x.shape)
                self._checkpoints.save(kept.place, x, ctx.span.start, scratch)

        self.sweep.forward(index, kept=kept, save_input=checkpoint)

    def backward(self, index: int, block_backward: BackwardBlock) -> None:
        """Turn the residual stream from dy of a block's output into dx of its input, and pass gradients to the sink.

        For chunks, `rebuild` first restores the carries as all chunks left them in the forward pass. Then the chunks
        are differentiated, beginning with the last (`nn/branch.py`).
        """
        sweep, kept = self.sweep, self._kept[index]
        block, ctx, tokens = sweep.blocks[index], sweep.ctx, sweep.batch.n_tokens
        then = ([*self.back, -1])[self.back.index(index) + 1]  # the block to read ahead; -1: none
        with (
            ctx.frame(),
            self.sink.layer(ctx, index) as destination,
            sweep.layer(index, then, prepared=kept.prepared, **destination) as w,
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
        """Pass the gradient of the first block's input to the sink, if the embedding is trained."""
        self.sink.embedding(self.sweep)

    def _input(self, ctx: Context, kept: Kept) -> Array:
        """Load the checkpoint of a block's input, x (T, D), as an operand of the current frame."""
        x = ctx.operands("checkpoint", ctx.tokens, self.sweep.model.embed_tokens.cols)
        self._checkpoints.load(kept.place, x, ctx.span.start)
        return x

    @property
    def _checkpoints(self) -> TokenStore:
        """The store of block inputs, with one slot (`Kept.place`) per block that has a backward pass."""
        assert self.sweep.resources.checkpoints is not None
        return self.sweep.resources.checkpoints

    def _room(self, block: Block, place: int) -> Kept:
        """Allocate arrays for the intermediates that the plan keeps of a block, until the round trip ends.

        `place`: the block's position among those with a backward pass. It is also the slot of its checkpoint.
        """
        sweep = self.sweep
        take, operand = sweep.resources.kept.take, sweep.ctx.operand
        planned = [name for name in sweep.plan.kept(place) if name in block.intermediates]
        names = [*planned, *(name for name, about in block.intermediates.items() if about.always)]
        chosen = {name: block.intermediates[name] for name in names}
        encodings = {name: each for name, each in sweep.plan.encodings.items() if name in chosen}
        arrays = {
            name: take(name, *about.placed(sweep.batch.n_tokens, operand, encodings.get(name)))
            for name, about in chosen.items()
        }
        size = 0 if sweep.adapter is None else sweep.adapter.layout.prepared.size
        prepared = take("adapter's prepared values of a layer", (size,)) if size else None
        by_head = [name for name, about in chosen.items() if about.by_head]
        return Kept(arrays, by_head, prepared, place, {name: ENCODINGS[each] for name, each in encodings.items()})


@contextmanager
def round_trip(sweep: Sweep, back: Sequence[int], sink: GradientSink | WeightSink) -> Iterator[RoundTrip]:
    """Add a backward pass through the blocks `back` to `sweep`. Gradients go to `sink`.

    Kept intermediates are freed at the end.
    """
    trained: Destination = OwnWeights(cast(WeightSink, sink))
    if sweep.adapter is not None:
        layout = sweep.adapter.layout
        trained = AdapterOnly(cast(GradientSink, sink), layout.size, layout.adapted)
    with sweep.resources.kept.frame():
        yield RoundTrip(sweep, back, trained)


class Destination(Protocol):
    """Receives the gradients of a round trip: an adapter's, or the model's own weights'."""

    @property
    def head(self) -> WeightSink | None:
        """The sink of the output head's gradient; None if the head is not trained."""

    def layer(self, ctx: Context, index: int) -> AbstractContextManager[dict[str, Any]]:
        """Provide arguments for `layer_weights` that direct a layer's gradients. At the end the sink stores them."""

    def embedding(self, sweep: Sweep) -> None:
        """Called when the residual stream contains the gradient of the first block's input."""


@dataclass(frozen=True)
class AdapterOnly:
    """An adapter's gradients: a flat vector (size,) per layer, in scratch memory while its layer is differentiated.

    `adapted`: the layers that the adapter is in. The sink hears of no others.
    """

    sink: GradientSink
    size: int
    adapted: tuple[int, ...]
    head: None = None

    @contextmanager
    def layer(self, ctx: Context, index: int) -> Iterator[dict[str, Array]]:
        if index not in self.adapted:
            yield {}
            return
        with self.sink.gather(index, ctx.floats("adapter's gradients of a layer", self.size), ctx) as collected:
            yield {"gradients": collected}

    def embedding(self, sweep: Sweep) -> None:
        """Do nothing: adapters do not change the embedding."""


@dataclass(frozen=True)
class OwnWeights:
    """The gradients of the model's own weights. The sink receives them one weight at a time."""

    head: WeightSink

    def layer(self, ctx: Context, index: int) -> AbstractContextManager[dict[str, LayerSink]]:
        return nullcontext({"sink": self.head.layer(index)})

    def embedding(self, sweep: Sweep) -> None:
        with sweep.rows(sweep.spans[0], save=False) as (ctx, dx):
            self.head.embedding(ctx, sweep.batch.tokens, dx)
