"""Passes over the weights that several sequences share, each with its own position, cache and adapter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.protocol import Array, Scratch
from featherback.infer.cache import Remembering, carry_of
from featherback.infer.key_cache import JoinedRows
from featherback.infer.loaded import Loaded
from featherback.infer.passes import Machine
from featherback.methods.assembly import layer_weights
from featherback.nn.adapters.several import AtRows, Several
from featherback.nn.block import Block
from featherback.nn.context import Context
from featherback.nn.linear import BlockWeights
from featherback.nn.span import Span


class Part(NamedTuple):
    """Tokens of one sequence in a pass."""

    ids: NDArray[np.int32]  # (n,)
    span: Span
    remembered: Sequence[Sequence[Remembering]]  # by layer and branch: keys and values, or recurrent states
    adapter: Loaded | None


class JointPasses:
    """Passes of a machine. All parts of a pass have the same adapter, or adapters that share passes."""

    def __init__(self, machine: Machine, held: Scratch) -> None:
        """`held`: scratch memory for what stays open as long as the passes do, if the layout is resident."""
        self.machine = machine
        self._open = ExitStack()
        self._resident: list[BlockWeights] = []
        if machine.layout.is_resident:
            ctx = Context(machine.backend, held, machine.compute, Span.following(0, 1, 1))
            self._resident = [self._open.enter_context(self._stored(ctx, i)) for i in range(len(machine.model.blocks))]
        self._adapted: tuple[Any, list[BlockWeights]] = None, []  # the layers of the last pass, with their adapters

    def logits(self, parts: Sequence[Part], rows: NDArray[np.int32], out: Array) -> None:
        """Run the tokens of all parts. Writes `out` (n, V): the logits of `rows` (n,) of them."""
        head = self.machine.model.head
        with self._through(parts) as (ctx, x):
            if not len(rows):
                return
            wanted = x
            if len(rows) < len(x):
                wanted = ctx.floats("rows with logits", len(rows), x.shape[1])
                ctx.ops.take_rows(x, rows, wanted)
            head.logits(replace(ctx, few=True), wanted, self.machine.weights, out)

    def hidden(self, parts: Sequence[Part], out: Array) -> None:
        """Run the tokens of all parts (T in all). Writes `out` (T, D): the hidden states after the final norm."""
        with self._through(parts) as (ctx, x):
            self.machine.model.head.states(ctx, x, out)

    def forget(self) -> None:
        """Drop references to adapters."""
        self._adapted = None, []

    def close(self) -> None:
        """Free the weights."""
        self.forget()
        self._resident.clear()
        self._open.close()

    @contextmanager
    def _through(self, parts: Sequence[Part]) -> Iterator[tuple[Context, Array]]:
        """Yield a context of all parts, and the residual stream (T, D) after all blocks."""
        spans, adapter = [part.span for part in parts], parts[0].adapter
        span = spans[0] if len(spans) == 1 else Span.joined(spans)
        blocks = self.machine.model.blocks if adapter is None or adapter.shares else adapter.blocks
        with self.machine.embedded(np.concatenate([part.ids for part in parts]), span) as (ctx, x):
            contexts = [ctx] if len(spans) == 1 else [_of_rows(ctx, rows, each) for rows, each in _row_ranges(spans)]
            for index, block in enumerate(blocks):
                remembered = [part.remembered[index] for part in parts]
                with self._layer(ctx, index, parts) as w:
                    _forward(ctx, block, x, w, contexts, remembered)
            yield ctx, x

    def _layer(self, ctx: Context, index: int, parts: Sequence[Part]) -> AbstractContextManager[BlockWeights]:
        """Provide a layer's weights, with the adapters of all parts."""
        adapters = [(part.adapter, part.span.tokens) for part in parts]
        if all(adapter is None for adapter, _ in adapters):
            return nullcontext(self._resident[index]) if self._resident else self._stored(ctx, index)
        if not self._resident:
            return self._with_adapters(ctx, index, adapters)
        key = [(id(adapter), tokens) for adapter, tokens in adapters]
        if key != self._adapted[0]:
            self._adapted = key, [adapted(w, at, adapters) for at, w in enumerate(self._resident)]
        return nullcontext(self._adapted[1][index])

    @contextmanager
    def _with_adapters(
        self, ctx: Context, index: int, adapters: Sequence[tuple[Loaded | None, int]]
    ) -> Iterator[BlockWeights]:
        with self._stored(ctx, index) as w:
            yield adapted(w, index, adapters)

    def _stored(self, ctx: Context, index: int) -> AbstractContextManager[BlockWeights]:
        return layer_weights(ctx, self.machine.weights, index, index + 1)


def adapted(w: BlockWeights, layer: int, adapters: Sequence[tuple[Loaded | None, int]]) -> BlockWeights:
    """Return a layer's weights with the adapter of each part of a pass, (adapter, tokens), at the part's rows."""
    groups, last = list[tuple[Loaded | None, int, int]](), 0
    for _, same in groupby(adapters, key=lambda each: id(each[0])):
        members = list(same)
        first, last = last, last + sum(tokens for _, tokens in members)
        groups.append((members[0][0], first, last))
    at: Mapping[str, Any]
    if len(groups) == 1:
        only = groups[0][0]
        at = {} if only is None else only.at(layer)
    else:
        found = [({} if adapter is None else adapter.at(layer), first, last) for adapter, first, last in groups]
        names = dict.fromkeys(name for own, _, _ in found for name in own)
        at = {name: Several(name, [AtRows(a, b, own.get(name)) for own, a, b in found]) for name in names}
    projections = {name: each._replace(adapter=at.get(name)) for name, each in w.projections.items()}
    own = {name: each for name, each in at.items() if name not in projections}
    return w._replace(projections=projections, adapters=own)


def _forward(
    ctx: Context,
    block: Block,
    x: Array,
    w: BlockWeights,
    contexts: Sequence[Context],
    remembered: Sequence[Sequence[Remembering]],
) -> None:
    """Pass the residual stream x (T, D) of several sequences through a block in place.

    A branch with recurrent states runs the sequences one after the other.
    """
    for branch, own in zip(block.branches, zip(*remembered)):
        if len(contexts) == 1 or branch.key_heads is not None or not branch.remembered:
            with ctx.frame():
                branch.add_output(ctx, branch.forward(ctx, x, w, _carry(ctx, contexts, own)), x, w)
            continue
        for (rows, _), inner, each in zip(_row_ranges([c.span for c in contexts]), contexts, own):
            part, alone = x[rows], _alone(w, rows)
            with inner.frame():
                carry = carry_of(inner, each, each.states)
                branch.add_output(inner, branch.forward(inner, part, alone, carry), part, alone)


def _carry(ctx: Context, contexts: Sequence[Context], own: Sequence[Remembering]) -> Any:
    """Return the carry of a branch for all sequences. It has room in the current frame for new keys and values."""
    first = own[0]
    if len(own) == 1 or first.keys is None:
        return carry_of(ctx, first, first.states)
    sequences = [(inner, each.keys) for inner, each in zip(contexts, own) if each.keys is not None]
    return JoinedRows(sequences, *first.keys.form.new_rows(ctx))


def _alone(w: BlockWeights, rows: slice) -> BlockWeights:
    """Return a layer's weights with only the adapter of some rows, which have the same one."""
    projections = {
        name: each._replace(adapter=each.adapter.of_rows(rows.start, rows.stop))
        if isinstance(each.adapter, Several)
        else each
        for name, each in w.projections.items()
    }
    return w._replace(projections=projections)


def _of_rows(ctx: Context, rows: slice, span: Span) -> Context:
    """Return the context of one sequence's own span, which is in these rows of the pass."""
    tables = {rotary: (cos[rows], sin[rows]) for rotary, (cos, sin) in (ctx.tables or {}).items()}
    return replace(ctx, span=span, tables=tables)


def _row_ranges(spans: Sequence[Span]) -> list[tuple[slice, Span]]:
    found, first = [], 0
    for span in spans:
        found.append((slice(first, first + span.tokens), span))
        first += span.tokens
    return found
