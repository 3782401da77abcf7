"""The batches of a run, epoch after epoch, from any position."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

from featherback.data.batch import Batch
from featherback.data.packing import Batching, Indices, batch_of, batches, count_batches, rows
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError


@dataclass(frozen=True)
class Group:
    """The batches of one step, made one by one: `n_targets` is known before the first."""

    batches: Iterator[Batch]
    n_targets: int
    n_tokens: int


class BatchStream:
    """Batches in the run's order, of `epochs` epochs (None: without end; the last may be a part of one).

    `position` (epoch, batch) is where the next `take` begins. Two walks go over the same rows: one counts ahead, the
    other makes batches, so that a step of many batches is never held in memory.
    """

    def __init__(self, tokens: TokenFile, batching: Batching, seed: int, epochs: float | None = None) -> None:
        self.tokens, self.batching, self.seed, self.epochs = tokens, batching, seed, epochs
        self.seek((0, 0))

    def seek(self, position: tuple[int, int]) -> None:
        """Continue from `position`."""
        self.position = position
        self._ahead, self._behind = self._walk(*position), self._walk(*position)

    def take(self, count: int) -> Group | None:
        """The next `count` batches that train something; fewer if the last epoch ends before, None if it has ended.

        They are to be used up before the next call. FeatherbackError if a whole epoch trains nothing.
        """
        if not self.tokens.n_targets:
            raise self._nothing()
        self.tokens.drop_pages()  # those that a long run touches would add up
        found = targets = tokens = idle = 0
        for epoch, index, row in self._ahead:
            self.position = epoch, index + 1
            if trained := self._trained(row):
                found, targets, idle = found + 1, targets + trained, 0
                tokens += int(self.tokens.lengths(row).sum())
                if found == count:
                    break
            elif (idle := idle + len(row)) > 2 * len(self.tokens):
                raise self._nothing()
        return Group(self._batches(found), targets, tokens) if found else None

    def _batches(self, found: int) -> Iterator[Batch]:
        """As many batches that train something, made from where the last ones ended."""
        while found:
            _, _, row = next(self._behind)
            if self._trained(row):
                found -= 1
                yield batch_of(self.tokens, row)

    def _walk(self, epoch: int, start: int) -> Iterator[tuple[int, int, Indices]]:
        """(epoch, number of the batch in it, its sequences) from a position on."""
        for each in range(epoch, math.ceil(self.epochs)) if self.epochs else count(epoch):
            found = rows(self.tokens, self.batching, self.seed, each)
            end = self._end(each, self.epochs) if self.epochs else None
            yield from ((each, index, row) for index, row in enumerate(islice(found, start, end), start))
            start = 0

    def _trained(self, row: Indices) -> int:
        """Supervised tokens of a batch; nothing predicts the first token of a sequence."""
        return sum(int(self.tokens.seq(int(i))[1][1:].sum()) for i in row)

    def _nothing(self) -> FeatherbackError:
        return FeatherbackError(f"{self.tokens.path} has no supervised token: there is nothing to train.")

    def steps(self, epochs: float, accumulate: int) -> int:
        """Number of steps in this many epochs."""
        total = 0
        for epoch in range(math.ceil(epochs)):
            end = self._end(epoch, epochs)
            total += self._count(epoch) if end is None else end
        return -(-total // accumulate)

    def _end(self, epoch: int, epochs: float) -> int | None:
        """How many batches of an epoch belong to a run of `epochs`; None: all."""
        share = epochs - epoch
        return None if share >= 1 else max(1, round(share * self._count(epoch)))

    def _count(self, epoch: int) -> int:
        return count_batches(self.tokens, self.batching, self.seed, epoch)


def every_batch(tokens: TokenFile, batching: Batching, limit: int | None = None) -> Iterator[Batch]:
    """All batches in file order, for evaluation."""
    return islice(batches(tokens, batching, shuffle=False), limit)
