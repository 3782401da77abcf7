"""Assemble a layer's weights for its block: the stored weights, with the adapter at each projection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from featherback.core.noise import Draw
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array, Backend
from featherback.engine.formats.matrix import LayerWeights
from featherback.methods.memory.resources import WeightSource
from featherback.nn.adapters.base import Kind, Setup
from featherback.nn.block import Block
from featherback.nn.context import Context
from featherback.nn.linear import BlockWeights, LayerSink, Projection
from featherback.nn.perturbed import WeightPart, vector
from featherback.nn.slots import SlotTable

NONE: Mapping[str, Any] = {}


class Parameters(Protocol):
    """Trained values, one flat vector per layer."""

    def fetch(self, layer: int, out: Array, on: Device) -> None:
        """Copy a layer's values into `out` (size,)."""


class Layout(Protocol):
    """Where an adapter's values are in a layer's flat vectors."""

    @property
    def blocks(self) -> Sequence[Block]:
        """The model's blocks, with the adapter's own branches if it has any."""

    @property
    def slots(self) -> SlotTable:
        """The trained tensors of each layer."""

    @property
    def fixed(self) -> SlotTable:
        """target -> values measured once from the base model's weights."""

    @property
    def prepared(self) -> SlotTable:
        """target -> values computed from the trained ones before each use of a layer."""

    @property
    def size(self) -> int:
        """Number of trained values per layer: the length of a flat vector."""

    @property
    def adapted(self) -> tuple[int, ...]:
        """The layers that have trained values, ascending."""

    @property
    def lowest(self) -> int:
        """The lowest adapted block. No gradient is needed below it."""

    @property
    def head(self) -> int | None:
        """The layer of a trained head, which is one of `adapted`; None if the adapter has none."""

    def kinds(self, layer: int) -> Mapping[str, Kind]:
        """Return target -> adapter kind, in this layer."""

    def view(self, layer: int, flat: Any) -> dict[str, dict[str, Any]]:
        """Return target -> slot -> trained tensor, as views of `flat` (size,)."""


class Adapter(Protocol):
    """The parts of an adapter that methods use.

    Implemented by `models.adapter.Adapter`, and by its shapes without values.
    """

    @property
    def layout(self) -> Layout: ...
    @property
    def parameters(self) -> Parameters: ...
    @property
    def draws(self) -> bool:
        """Whether training draws random numbers for it (dropout)."""

    @property
    def fixed(self) -> Parameters:
        """Stored values that were measured once from the base model's weights."""

    @property
    def measured(self) -> Parameters:
        """The same values, measured again at every read."""


class HasBlocks(Protocol):
    """A model, or its shapes."""

    @property
    def blocks(self) -> Sequence[Block]: ...


def blocks_of(model: HasBlocks, adapter: Adapter | None) -> Sequence[Block]:
    """Return the blocks that a pass computes: the model's, with the adapter's own branches if it has any."""
    return model.blocks if adapter is None else adapter.layout.blocks


@contextmanager
def layer_weights(
    ctx: Context,
    source: WeightSource,
    index: int,
    then: int | None,
    adapter: Adapter | None = None,
    parameters: Parameters | None = None,
    gradients: Array | None = None,
    prepared: Array | None = None,
    sink: LayerSink | None = None,
    *,
    fixed: Parameters | None = None,
    ready: bool = False,
) -> Iterator[BlockWeights]:
    """Provide a layer's weights with the adapter at its projections, until the end of the `with` block.

    Inside, scratch memory holds the adapter's values (size,), and its prepared values if `prepared` is None.

    `then`: the layer to read ahead, or None. `parameters`, `fixed`: replace the adapter's own. `gradients` (size,): the
    adapter's gradients are added to it. `sink`: receives the gradients of the weights themselves. `prepared`: a
    longer-lived array for the adapter's prepared values. It already contains them if `ready` or `gradients` is given.
    """
    with ctx.frame(), source.layer(index, then) as stored:
        stored = replace(stored, vectors={name: ctx.backend.vector(value) for name, value in stored.vectors.items()})
        if adapter is None or index not in adapter.layout.adapted:
            if ctx.perturbations is not None:
                vectors = {name: vector(ctx, value, WeightPart(name, index)) for name, value in stored.vectors.items()}
                stored = replace(stored, vectors=vectors)
            yield block_weights(ctx.backend, stored, sink=sink, layer=index)
            return
        layout = adapter.layout
        flat = ctx.floats("adapter's values of a layer", layout.size)
        (parameters or adapter.parameters).fetch(index, flat, ctx)
        if layout.prepared.size and prepared is None:
            prepared = ctx.floats("adapter's prepared values of a layer", layout.prepared.size)
        kinds, setups = layout.kinds(index), layer_setups(layout, index, flat, gradients, prepared, ctx.draw)
        at_projections = {name: kinds[name].attach(setup) for name, setup in setups.items()}
        w = block_weights(ctx.backend, stored, at_projections, layer=index)
        is_prepared = any(setup.prepared is not None for setup in setups.values())
        if is_prepared and gradients is None and not ready:
            with ctx.frame():
                flat = ctx.floats("adapter's measured values of a layer", layout.fixed.size)
                (fixed or adapter.fixed).fetch(index, flat, ctx)
                for name, measured in layout.fixed.view(index, flat).items():
                    kinds[name].prepare(ctx, w.projections[name].weight, setups[name], measured)
        yield w


def layer_setups(
    layout: Layout,
    index: int,
    flat: Array,
    gradients: Array | None = None,
    prepared: Array | None = None,
    draw: Draw | None = None,
) -> dict[str, Setup]:
    """Return target -> what its kind is attached with, from a layer's values, `flat` (size,)."""
    collected = NONE if gradients is None else layout.view(index, gradients)
    places = NONE if prepared is None else layout.prepared.view(index, prepared)
    return {
        name: Setup(name, index, values, collected.get(name, NONE), places.get(name), draw)
        for name, values in layout.view(index, flat).items()
    }


def block_weights(
    backend: Backend,
    stored: LayerWeights,
    adapters: Mapping[str, Any] = NONE,
    sink: LayerSink | None = None,
    layer: int | None = None,
) -> BlockWeights:
    """Return a layer's stored weights for its block, with the adapter at some projections or places, by name.

    `sink`: receives the gradients of the weights themselves. `layer`: the layer's index.
    """
    projections = {}
    for name, matrix in stored.matrices.items():
        bias = stored.vectors.get(f"{name.removesuffix('_proj')}_bias")
        weight = backend.matrix(matrix)
        if bias is not None:  # that of a stack of experts is (E, out / E)
            bias = bias.reshape(matrix.shape[0])
        projections[name] = Projection(name, weight, bias, adapters.get(name), sink=sink, layer=layer)
    own = {name: adapter for name, adapter in adapters.items() if name not in projections}
    return BlockWeights(projections, stored.vectors, sink, own)
