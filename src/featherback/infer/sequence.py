"""A sequence of tokens that is being computed, with the keys, values and states of its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.protocol import Array, Backend, Scratch
from featherback.infer.cache import RAMCache, cache_bytes
from featherback.infer.joint import Part
from featherback.infer.key_cache import KeysInMemory
from featherback.infer.loaded import Loaded
from featherback.infer.tickets import HiddenStates, Ticket, emitted
from featherback.models.model import Model
from featherback.nn.block import Block
from featherback.nn.span import Span


class SequenceCache(RAMCache):
    """Keys, values and states of up to `rows` tokens, in one piece of memory. `kv`: the type of keys and values."""

    def __init__(self, blocks: Sequence[Block], rows: int, kv: str, arena: Callable[[int], Scratch]) -> None:
        self.nbytes = cache_bytes(blocks, rows, kv)
        memory = arena(self.nbytes)
        super().__init__(blocks, rows, kv, lambda shape, dtype: memory.take("cache", shape, dtype))

    def copy_from(self, other: SequenceCache, count: int, backend: Backend) -> None:
        """Copy the first `count` tokens, and the states, of another cache."""
        for mine, theirs in zip(chain(*self.layers), chain(*other.layers)):
            if isinstance(mine.keys, KeysInMemory) and isinstance(theirs.keys, KeysInMemory):
                _copy(backend, theirs.keys.data[: mine.keys.form.nbytes(count)], mine.keys.data)
            for name, state in mine.states.items():
                _copy(backend, theirs.states[name], state)


def _copy(backend: Backend, source: Array, out: Array) -> None:
    """Copy `source` to the beginning of `out`."""
    with backend.host(source) as values, backend.host(out[: len(source)], write=True) as written:
        np.copyto(written, values)


class Running:
    """A request that is being answered: its tokens so far, of which the first `done` are in the cache."""

    def __init__(self, model: Model, ticket: Ticket, adapter: Loaded | None, cache: SequenceCache) -> None:
        self.ticket, self.request, self.adapter, self.cache = ticket, ticket.request, adapter, cache
        self.tokens: list[int] = list(self.request.prompt)
        self.done = 0
        self.started = False  # whether it has been decided what is copied from other sequences
        self.emitted = 0
        self.turn = 0  # number of the last step in which a chunk of it was computed
        self.is_hidden = isinstance(ticket, HiddenStates)
        self._rotaries = model.rotaries
        self.stretched = self._stretched()

    @property
    def pending(self) -> int:
        """The tokens that are not in the cache. Those of a prompt pass in chunks, a single one with other sequences."""
        return len(self.tokens) - self.done

    def check_rotations(self) -> None:
        """Compute all tokens again if the text has become so long that its keys are rotated in another way."""
        if (stretched := self._stretched()) != self.stretched:
            self.stretched, self.done = stretched, 0

    def part(self, count: int) -> Part:
        """Return the next `count` tokens as a part of a pass."""
        ids = np.asarray(self.tokens[self.done : self.done + count], np.int32)
        span = Span.following(self.done, count, len(self.tokens))
        return Part(ids, span, self.cache.layers, self.adapter)

    def add(self, token: int, logits: NDArray[np.float32]) -> None:
        """Add a token, which was chosen from logits (vocab,), to the answer."""
        self.tokens.append(token)
        self.emitted += 1
        self.ticket.emit(emitted(logits, token, self.request.logprobs))

    def add_states(self, states: NDArray[np.float32]) -> bool:
        """Add hidden states (n, D). Return whether they are complete."""
        assert isinstance(self.ticket, HiddenStates)
        self.ticket.states.append(states)
        return self.done == len(self.tokens)

    def _stretched(self) -> list[bool]:
        """Return whether each rotation uses the frequencies of long texts."""
        return [rotary.uses_long_factors(len(self.tokens)) for rotary in self._rotaries]
