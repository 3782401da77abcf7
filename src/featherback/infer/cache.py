"""What a decoder remembers of the earlier tokens of one sequence, in all layers: keys, values and recurrent states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any, NamedTuple, Protocol

import numpy as np

from featherback.engine.backend.arena import aligned
from featherback.engine.backend.protocol import Array, TokenStore
from featherback.infer.key_cache import BYTE, File, KeyForm, KeysInFile, KeysInMemory, LayerKeys, OwnRows
from featherback.nn.block import Block
from featherback.nn.branch import Branch, Remembered
from featherback.nn.context import Context
from featherback.nn.span import Span

FLOAT = np.dtype(np.float32)


class Cache(Protocol):
    """The carries of the branches of each layer."""

    def layer(self, ctx: Context, index: int, span: Span) -> AbstractContextManager[Sequence[Any]]:
        """Provide the carry of each branch of a layer for all tokens before `span`; the block adds those of `span`."""

    def close(self) -> None:
        """Free the memory or disk space."""


class PagedFile(File, Protocol):
    """A file for keys and values."""

    def close(self) -> None: ...


class StateSlot(NamedTuple):
    """Where a recurrent state is stored while other layers are in use."""

    name: str
    about: Remembered
    store: TokenStore
    slot: int


class Remembering(NamedTuple):
    """What is stored for a branch."""

    branch: Branch
    keys: LayerKeys | None
    states: Any


class RAMCache:
    """A cache that is all in memory. `empty` allocates an array of a shape and a type.

    `keys`: makes keys and values that are stored elsewhere; None: they are in memory too.
    """

    def __init__(
        self, blocks: Sequence[Block], capacity: int, kv: str,
        empty: Callable[[tuple[int, ...], np.dtype[Any]], Array], keys: Callable[[KeyForm], LayerKeys] | None = None,
    ) -> None:  # fmt: skip
        def stored(branch: Branch) -> Remembering:
            states = {name: empty(about.shape(0), FLOAT) for name, about in states_of(branch).items()}
            if (form := form_of(branch, kv)) is None:
                return Remembering(branch, None, states)
            if keys is not None:
                return Remembering(branch, keys(form), states)
            return Remembering(branch, KeysInMemory(form, empty((form.nbytes(capacity),), BYTE)), states)

        self.layers = [[stored(branch) for branch in block.branches] for block in blocks]

    @contextmanager
    def layer(self, ctx: Context, index: int, span: Span) -> Iterator[Sequence[Any]]:
        with ctx.frame():
            yield [carry_of(ctx, each, each.states) for each in self.layers[index]]

    def close(self) -> None:
        self.layers.clear()


class FileCache:
    """A cache with only two pieces of keys and values, and the states of the layer in use, in memory.

    `file` creates a file of so many bytes, `store` a store of states from (slots, rows, columns).
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        capacity: int,
        kv: str,
        file: Callable[[int], PagedFile],
        store: Callable[[int, int, int], TokenStore],
    ) -> None:
        branches = [branch for block in blocks for branch in block.branches]
        shapes = Counter(about.shape(0) for branch in branches for about in states_of(branch).values())
        forms = {branch: form for branch in branches if (form := form_of(branch, kv)) is not None}
        self._file = file(sum(forms[branch].nbytes(capacity) for branch in branches if branch in forms))
        self._stores = {shape: store(times, *shape) for shape, times in shapes.items()}
        slots, offset = {shape: count() for shape in shapes}, 0
        self._layers: list[list[Remembering]] = []
        for block in blocks:
            self._layers.append([])
            for branch in block.branches:
                states = [
                    StateSlot(name, about, self._stores[about.shape(0)], next(slots[about.shape(0)]))
                    for name, about in states_of(branch).items()
                ]
                keys = None
                if branch in forms:
                    keys = KeysInFile(forms[branch], self._file, offset)
                    offset += forms[branch].nbytes(capacity)
                self._layers[-1].append(Remembering(branch, keys, states))

    @contextmanager
    def layer(self, ctx: Context, index: int, span: Span) -> Iterator[Sequence[Any]]:
        with ctx.frame():
            carry, waiting = [], list[tuple[StateSlot, Array]]()
            for each in self._layers[index]:
                arrays = {state.name: ctx.floats(state.name, *state.about.shape(0)) for state in each.states}
                waiting += zip(each.states, arrays.values())
                carry.append(carry_of(ctx, each, arrays))
            if span.start:
                for (_, _, store, slot), array in waiting:
                    store.load(slot, array, 0)
            yield carry
            for (_, _, store, slot), array in waiting:
                store.save(slot, array, 0, array)

    def close(self) -> None:
        self._file.close()
        for store in self._stores.values():
            store.close()


def form_of(branch: Branch, kv: str) -> KeyForm | None:
    """Return how a branch's keys and values are stored; None if it has none."""
    return None if branch.key_heads is None else KeyForm.of(branch.key_heads, kv)


def states_of(branch: Branch) -> Mapping[str, Remembered]:
    """Return a branch's recurrent states, which have the same size whatever the number of tokens."""
    return {name: about for name, about in branch.remembered.items() if about.rows is not None}


def has_states(blocks: Sequence[Block]) -> bool:
    """Return whether any branch has recurrent states, which cannot be rewound."""
    return any(states_of(branch) for block in blocks for branch in block.branches)


def cache_bytes(blocks: Sequence[Block], capacity: int, kv: str) -> int:
    """Return the bytes of a `RAMCache`: of all keys, values and states of `capacity` tokens."""
    return key_bytes(blocks, capacity, kv) + state_bytes(blocks)


def key_bytes(blocks: Sequence[Block], capacity: int, kv: str) -> int:
    """Return the bytes of all keys and values of `capacity` tokens."""
    forms = (form_of(branch, kv) for block in blocks for branch in block.branches)
    return sum(aligned((form.nbytes(capacity),), BYTE) for form in forms if form is not None)


def state_bytes(blocks: Sequence[Block]) -> int:
    """Return the bytes of the recurrent states of a sequence."""
    branches = (branch for block in blocks for branch in block.branches)
    return sum(aligned(about.shape(0), FLOAT) for branch in branches for about in states_of(branch).values())


def carry_of(ctx: Context, each: Remembering, states: Any) -> Any:
    """Return the carry of a branch, with room in the current frame for the span's keys and values."""
    if each.keys is None:
        return each.branch.resumed(states)
    return OwnRows(each.keys, *each.keys.form.new_rows(ctx))
