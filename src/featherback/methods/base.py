"""What every gradient estimator shares: the forward sweep over the blocks, and the weights of the layer in use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from featherback.backend.protocol import Array, Backend
from featherback.data.batch import Batch
from featherback.errors import FeatherbackError
from featherback.layers.block import Block
from featherback.layers.context import Context
from featherback.layers.linear import BlockWeights, LoRAFactors, Pairs, Projection
from featherback.layers.loss import Head
from featherback.layers.rope import Rotary
from featherback.layers.span import Span, spans
from featherback.memory.plan import Plan
from featherback.memory.resources import Resources
from featherback.models.model import LayerWeights
from featherback.options import check
from featherback.parameters.sinks import GradientSink
from featherback.weights.matrix import Matrix


class Draw(NamedTuple):
    """A stochastic method's random numbers depend on these alone."""

    seed: int = 0
    step: int = 0  # of the optimiser


FIRST = Draw()
NO_PAIRS: Pairs = {}


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


class Parameters(Protocol):
    """Trained values, a flat vector per layer."""

    def read(self, layer: int, out: Array) -> None:
        """Copy a layer's values into `out` (size,)."""


class Layout(Protocol):
    """Where LoRA's factors lie in a layer's flat vector."""

    @property
    def size(self) -> int:
        """Values of a layer."""

    def view(self, layer: int, flat: Any) -> dict[str, tuple[Any, Any]]:
        """target -> (A, B^T)."""


class Adapter(Protocol):
    """The part of an adapter that methods work on: `adapters.LoRA`, or its shapes alone."""

    @property
    def layout(self) -> Layout: ...
    @property
    def parameters(self) -> Parameters: ...
    @property
    def scale(self) -> float:
        """What LoRA's product is multiplied by."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """A method's options, each a field made by `options.option`; a subclass per method that has any.

    FeatherbackError, naming the option, for a value that an option cannot have.
    """

    def __post_init__(self) -> None:
        check(self)


class Method(ABC):
    """Estimates the gradient of an adapter. `adapter` None: only `loss` works, on the base model."""

    needs_checkpoints: ClassVar[bool] = True  # block inputs wait for a backward pass
    can_keep: ClassVar[bool] = False  # intermediates may be kept instead of computed again
    can_chunk: ClassVar[bool] = True  # tokens may pass the blocks in chunks
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

    @abstractmethod
    def gradients(self, batch: Batch, scale: float, sink: GradientSink, draw: Draw = FIRST) -> float:
        """The summed loss (nats) of `batch`; d(scale * loss)/d(parameters) goes to `sink`, a layer at a time."""

    def loss(self, batch: Batch, parameters: Parameters | None = None) -> float:
        """The summed loss (nats) over the batch's supervised tokens, with other values of the adapter if given."""
        with self._begin(batch) as sweep:
            sweep.embed()
            for i, block in enumerate(self.model.blocks):
                with self._layer(sweep.ctx, i, i + 1, parameters) as w:
                    kv = block.attention.store(sweep.ctx, batch.n_tokens)
                    for span in sweep.spans:
                        with sweep.rows(span, block.rotaries) as (ctx, x):
                            block.forward(ctx, x, w, kv)
            total = 0.0
            for span in sweep.spans:
                with sweep.rows(span, save=False) as (ctx, x):
                    total += self.model.head.loss(ctx, x, sweep.targets(span), self.resources.weights)
            return total

    def close(self) -> None:
        """Close files."""
        self.resources.close()

    @contextmanager
    def _begin(self, batch: Batch) -> Iterator[Sweep]:
        """A batch on its way through the blocks."""
        plan = self.plan
        if batch.n_tokens > plan.tokens:
            raise FeatherbackError(f"The batch has {batch.n_tokens} tokens; the plan allows {plan.tokens}.")
        parts = list(spans(batch.cu_seqlens, batch.positions, plan.chunk_tokens))
        ctx = Context(
            self.resources.backend,
            self.resources.scratch,
            plan.compute,
            parts[0],
            plan.mlp_tile,
            plan.vocab_tile,
            plan.keep_h and len(parts) == 1,
            release=self.resources.weights.release,
        )
        with ctx.at(parts[0], self.model.rotaries if len(parts) == 1 else ()) as ctx:
            yield Sweep(ctx, batch, parts, self.model, self.resources)

    @contextmanager
    def _layer(
        self,
        ctx: Context,
        index: int,
        then: int,
        parameters: Parameters | None = None,
        gradients: Array | None = None,
    ) -> Iterator[BlockWeights]:
        """A layer's weights with the adapter's factors; `gradients` (size,) collects theirs."""
        with ctx.frame(), self.resources.weights.layer(index, then) as stored:
            if self.adapter is None:
                yield block_weights(ctx.backend, stored, NO_PAIRS)
                return
            layout = self.adapter.layout
            flat = ctx.floats("LoRA parameters of a layer", layout.size)
            (parameters or self.adapter.parameters).read(index, flat)
            collected = NO_PAIRS if gradients is None else layout.view(index, gradients)
            yield block_weights(ctx.backend, stored, layout.view(index, flat), self.adapter.scale, collected)


def block_weights(
    backend: Backend, stored: LayerWeights, pairs: Pairs, scale: float = 1.0, gradients: Pairs = NO_PAIRS
) -> BlockWeights:
    """A layer's stored weights as its block uses them; `pairs` and `gradients` only for the adapter's targets."""
    projections = {}
    for name, matrix in stored.matrices.items():
        collected = gradients.get(name, (None, None))
        lora = LoRAFactors(*pairs[name], scale, *collected) if name in pairs else None
        bias = stored.vectors.get(f"{name.removesuffix('_proj')}_bias")
        projections[name] = Projection(name, backend.matrix(matrix), bias, lora)
    return BlockWeights(projections, stored.vectors)


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
