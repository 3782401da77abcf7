"""A layer's weights as its block uses them: the stored ones, and the adapter at each projection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array, Backend
from featherback.engine.formats.matrix import LayerWeights
from featherback.methods.memory.resources import WeightSource
from featherback.nn.adapters.base import AtProjection, Kind, Setup
from featherback.nn.context import Context
from featherback.nn.linear import BlockWeights, LayerSink, Projection
from featherback.nn.moved import Spot, vector
from featherback.nn.slots import SlotTable

NONE: Mapping[str, Any] = {}


class Parameters(Protocol):
    """Trained values, a flat vector per layer."""

    def fetch(self, layer: int, out: Array, on: Device) -> None:
        """Copy a layer's values into `out` (size,)."""


class Layout(Protocol):
    """Where an adapter's values lie in flat vectors of a layer."""

    @property
    def slots(self) -> SlotTable:
        """The trained tensors of each layer."""

    @property
    def fixed(self) -> SlotTable:
        """target -> values that are measured from the base model's weights once."""

    @property
    def prepared(self) -> SlotTable:
        """target -> values that are computed from the trained ones before a layer is used."""

    @property
    def size(self) -> int:
        """Number of trained values of a layer: the length of a flat vector."""

    def kinds(self, layer: int) -> Mapping[str, Kind]:
        """target -> kind of its adapter in this layer."""

    def view(self, layer: int, flat: Any) -> dict[str, dict[str, Any]]:
        """target -> its trained tensors by slot, views of `flat` (size,)."""


class Adapter(Protocol):
    """The part of an adapter that methods work on: `models.lora.Adapter`, or its shapes without values."""

    @property
    def layout(self) -> Layout: ...
    @property
    def parameters(self) -> Parameters: ...
    @property
    def draws(self) -> bool:
        """Whether training draws random numbers for it."""

    @property
    def fixed(self) -> Parameters:
        """The values that are measured from the base model's weights once, stored."""

    @property
    def measured(self) -> Parameters:
        """The same values, measured again at every read."""


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
    """A layer's weights, with the adapter at its projections. They, and the scratch memory taken for them, are valid
    until the end: the adapter's values (size,), and its prepared values if `prepared` is None.

    `then`: the layer to read ahead. `parameters`, `fixed`: in place of the adapter's own. `gradients` (size,): the
    adapter's gradients are added to it. `sink`: takes the gradients of the weights themselves. `prepared`: an array for
    the adapter's prepared values that outlives this call; it has them already if `ready`, or if `gradients` is given.
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
        flat = ctx.floats("adapter's values of a layer", layout.size)
        (parameters or adapter.parameters).fetch(index, flat, ctx)
        collected = NONE if gradients is None else layout.view(index, gradients)
        places = NONE
        if layout.prepared.size:
            if prepared is None:
                prepared = ctx.floats("what the adapter prepares of a layer", layout.prepared.size)
            places = layout.prepared.view(index, prepared)
        kinds, setups = layout.kinds(index), {}
        for name, values in layout.view(index, flat).items():
            setups[name] = Setup(name, index, values, collected.get(name, NONE), places.get(name), ctx.draw)
        w = block_weights(ctx.backend, stored, {name: kinds[name].attach(setup) for name, setup in setups.items()})
        if places and gradients is None and not ready:
            with ctx.frame():
                flat = ctx.floats("what the adapter measured of a layer", layout.fixed.size)
                (fixed or adapter.fixed).fetch(index, flat, ctx)
                for name, measured in layout.fixed.view(index, flat).items():
                    kinds[name].prepare(ctx, w.projections[name].weight, setups[name], measured)
        yield w


def block_weights(
    backend: Backend,
    stored: LayerWeights,
    adapters: Mapping[str, AtProjection] = NONE,
    sink: LayerSink | None = None,
    layer: int | None = None,
) -> BlockWeights:
    """A layer's stored weights as its block uses them, with the adapter at some projections, by name.

    `sink`: takes the gradients of the weights themselves. `layer`: the layer's number.
    """
    projections = {}
    for name, matrix in stored.matrices.items():
        bias = stored.vectors.get(f"{name.removesuffix('_proj')}_bias")
        weight = backend.matrix(matrix)
        projections[name] = Projection(name, weight, bias, adapters.get(name), sink=sink, layer=layer)
    return BlockWeights(projections, stored.vectors, sink)
