"""A sequence of tokens that is being computed, with the keys, values and states of its layers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.arena import aligned
from featherback.engine.backend.protocol import Array, Backend, Scratch
from featherback.infer.cache import PagedFile, RAMCache, key_bytes, state_bytes
from featherback.infer.joint import Part
from featherback.infer.key_cache import BYTE, KeyForm, KeysInFile, LayerKeys
from featherback.infer.loaded import Loaded
from featherback.infer.passes import FEW
from featherback.infer.prefix_files import Restoring
from featherback.infer.tickets import HiddenStates, Ticket, emitted
from featherback.models.model import Model
from featherback.nn.block import Block
from featherback.nn.span import Span

ROOM = 1 << 16
"""Bytes of memory through which a cache in a file is copied."""


class SequenceCache(RAMCache):
    """Keys, values and states of up to `rows` tokens. `kv`: the type of keys and values.

    `arena` allocates memory for all of them. If there is a `file`, which creates a file of so many bytes, keys and
    values are in it, and only the states are in memory.
    """

    def __init__(
        self, blocks: Sequence[Block], rows: int, kv: str, arena: Callable[[int], Scratch],
        file: Callable[[int], PagedFile] | None = None,
    ) -> None:  # fmt: skip
        keys = key_bytes(blocks, rows, kv)
        self.file_bytes = 0 if file is None else keys
        self.nbytes = state_bytes(blocks) + keys - self.file_bytes
        """Bytes of memory."""
        memory, self.file = arena(self.nbytes), None if file is None else file(keys)
        if self.file is not None:
            weakref.finalize(self, self.file.close)
        super().__init__(
            blocks, rows, kv, lambda shape, dtype: memory.take("cache", shape, dtype), self._keys_in_file(rows)
        )

    @property
    def in_file(self) -> bool:
        """Whether the keys and values are in a file."""
        return self.file is not None

    def copy_from(self, other: SequenceCache, count: int, backend: Backend, room: Array) -> None:
        """Copy the first `count` tokens, and the states, of another cache. `room` (ROOM,): memory to use."""
        for mine, theirs in zip(chain(*self.layers), chain(*other.layers)):
            if mine.keys is not None and theirs.keys is not None:
                at = 0
                for part in theirs.keys.stored(backend, 0, mine.keys.form.nbytes(count), room):
                    mine.keys.store(backend, at, part)
                    at += len(part)
            for name, state in mine.states.items():
                with backend.host(theirs.states[name]) as values, backend.host(state, write=True) as written:
                    np.copyto(written, values)

    def _keys_in_file(self, rows: int) -> Callable[[KeyForm], LayerKeys] | None:
        """Return a function that makes the keys of one layer after the other in the file; None if there is no file."""
        if (file := self.file) is None:
            return None
        end = 0

        def made(form: KeyForm) -> LayerKeys:
            nonlocal end
            start, end = end, end + aligned((form.nbytes(rows),), BYTE)
            return KeysInFile(form, file, start)

        return made


class Running:
    """A request that is being answered: its tokens so far, of which the first `done` are in the cache."""

    def __init__(self, model: Model, ticket: Ticket, adapter: Loaded | None, cache: SequenceCache) -> None:
        self.ticket, self.request, self.adapter, self.cache = ticket, ticket.request, adapter, cache
        self.tokens: list[int] = list(self.request.prompt)
        self.done = 0
        self.restoring: Restoring | None = None  # files from which the beginning is being read
        self.files: list[Restoring | None] | None = None  # those that were found; None: not looked for yet
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

    def most_copied(self, has_states: bool) -> int:
        """Return how many first tokens may be copied from other sequences.

        The last tokens must pass the layers in any case, for the logits: as many as are computed as a prompt, if there
        are so many, so that their bits do not depend on what was copied. Recurrent states (`has_states`) cannot be
        rewound, so with them only the last token is left.
        """
        tokens = len(self.tokens)
        return tokens - (1 if has_states or tokens <= FEW else FEW + 1)

    def check_rotations(self) -> None:
        """Compute all tokens again if the text has become so long that its keys are rotated in another way."""
        if (stretched := self._stretched()) != self.stretched:
            self.stretched, self.done = stretched, 0

    def restart(self) -> None:
        """Compute all tokens again."""
        self.done = 0
        if isinstance(self.ticket, HiddenStates):
            self.ticket.restart()

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
        self.ticket.add(states)
        return self.done == len(self.tokens)

    def _stretched(self) -> list[bool]:
        """Return whether each rotation uses the frequencies of long texts."""
        return [rotary.uses_long_factors(len(self.tokens)) for rotary in self._rotaries]
