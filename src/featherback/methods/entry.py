"""Hidden states that enter the lowest trained block, kept on disk: later passes over the same tokens begin there.

The blocks below the lowest trained one never change, so each sequence has the same states in every epoch. A row of the
states does not depend on the other sequences of its batch, to the last bit, as long as a pass has at least LEAST tokens
at once: for fewer, kernels add in another order (`tests/methods/test_entry_states.py`). Two things would make a row
depend on its batch:

- fewer than LEAST tokens in a chunk: such a batch is neither stored nor read;
- prefixes that sequences share: so the blocks below pass a batch in which nothing is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from featherback.data.batch import Batch
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array
from featherback.engine.host.token_rows import RowNumbers, TokenRows
from featherback.nn.span import Span

LEAST = 8
"""Fewest tokens that pass a block together in a batch whose states are kept."""


@dataclass
class EntryStates:
    """The files of the states. `files`: checksum of a token file -> its states.

    `note`: called with a message if a file cannot be used any longer.
    """

    files: Mapping[int, TokenRows]
    note: Callable[[str], None]
    read: int = 0  # batches whose states were read
    computed: int = 0  # batches whose states were computed
    _off: bool = field(default=False, init=False)
    _told: bool = field(default=False, init=False)

    def of(self, batch: Batch, spans: Sequence[Span]) -> StatesOf | None:
        """Return the states of a batch that passes in these spans; None if they are not kept."""
        source = batch.source
        if self._off or source is None or source.file not in self.files or min(span.tokens for span in spans) < LEAST:
            return None
        file = self.files[source.file]
        return StatesOf(self, file, file.places(source.sequences, np.diff(batch.cu_seqlens)))

    def check_damage(self, file: TokenRows) -> None:
        """Send a note, once, if rows of a file turned out to be damaged."""
        if file.damaged and not self._told:
            self._told = True
            self.note(f"note: {file.path} is damaged; the hidden states of the examples concerned are computed again")

    def give_up(self, file: TokenRows, error: OSError) -> None:
        """Keep no states from now on, and say why."""
        self._off = True
        self.note(f"note: {file.path} cannot be written ({error.strerror}); from now on all layers run in every epoch")

    def close(self) -> None:
        """Close the files."""
        for file in self.files.values():
            file.close()


@dataclass(frozen=True)
class StatesOf:
    """The states of one batch. `places` (T,): where its tokens' rows are in the file."""

    states: EntryStates
    file: TokenRows
    places: RowNumbers

    def are_stored(self) -> bool:
        """Return whether every row is there and intact."""
        whole = self.file.intact(self.places)
        self.states.check_damage(self.file)
        self.states.read += whole
        self.states.computed += not whole
        return whole

    def save(self, on: Device, x: Array, span: Span) -> bool:
        """Store the span's rows x (T, D), float32. Returns False, after a note, if the disk does not take them."""
        try:
            with on.backend.host(x) as values:
                self.file.save(self.places[span.own], values)
        except OSError as error:
            self.states.give_up(self.file, error)
            return False
        return True

    def load(self, on: Device, x: Array, span: Span) -> None:
        """Fill x (T, D), float32, with the span's rows."""
        with on.backend.host(x, write=True) as values:
            self.file.load(self.places[span.own], values)

    def selected(self, batch: Batch) -> StatesOf:
        """Return the states of the same batch after its prefixes were shared."""
        return self if batch.rows is None else replace(self, places=self.places[batch.rows])
