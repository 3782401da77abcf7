"""The batches of a run, epoch by epoch, starting at any position."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

from featherback.data.batch import Batch
from featherback.data.packing import Batching, Indices, batches, count_batches, rows
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError
from featherback.runs.config import TrainConfig


@dataclass(frozen=True)
class Group:
    """The batches of one step, made one at a time. `n_terms` (of `Batch`) is known before the first is made."""

    batches: Iterator[Batch]
    n_terms: int
    n_tokens: int


class BatchStream:
    """Batches in the run's order. `epochs` may be fractional; None means without end.

    `position` (epoch, batch) is where the next `take` begins. Two iterators go over the same batches: one counts ahead,
    the other makes the batches, so a step of many batches is never in memory at once.
    """

    def __init__(self, tokens: TokenFile, batching: Batching, seed: int, epochs: float | None = None) -> None:
        self.tokens, self.batching, self.seed, self.epochs = tokens, batching, seed, epochs
        self.seek((0, 0))

    def seek(self, position: tuple[int, int]) -> None:
        """Continue from `position`."""
        self.position = position
        self._ahead, self._behind = self._iterate(*position), self._iterate(*position)

    def take(self, count: int) -> Group | None:
        """Return the next `count` batches with supervised tokens: fewer at the end of the last epoch, None after it.

        Consume them before the next call. Raises FeatherbackError if a whole epoch has no supervised tokens.
        """
        if not self.tokens.n_targets:
            raise self._no_targets_error()
        self.tokens.drop_pages()  # otherwise the pages that a long run reads would add up
        found = targets = tokens = idle = 0
        for epoch, index, row in self._ahead:
            self.position = epoch, index + 1
            if trained := self._trained(row):
                found, targets, idle = found + 1, targets + trained, 0
                tokens += int(self.tokens.lengths(row).sum())
                if found == count:
                    break
            elif (idle := idle + len(row)) > 2 * len(self.tokens):
                raise self._no_targets_error()
        return Group(self._batches(found), targets, tokens) if found else None

    def _batches(self, found: int) -> Iterator[Batch]:
        """Yield the next `found` batches with supervised tokens."""
        while found:
            _, _, row = next(self._behind)
            if self._trained(row):
                found -= 1
                yield self.tokens.batch(row)

    def _iterate(self, epoch: int, start: int) -> Iterator[tuple[int, int, Indices]]:
        """Yield (epoch, batch number within it, indices of its sequences) from a position on."""
        for each in range(epoch, math.ceil(self.epochs)) if self.epochs else count(epoch):
            found = rows(self.tokens, self.batching, self.seed, each)
            end = self._end(each, self.epochs) if self.epochs else None
            yield from ((each, index, row) for index, row in enumerate(islice(found, start, end), start))
            start = 0

    def _trained(self, row: Indices) -> int:
        """Return the number over which the loss of a batch is averaged: 0 if nothing in it is supervised."""
        return sum(self.tokens.n_terms(int(i)) for i in row)

    def _no_targets_error(self) -> FeatherbackError:
        return FeatherbackError(f"{self.tokens.path} has no supervised tokens, so there is nothing to train.")

    def steps(self, epochs: float, accumulate: int) -> int:
        """Return the number of steps in this many epochs."""
        total = 0
        for epoch in range(math.ceil(epochs)):
            end = self._end(epoch, epochs)
            total += self._count(epoch) if end is None else end
        return -(-total // accumulate)

    def _end(self, epoch: int, epochs: float) -> int | None:
        """Return how many batches of an epoch belong to a run of `epochs`; None for all."""
        share = epochs - epoch
        return None if share >= 1 else max(1, round(share * self._count(epoch)))

    def _count(self, epoch: int) -> int:
        return count_batches(self.tokens, self.batching, self.seed, epoch)


def stream_of(config: TrainConfig, tokens: TokenFile) -> BatchStream:
    """Return the batches of a run over `tokens`, from the beginning."""
    batching = config.step_batching
    if config.writes:
        batching = replace(batching, seq_len=tokens.longest)
    return BatchStream(tokens, batching, config.seed, config.epochs)


def planned_steps(config: TrainConfig, stream: BatchStream) -> int:
    """Return the number of steps of a run, if it does not stop early."""
    return config.steps or stream.steps(config.epochs or 1, config.accumulate)


def every_batch(tokens: TokenFile, batching: Batching, limit: int | None = None) -> Iterator[Batch]:
    """Return all batches, at most `limit`, in file order, for evaluation."""
    return islice(batches(tokens, batching, shuffle=False), limit)
