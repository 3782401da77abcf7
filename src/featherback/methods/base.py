"""What every gradient estimator shares: the forward sweep over the blocks, and the weights of the layer in use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from featherback.backend.protocol import Array
from featherback.data.batch import Batch
from featherback.data.prefixes import share_prefixes
from featherback.errors import FeatherbackError
from featherback.host.paged import PagedArray
from featherback.layers.block import Block
from featherback.layers.context import Context, Moves
from featherback.layers.dropout import Dropout
from featherback.layers.linear import BlockWeights, LayerSink
from featherback.layers.loss import Head
from featherback.layers.moved import Spot, table_rows
from featherback.layers.rope import Rotary
from featherback.layers.span import Span, spans
from featherback.memory.plan import Plan
from featherback.memory.resources import Resources
from featherback.methods.assembly import Adapter, Parameters, layer_weights
from featherback.methods.sinks import GradientSink, WeightSink
from featherback.options import check
from featherback.parameters.roles import EMBEDDING
from featherback.weights.matrix import Matrix


class Draw(NamedTuple):
    """Random numbers, those of stochastic methods and of dropout, depend on these alone."""

    seed: int = 0
    step: int = 0  # of the optimiser
    first_token: int = 0  # of the batch, among those of the step


FIRST = Draw()


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


@dataclass(frozen=True, kw_only=True)
class Options:
    """A method's options, each a field made by `options.option`; a subclass per method that has any.

    FeatherbackError, naming the option, for a value that an option cannot have.
    """

    def __post_init__(self) -> None:
        check(self)

    @property
    def precision(self) -> str | None:
        """That in which intermediates may be kept instead of computed again; None: they never are."""
        return None

    def settled(self, train: str) -> Options:
        """These with values for what was left open, which depend on what is trained: "lora" or "full"."""
        return self


class Method(ABC):
    """Estimates the gradient of an adapter; `adapter` None: that of the model's own weights, where a method can."""

    needs_checkpoints: ClassVar[bool] = True  # block inputs wait for a backward pass
    can_chunk: ClassVar[bool] = True  # tokens may pass the blocks in chunks
    can_train_weights: ClassVar[bool] = False  # without an adapter
    FULL_LEARNING_RATE: ClassVar[float | None] = None  # of whole models; None: that of the optimiser
    options_class: ClassVar[type[Options]] = Options

    def __init__(
        self,
        model: ModelLike,
        adapter: Adapter | None,
        plan: Plan,
        resources: Resources,
        options: Options | None = None,
    ) -> None:
        self.model, self.adapter, self.plan, self.resources = model, adapter, plan, resources
        self.options = options or self.options_class()

    @cached_property
    def states(self) -> dict[str, PagedArray]:
        """What it remembers from step to step, by names of its own; checkpoints hold it."""
        return {}

    @cached_property
    def slopes(self) -> list[float] | None:
        """The loss's slopes along the directions of a step, where they are to be logged; who logs them empties it."""
        return None

    @abstractmethod
    def gradients(self, batch: Batch, scale: float, sink: GradientSink | WeightSink, draw: Draw = FIRST) -> float:
        """The summed loss (nats) of `batch`; d(scale * loss)/d(parameters) goes to `sink`, a layer at a time.

        With an adapter it is a GradientSink, without one a WeightSink.
        """

    def loss(
        self, batch: Batch, parameters: Parameters | None = None, draw: Draw | None = None, moves: Moves | None = None
    ) -> float:
        """The summed loss (nats) over the batch's supervised tokens, with other values of the adapter if given.

        `draw`: with the dropout of training; None: without. `moves`: what is added to the model's own weights.
        """
        with self._begin(batch, draw, moves) as sweep:
            sweep.embed()
            for i in range(len(self.model.blocks)):
                self._pass(sweep, i, parameters)
            total = 0.0
            for span in sweep.spans:
                with sweep.rows(span, save=False) as (ctx, x):
                    total += self.model.head.loss(ctx, x, sweep.targets(span), self.resources.weights)
            return total

    def close(self) -> None:
        """Close files."""
        self.resources.close()
        for state in self.states.values():
            state.close()

    @classmethod
    def returned(cls, layers: int, options: Options) -> int:
        """Through how many of so many layers a step goes back; the others are only passed."""
        return layers

    def _pass(self, sweep: Sweep, index: int, parameters: Parameters | None = None) -> None:
        """The residual stream goes through a block to which nothing comes back."""
        block = self.model.blocks[index]
        with self._layer(sweep.ctx, index, index + 1, parameters) as w:
            kv = block.attention.store(sweep.ctx, sweep.batch.n_tokens)
            for span in sweep.spans:
                with sweep.rows(span, block.rotaries) as (ctx, x):
                    block.forward(ctx, x, w, kv)

    @contextmanager
    def _begin(self, batch: Batch, draw: Draw | None = None, moves: Moves | None = None) -> Iterator[Sweep]:
        """A batch on its way through the blocks; `draw`: in training."""
        plan = self.plan
        if batch.n_tokens > plan.tokens:
            raise FeatherbackError(f"The batch has {batch.n_tokens} tokens; the plan allows {plan.tokens}.")
        dropout = self._dropout(draw)
        if dropout is None and self._may_share(batch):
            batch = share_prefixes(batch)
        parts = list(spans(batch.cu_seqlens, batch.positions, plan.chunk_tokens, batch.prefix))
        ctx = Context(
            self.resources.backend,
            self.resources.scratch,
            plan.compute,
            parts[0],
            plan.mlp_tile,
            plan.vocab_tile,
            plan.keep_h and len(parts) == 1,
            release=self.resources.weights.release,
            dropout=dropout,
            moves=moves,
        )
        with ctx.at(parts[0], self.model.rotaries if len(parts) == 1 else ()) as ctx:
            yield Sweep(ctx, batch, parts, self.model, self.resources)

    def _may_share(self, batch: Batch) -> bool:
        """Whether a token's keys and values depend on the tokens before it alone, and all later ones see them."""
        longest = int(np.diff(batch.cu_seqlens).max())
        sees_all = all(not 0 < block.attention.window < longest for block in self.model.blocks)
        return sees_all and not any(rotary.stretches(longest) for rotary in self.model.rotaries)

    def _dropout(self, draw: Draw | None) -> Dropout | None:
        if draw is None or self.adapter is None or not self.adapter.dropout:
            return None
        return Dropout(self.adapter.dropout, *draw)

    @contextmanager
    def _layer(
        self,
        ctx: Context,
        index: int,
        then: int,
        parameters: Parameters | None = None,
        gradients: Array | None = None,
        columns: Array | None = None,
        sink: LayerSink | None = None,
    ) -> Iterator[BlockWeights]:
        """A layer's weights with the adapter's factors; `gradients` (size,) collects theirs; `sink`: the weights' own.

        `columns`: where DoRA's c stays for the backward pass, which finds it there.
        """
        source = self.resources.weights
        with layer_weights(ctx, source, index, then, self.adapter, parameters, gradients, columns, sink) as w:
            yield w


@dataclass(frozen=True)
class Sweep:
    """A batch on its way through the blocks: its residual stream, later the gradient of it, whole or in chunks."""

    ctx: Context
    batch: Batch
    spans: Sequence[Span]
    model: ModelLike
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

    def targets(self, span: Span) -> NDArray[np.int32]:
        """What a span's tokens must predict (T,)."""
        return self.batch.targets[span.own]


STREAM = "residual stream, then dy"
