"""What every gradient estimator shares: the forward sweep, the batch's context, the adapter's parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.adapters.lora import LoRA
from featherback.backprop import block, loss
from featherback.backprop.context import Context
from featherback.backprop.linear import Projection, projections
from featherback.data.batch import Batch
from featherback.errors import FeatherbackError
from featherback.host.checkpoints import Checkpoints
from featherback.host.paged import PagedArray
from featherback.host.pager import WeightPager, WeightSource
from featherback.host.stream import WeightStream
from featherback.memory.arena import Arena
from featherback.memory.ledger import Sizes, kept_block
from featherback.memory.plan import Plan
from featherback.models.model import LayerWeights, Model

Array = NDArray[Any]
Float32 = NDArray[np.float32]


class Method(ABC):
    """Estimates the gradient of an adapter. `adapter` None: only `loss` works, on the base model."""

    needs_checkpoints: ClassVar[bool] = True
    can_keep_blocks: ClassVar[bool] = False
    whole_head: ClassVar[bool] = False

    seed = 0
    step = 0
    """Of the optimiser: what a stochastic method draws depends on `seed` and `step` alone."""

    def __init__(self, model: Model, adapter: LoRA | None, plan: Plan, folder: Path | None = None) -> None:
        self.model, self.adapter, self.plan = model, adapter, plan
        config = model.config
        rank, targets = (adapter.rank, adapter.targets) if adapter else (0, ())
        self.arena = Arena(self.workspace(Sizes(config, plan, rank, targets)))
        self.weights = self._weight_source()
        self.operand = kernels.OPERANDS[plan.compute]
        self.checkpoints = None
        if adapter is not None and self.needs_checkpoints:
            place = None if plan.checkpoints == "ram" else folder
            self.checkpoints = Checkpoints(
                config.num_hidden_layers, plan.tokens, config.hidden_size, self.operand, place
            )

    @abstractmethod
    def gradients(self, batch: Batch, scale: float, gradients: PagedArray) -> float:
        """The summed loss (nats) of `batch`; d(scale * loss)/d(parameters) is added to `gradients`, laid out alike."""

    @classmethod
    @abstractmethod
    def workspace(cls, sizes: Sizes) -> int:
        """Bytes of scratch this method needs; rank 0: for `loss` alone."""

    @classmethod
    @abstractmethod
    def products(cls, sizes: Sizes) -> tuple[float, float]:
        """Multiply-adds of a step as (passes over a block's forward products, over its forward attention)."""

    def loss(self, batch: Batch) -> float:
        """The summed loss (nats) over the batch's supervised tokens."""
        with self._context(batch) as ctx:
            x = self._embed(ctx, batch)
            self._forward(ctx, x)
            return loss.loss(ctx, x, batch.targets, self.model.norm, self.weights)

    def close(self) -> None:
        """Let go of files."""
        self.weights.close()
        if self.checkpoints is not None:
            self.checkpoints.close()

    def _weight_source(self) -> WeightSource:
        if self.plan.weights == "streamed":
            rows = self.model.lm_head.rows if self.whole_head else self.plan.vocab_tile
            return WeightStream(self.model, rows)
        return WeightPager(self.model, drop=self.plan.weights == "paged")

    def _parameters(self, index: int, flat: Float32) -> None:
        """Read a layer of the adapter into `flat` (layer_size,)."""
        assert self.adapter is not None
        self.adapter.parameters.read(index, flat)

    @contextmanager
    def _context(self, batch: Batch) -> Iterator[Context]:
        if batch.n_tokens > self.plan.tokens:
            raise FeatherbackError(
                f"A batch of {batch.n_tokens} tokens came; the plan is for {self.plan.tokens}."
            )
        plan = self.plan
        with self.arena.frame():
            yield Context.of(
                batch,
                self.model.config,
                self.arena,
                plan.compute,
                plan.mlp_tile,
                plan.vocab_tile,
                plan.keep_h,
            )

    def _embed(self, ctx: Context, batch: Batch) -> Float32:
        """The residual stream (T, D) before the first block."""
        x = ctx.floats(ctx.tokens, ctx.config.hidden_size)
        self.weights.gather(self.model.embed_tokens, batch.tokens, x)
        return x

    def _forward(self, ctx: Context, x: Float32) -> None:
        """x (T, D) goes through all blocks in place."""
        for i in range(ctx.config.num_hidden_layers):
            with self._layer(ctx, i, i + 1) as (weights, p):
                block.forward(ctx, x, weights, p)

    @contextmanager
    def _layer(
        self, ctx: Context, index: int, then: int, gradients: Float32 | None = None
    ) -> Iterator[tuple[LayerWeights, dict[str, Projection]]]:
        """A layer's weights and projections with the adapter's factors; `gradients` (layer_size,) collects theirs."""
        with ctx.arena.frame(), self.weights.layer(index, then) as weights:
            if self.adapter is None:
                yield weights, projections(weights, {}, 1.0)
                return
            flat = ctx.floats(self.adapter.layer_size)
            self._parameters(index, flat)
            collected = None if gradients is None else self.adapter.view(gradients)
            yield weights, projections(weights, self.adapter.view(flat), self.adapter.scale, collected)


class CheckpointedMethod(Method):
    """Exact gradients: forward with checkpointed block inputs, the loss, then the blocks in reverse."""

    def __init__(self, model: Model, adapter: LoRA | None, plan: Plan, folder: Path | None = None) -> None:
        super().__init__(model, adapter, plan, folder)
        self.kept: Arena | None = None
        if adapter is not None and plan.keep_blocks and self.can_keep_blocks:
            sizes = Sizes(model.config, plan, adapter.rank, adapter.targets)
            self.kept = Arena(model.config.num_hidden_layers * kept_block(sizes))

    def gradients(self, batch: Batch, scale: float, gradients: PagedArray) -> float:
        assert self.adapter is not None
        assert self.checkpoints is not None
        with self._context(batch) as ctx, self._store(ctx) as store:
            x = self._embed(ctx, batch)
            states = self._checkpointed_forward(ctx, store, x)
            with ctx.arena.frame():
                total = self._loss_and_gradient(ctx, x, batch.targets, scale)
            dy = x  # its place now holds the gradient
            for i in reversed(range(ctx.config.num_hidden_layers)):
                with ctx.arena.frame():
                    checkpoint = ctx.operands(*dy.shape)
                    self.checkpoints.load(i, checkpoint)
                    collected = ctx.floats(self.adapter.layer_size)
                    gradients.read(i, collected)
                    with self._layer(ctx, i, i - 1, collected) as (weights, p):
                        self._block_backward(ctx, dy, checkpoint, states[i], weights, p)
                    gradients.write(i, collected)
            return total

    @contextmanager
    def _store(self, ctx: Context) -> Iterator[Context | None]:
        """A context whose arrays live from the forward pass to the end of the backward pass."""
        if self.kept is None:
            yield None
            return
        with self.kept.frame():
            yield replace(ctx, arena=self.kept)

    def _checkpointed_forward(
        self, ctx: Context, store: Context | None, x: Float32
    ) -> list[block.BlockState | None]:
        """x (T, D) goes through all blocks in place, each one's input is checkpointed; their states, if kept."""
        assert self.checkpoints is not None
        states: list[block.BlockState | None] = []
        for i in range(ctx.config.num_hidden_layers):
            with ctx.arena.frame():
                self.checkpoints.save(i, x, ctx.operands(*x.shape))
            with self._layer(ctx, i, i + 1) as (weights, p):
                if store is None:
                    block.forward(ctx, x, weights, p)
                    states.append(None)
                else:
                    states.append(block.BlockState.forward(ctx, store, x, weights, p))
        return states

    @abstractmethod
    def _loss_and_gradient(self, ctx: Context, x: Float32, targets: NDArray[np.int32], scale: float) -> float:
        """The summed loss (nats); the final residual stream x (T, D) becomes the gradient of scale * loss."""

    @abstractmethod
    def _block_backward(
        self,
        ctx: Context,
        dy: Float32,
        x: Array,
        kept: block.BlockState | None,
        weights: LayerWeights,
        p: dict[str, Projection],
    ) -> None:
        """dy (T, D), the gradient of a block's output, becomes that of its input x; LoRA gradients accumulate."""
