"""The batches of a run, epoch after epoch, from any position."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from featherback.data.batch import Batch
from featherback.data.packing import batches, count_batches
from featherback.data.token_file import TokenFile


class BatchStream:
    """Batches in the run's order. `position` (epoch, batch) is where the next `take` begins."""

    def __init__(self, tokens: TokenFile, seq_len: int, batch_size: int, seed: int) -> None:
        self.tokens, self.seq_len, self.batch_size, self.seed = tokens, seq_len, batch_size, seed
        self.seek((0, 0))

    def seek(self, position: tuple[int, int]) -> None:
        """Continue from `position`."""
        self.position = position
        epoch, start = position
        self._epoch: Iterator[Batch] = batches(
            self.tokens, self.seq_len, self.batch_size, self.seed, epoch, start
        )

    def take(self, count: int, last_epoch: int | None = None) -> list[Batch]:
        """The next `count` batches that train something; fewer if `last_epoch` ends before."""
        taken: list[Batch] = []
        while len(taken) < count:
            batch = next(self._epoch, None)
            epoch, index = self.position
            if batch is None:
                if epoch == last_epoch:
                    break
                self.seek((epoch + 1, 0))
                continue
            self.position = epoch, index + 1
            if batch.n_targets:
                taken.append(batch)
        return taken

    def steps(self, epochs: int, accumulate: int) -> int:
        """Number of steps in this many epochs."""
        total = sum(
            count_batches(self.tokens, self.seq_len, self.batch_size, self.seed, epoch)
            for epoch in range(epochs)
        )
        return -(-total // accumulate)


def every_batch(
    tokens: TokenFile, seq_len: int, batch_size: int, limit: int | None = None
) -> Iterator[Batch]:
    """All batches in file order, for evaluation."""
    return islice(batches(tokens, seq_len, batch_size, shuffle=False), limit)
