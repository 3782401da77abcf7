"""Predict the memory of joint passes by running them on a device that only counts."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Protocol

import numpy as np

from featherback.engine.backend.counting import Blank, Counting, Ledger, Work
from featherback.engine.budget import Budget
from featherback.infer.cache import cache_bytes, state_bytes
from featherback.infer.joint import JointPasses, Part
from featherback.infer.key_cache import BYTE, EXACT
from featherback.infer.layout import DECODE, Layout, layouts
from featherback.infer.loaded import Loaded, group_of, load
from featherback.infer.needs import CODE, Needs, NoFile
from featherback.infer.passes import FEW, Machine
from featherback.infer.sequence import ROOM, SequenceCache
from featherback.methods.memory.dry_run import BlankAdapter, BlankWeights
from featherback.methods.memory.plan import Storage, Weights
from featherback.methods.memory.resources import FLOAT
from featherback.methods.memory.stored import StoredSizes
from featherback.models.form import Layout as AdapterLayout
from featherback.models.model import Model
from featherback.nn.span import Span


class HasLayout(Protocol):
    """An adapter, or its shapes."""

    @property
    def layout(self) -> AdapterLayout: ...


SHORT = 256
"""Tokens of the shortest text for which a server is opened."""
SOME = 4
"""Short texts that fit in memory beside one in a file."""
STORAGES: tuple[Storage, Storage] = ("ram", "file")


def joint_needs(
    model: Model, adapters: Sequence[HasLayout], slots: int, capacity: int, compute: str, layout: Layout,
    kv: str = EXACT,
) -> Needs:  # fmt: skip
    """Return the memory of passes for at most `slots` sequences of at most `capacity` tokens.

    `adapters`: those that passes use. Their values and the sequences' caches are not included. `kv`: the type of
    keys and values. If the layout's cache is "file", any of the sequences may have keys and values in files.
    """
    sizes, backend = StoredSizes.of(model), Counting(compute, layout.is_fast, decoding=True)
    scratch, held = Ledger(), Ledger()
    weights: Any = BlankWeights(sizes, range(len(model.blocks)), backend)
    machine = Machine(model, compute, layout, backend, scratch, weights)
    passes = JointPasses(machine, held)
    with scratch.frame():
        scratch.take("part of a cache", (ROOM,), BYTE)
    places: Sequence[Any] = [None] if layout.cache == "ram" else [None, lambda _: NoFile()]
    loaded = [load(machine, BlankAdapter(each.layout, draws=False), _blank) for each in adapters]
    groups: dict[Hashable, list[Loaded | None]] = {}
    for each in (None, *loaded):
        groups.setdefault(group_of(each), []).append(each)
    for group, file in product(groups.values(), places):
        blocks = model.blocks if group[0] is None else group[0].blocks
        cache = SequenceCache(blocks, capacity, kv, lambda _: Ledger(), file)
        parts = [_part(cache, group[row % len(group)], 1, capacity) for row in range(max(slots, len(group)))]
        _run(passes, model, parts, slots)
        for adapter in group:  # a chunk of one prompt, or of several
            _run(passes, model, [_part(cache, adapter, min(FEW, capacity), capacity)], 1)
            counts, left = list[int](), layout.chunk
            while left and len(counts) < slots:
                counts.append(min(capacity, left if len(counts) else max(1, left - 1)))
                left -= counts[-1]
            _run(passes, model, [_part(cache, adapter, min(layout.chunk, capacity), capacity)], 1)
            _run(passes, model, [_part(cache, adapter, count, capacity) for count in counts], slots)
    return Needs.of(sizes, backend, layout, scratch, held, logits=slots)


def decoding_work(
    model: Model, adapter: HasLayout | None, slots: int, capacity: int, compute: str, layout: Layout
) -> Work:
    """Return the work of a pass for the next token of `slots` sequences with half of `capacity` tokens each."""
    sizes, backend = StoredSizes.of(model), Counting(compute, layout.is_fast, decoding=True)
    scratch, held = Ledger(), Ledger()
    weights: Any = BlankWeights(sizes, range(len(model.blocks)), backend)
    machine = Machine(model, compute, layout, backend, scratch, weights)
    passes = JointPasses(machine, held)
    loaded = None if adapter is None else load(machine, BlankAdapter(adapter.layout, draws=False), _blank)
    length = max(1, capacity // 2)
    cache = SequenceCache(model.blocks if loaded is None else loaded.blocks, length, EXACT, lambda _: Ledger())
    before = replace(backend.ops.work)
    _run(passes, model, [_part(cache, loaded, 1, length)] * slots, slots)
    return backend.ops.work.plus(before, -1)


def fitting_joint(
    model: Model, slots: int, capacity: int, compute: str, budget: Budget, weights: Weights | None = None,
    kv: str = EXACT, decode: str = DECODE[0],
) -> tuple[Layout, int | None]:  # fmt: skip
    """Return the fastest layout that leaves room for a text of `capacity` tokens, and the bytes that it leaves.

    Such a text is in memory, or in a file beside `SOME` short ones in memory. If no layout leaves so much room, return
    the smallest layout, if it leaves room for a short text. Raises BudgetError otherwise. `weights`: how another phase
    reads the weights; None: any way. Without a limit, the bytes are None.
    """
    ways = layouts("streamed" if weights == "streamed" else None, decode)
    if (room := budget.room) is None:
        return next(ways), None
    whole, least = (cache_bytes(model.blocks, rows, kv) for rows in (capacity, min(capacity, SHORT)))
    smallest, fewest = None, sys.maxsize
    for layout in ways:
        in_memory = replace(layout, cache="ram")
        needed = joint_needs(model, [], slots, capacity, compute, in_memory, kv).total + CODE
        texts = whole
        if layout.cache == "file":
            texts = in_file(model, slots, capacity, compute, layout, kv) + SOME * least
        if needed + texts <= room:
            return in_memory, room - needed
        if needed < fewest:
            smallest, fewest = in_memory, needed
    budget.ask(fewest + least, "The smallest server of this model")
    assert smallest is not None
    return smallest, room - fewest


def in_file(model: Model, slots: int, capacity: int, compute: str, layout: Layout, kv: str) -> int:
    """Return the bytes of memory that a first text takes whose keys and values are in a file."""
    scratch = [
        joint_needs(model, [], slots, capacity, compute, replace(layout, cache=place), kv).scratch for place in STORAGES
    ]
    return scratch[1] - scratch[0] + state_bytes(model.blocks)


def smallest_joint(
    model: Model, slots: int, capacity: int, compute: str, weights: Weights | None = None, kv: str = EXACT,
    decode: str = DECODE[0],
) -> tuple[Layout, int]:  # fmt: skip
    """Return the layout that needs the least memory, and the bytes of one text of `capacity` tokens.

    If a file takes less memory, the bytes are those of a text in a file and of a short one in memory.
    """
    ways = (each for each in layouts("streamed" if weights == "streamed" else None, decode) if each.cache == "ram")
    layout = min(ways, key=lambda layout: joint_needs(model, [], slots, capacity, compute, layout, kv).total)
    whole, least = (cache_bytes(model.blocks, rows, kv) for rows in (capacity, min(capacity, SHORT)))
    return layout, min(whole, in_file(model, slots, capacity, compute, layout, kv) + least)


def _part(cache: SequenceCache, adapter: Any, count: int, capacity: int) -> Part:
    span = Span.following(capacity - count, count, capacity)
    return Part(np.zeros(count, np.int32), span, cache.layers, adapter)


def _run(passes: JointPasses, model: Model, parts: Sequence[Part], rows: int) -> None:
    tokens = sum(part.span.tokens for part in parts)
    out: Any = Blank((min(rows, tokens), model.config.vocab_size), FLOAT)
    passes.logits(parts, np.arange(min(rows, tokens), dtype=np.int32), out)


def _blank(shape: tuple[int]) -> Any:
    return Blank(shape, FLOAT)
