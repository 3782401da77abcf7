"""A layer's weights as its block uses them: what is stored, and beside it what an adapter adds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from featherback.backend.device import Device
from featherback.backend.protocol import Array, Backend
from featherback.layers.context import Context
from featherback.layers.dora import measure_columns, weighed
from featherback.layers.dropout import Mask
from featherback.layers.linear import BlockWeights, Factors, LayerSink, LoRAFactors, Pairs, Projection
from featherback.layers.moved import Spot, vector
from featherback.memory.resources import WeightSource
from featherback.parameters.slots import SlotTable
from featherback.weights.matrix import LayerWeights

NO_PAIRS: Pairs = {}
NO_SCALES: Mapping[str, float] = {}
NO_MASKS: Mapping[str, Mask] = {}


class Parameters(Protocol):
    """Trained values, a flat vector per layer."""

    def fetch(self, layer: int, out: Array, on: Device) -> None:
        """Copy a layer's values into `out` (size,)."""


class Layout(Protocol):
    """Where LoRA's factors lie in a layer's flat vector, and what DoRA has for each output in another one."""

    @property
    def slots(self) -> SlotTable:
        """The tensors of each layer."""

    @property
    def size(self) -> int:
        """Values of a layer."""

    def view(self, layer: int, flat: Any) -> dict[str, Factors]:
        """target -> its factors."""

    @property
    def columns_size(self) -> int:
        """Outputs of a layer's targets; 0 without DoRA."""

    def columns(self, layer: int, flat: Any) -> dict[str, Any]:
        """target -> a number per output, from all of them (columns_size,)."""


class Adapter(Protocol):
    """The part of an adapter that methods work on: `adapters.LoRA`, or its shapes alone."""

    @property
    def layout(self) -> Layout: ...
    @property
    def parameters(self) -> Parameters: ...
    @property
    def dropout(self) -> float:
        """Share of LoRA's inputs that is dropped in training."""

    @property
    def squares(self) -> Parameters:
        """||W_i||^2 of every output of a layer's targets. Only with DoRA."""

    def scales(self, layer: int) -> Mapping[str, float]:
        """target -> what LoRA's product is multiplied by."""


@contextmanager
def layer_weights(
    ctx: Context,
    source: WeightSource,
    index: int,
    then: int | None,
    adapter: Adapter | None = None,
    parameters: Parameters | None = None,
    gradients: Array | None = None,
    columns: Array | None = None,
    sink: LayerSink | None = None,
    *,
    measured: bool = False,
) -> Iterator[BlockWeights]:
    """A layer's weights with the adapter's factors, valid inside, as is the memory of `ctx` that they take.

    `then`: the layer that is needed next. `parameters`: in place of the adapter's own values. `gradients` (size,)
    collects those of the factors; `sink` takes those of the weights themselves. `columns` (columns_size,): where DoRA's
    c stays for later calls; it holds c already if `measured`, or if gradients are wanted.
    """
    with ctx.frame(), source.layer(index, then) as stored:
        stored = replace(stored, vectors={name: ctx.backend.vector(value) for name, value in stored.vectors.items()})
        if adapter is None:
            if ctx.moves is not None:
                vectors = {name: vector(ctx, value, Spot(name, index)) for name, value in stored.vectors.items()}
                stored = replace(stored, vectors=vectors)
            yield block_weights(ctx.backend, stored, sink=sink, layer=index)
            return
        layout = adapter.layout
        flat = ctx.floats("LoRA parameters of a layer", layout.size)
        (parameters or adapter.parameters).fetch(index, flat, ctx)
        collected = NO_PAIRS if gradients is None else layout.view(index, gradients)
        pairs, scales = layout.view(index, flat), adapter.scales(index)
        dropout = ctx.dropout
        masks = {name: dropout.mask(index, name) for name in pairs if dropout}
        w = block_weights(ctx.backend, stored, pairs, scales, collected, masks)
        if layout.columns_size:
            found = ctx.floats("DoRA's c of a layer", layout.columns_size) if columns is None else columns
            c = layout.columns(index, found)
            if gradients is None and not measured:
                with ctx.frame():
                    squares = ctx.floats("squared norms of rows", layout.columns_size)
                    adapter.squares.fetch(index, squares, ctx)
                    measure_columns(ctx, w, pairs, layout.columns(index, squares), c)
            w = weighed(w, pairs, c, collected)
        yield w


def block_weights(
    backend: Backend,
    stored: LayerWeights,
    pairs: Pairs = NO_PAIRS,
    scales: Mapping[str, float] = NO_SCALES,
    gradients: Pairs = NO_PAIRS,
    masks: Mapping[str, Mask] = NO_MASKS,
    sink: LayerSink | None = None,
    layer: int | None = None,
) -> BlockWeights:
    """A layer's stored weights as its block uses them; what belongs to an adapter only for what it adapts.

    `sink`: what trains the weights themselves, where `layer` says which they are.
    """
    projections = {}
    for name, matrix in stored.matrices.items():
        lora = None
        if name in pairs:
            mask, pair, collected = masks.get(name), pairs[name], gradients.get(name)
            scale = scales[name] if mask is None else scales[name] * mask.gain
            da, dbt = (None, None) if collected is None else (collected.a, collected.bt)
            lora = LoRAFactors(pair.a, pair.bt, scale, da, dbt, mask)
        bias = stored.vectors.get(f"{name.removesuffix('_proj')}_bias")
        projections[name] = Projection(name, backend.matrix(matrix), bias, lora, sink=sink, layer=layer)
    return BlockWeights(projections, stored.vectors, sink)
