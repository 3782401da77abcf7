"""The values of an adapter in memory, at the projections of each layer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from featherback.engine.backend.arena import aligned
from featherback.engine.backend.protocol import Array
from featherback.infer.passes import Machine
from featherback.methods.assembly import Adapter, layer_setups, layer_weights
from featherback.methods.memory.resources import FLOAT
from featherback.nn.block import Block
from featherback.nn.context import Context
from featherback.nn.span import Span


class Loaded(NamedTuple):
    """An adapter that passes use. Later changes of the adapter's own values do not affect it."""

    blocks: Sequence[Block]
    layers: Mapping[int, Mapping[str, Any]]
    """Layer -> target -> what its kind attaches there."""
    shares: bool
    """Whether sequences with other adapters may share its passes: every projection that it adapts reads all tokens of a
    pass, in order."""
    changed: frozenset[tuple[int, str]]
    """(layer, target) whose output it changes. The output is then summed in another order, for all rows of a pass. So
    only adapters that change the same ones share passes."""
    checksum: str = ""
    """Of its form and values, if prefixes that are computed with it are kept in files."""

    def at(self, layer: int) -> Mapping[str, Any]:
        """Return target -> what the adapter's kind attaches there."""
        return self.layers.get(layer, {})


def load(machine: Machine, adapter: Adapter, empty: Callable[[tuple[int]], Array]) -> Loaded:
    """Copy the values of an adapter to arrays of `empty`, and prepare it. Uses the machine's scratch memory."""
    layout, own = adapter.layout, machine.model.blocks
    ctx = Context(machine.backend, machine.scratch, machine.compute, Span.following(0, 1, 1), few=False)
    layers = {}
    for index in layout.adapted:
        flat, prepared = empty((layout.size,)), None
        adapter.parameters.fetch(index, flat, ctx)
        if layout.prepared.size:
            prepared = empty((layout.prepared.size,))
            with layer_weights(ctx, machine.weights, index, None, adapter, prepared=prepared, fixed=adapter.measured):
                pass
        kinds, setups = layout.kinds(index), layer_setups(layout, index, flat, prepared=prepared)
        layers[index] = {name: kinds[name].attach(setup) for name, setup in setups.items()}
    adapted = {(index, name) for index, at in layers.items() for name in at}
    shares = not any(name in own[index].stacks or name not in own[index].projections for index, name in adapted)
    changed = frozenset((index, name) for index, name in adapted if getattr(layers[index][name], "needs_output", False))
    return Loaded(layout.blocks, layers, shares, changed)


def group_of(adapter: Loaded | None) -> Hashable:
    """Return what the adapters of a pass for next tokens have in common."""
    if adapter is None:
        return frozenset()
    return adapter.changed if adapter.shares else id(adapter)


def loaded_bytes(adapter: Adapter) -> int:
    """Return the bytes that `load` takes from `empty`."""
    layout = adapter.layout
    sizes = [layout.size, *([layout.prepared.size] if layout.prepared.size else [])]
    return len(layout.adapted) * sum(aligned((size,), FLOAT) for size in sizes)
