"""Which of the model's pages are mapped: the layer's in use; the next layer is read ahead, the last one dropped."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback.engine import kernels
from featherback.engine.backend.protocol import Array, Backend, Handle
from featherback.engine.formats.mapping import FOLIO
from featherback.engine.formats.matrix import LayerWeights, Matrix
from featherback.engine.host.positioned import read_exactly
from featherback.engine.host.reading import OpenFiles, Weights, copied, drop_maps, plain, runs
from featherback.engine.host.scattered import ScatteredRows, check_ids

READ = 64 << 10
"""Bytes read at once where only the page cache is to have them."""
Stretch = tuple[Path, NDArray[np.uint8], int, int]
"""A file, its map, and [begin, end) in it."""


class WeightPager:
    """Weights as the map has them, "resident"; or pages are unmapped after use, and the next ones read ahead.

    "paged": when a layer has been used; "by_matrix": also each matrix, or rows of it, as soon as `release` is called.
    """

    def __init__(self, model: Weights, device: Backend, weights: str, changing: bool = False) -> None:
        """`changing`: what the file holds may have changed whenever a layer is asked for."""
        drop = weights != "resident"
        self._by_matrix = weights == "by_matrix"
        self.model, self._device, self._drop, self._scattered = model, device, drop, ScatteredRows(device)
        self._files, self._read = OpenFiles(plain), set[tuple[Path, int]]()
        self._ahead = kernels.ReadAhead()
        self._head_read = False
        self._faults, self._hints = 0, 0  # major faults so far, and how many hints they are worth
        self._layers = [model.layer(i) for i in range(len(model.blocks))]
        self._changing = changing
        matrices = [list(layer.matrices.values()) for layer in self._layers]
        if drop:
            drop_maps(chain(model.tables, *matrices))
        self._stretches = [self._among(layer) for layer in matrices]

    @contextmanager
    def layer(self, index: int, then: int | None = None) -> Iterator[LayerWeights]:
        if then is not None and 0 <= then < len(self._layers):
            self._expect(self._stretches[then])
        weights = self.model.layer(index) if self._changing else self._layers[index]
        if self._by_matrix:  # pages that its norms mapped are dropped before the matrices are read
            weights = copied(weights)
            self._drop_around(self._stretches[index])
        try:
            yield weights
        finally:
            self._drop_around(self._stretches[index])

    @contextmanager
    def rows(self, stored: Matrix, first: int, last: int) -> Iterator[Matrix]:
        part = stored.rows_between(first, last)
        following = min(stored.rows, 2 * last - first)
        if following > last:
            self._expect(self._among([stored.rows_between(last, following)]))
        try:
            yield part
        finally:
            self._drop_around(self._among([part]))

    def gather(self, stored: Matrix, ids: NDArray[np.int32], out: Array) -> None:
        if not self._drop:
            check_ids(ids, stored.rows)
            self._device.gather_rows(stored, ids, out)
            return
        if stored is self.model.tables[-1] and not self._head_read:
            self._head_read = True
            self._read_in_order(stored)
        self._scattered.gather(stored, ids, out)

    def release(self, matrix: Handle) -> None:
        if self._by_matrix:
            self._device.release(matrix, FOLIO)

    def close(self) -> None:
        self._ahead.close()
        self._scattered.close()
        self._files.close()

    def _among(self, matrices: list[Matrix]) -> list[Stretch]:
        """The stretches that are read ahead and dropped, neighbours together: each call to the system has its price."""
        return [_stretch(run) for run in runs(matrices, FOLIO)] if self._drop else []

    def _expect(self, stretches: list[Stretch]) -> None:
        for path, file, begin, end in stretches:
            if (path, begin) not in self._read:
                self._read.add((path, begin))
                self._ahead.file(self._files[path], begin, end - begin)
            elif self._cache_is_short():
                self._ahead.map(file[begin:end])

    def _read_in_order(self, stored: Matrix) -> None:
        """Read in order, a file is cached in large pieces, which map faster than the pages of scattered rows."""
        piece = np.empty(READ, np.uint8)
        for start in range(stored.offset, stored.offset + stored.nbytes, READ):
            part = piece[: stored.offset + stored.nbytes - start]
            read_exactly(self._files[stored.home], stored.home, part, start)

    def _cache_is_short(self) -> bool:
        """Whether a page had to come from the disk lately, though all had been read: else a hint is wasted."""
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        if faults != self._faults:
            self._faults, self._hints = faults, 2 * len(self._layers)
        self._hints -= 1
        return self._hints >= 0

    def _drop_around(self, stretches: list[Stretch]) -> None:
        """Drop stretches, and what the system mapped around them: touching a page can map a whole FOLIO of its file."""
        for _, file, begin, end in stretches:
            kernels.drop_pages(file[max(0, begin - FOLIO) : end + FOLIO])


def mapped(matrices: Iterable[Matrix]) -> int:
    """Bytes of the file that may be mapped while these matrices are in use: every FOLIO that they touch."""
    stretches = (_stretch(run) for run in runs(matrices, FOLIO))
    return sum((-(-end // FOLIO) - begin // FOLIO) * FOLIO for _, _, begin, end in stretches)


def _stretch(run: list[Matrix]) -> Stretch:
    first, last, file = run[0], run[-1], run[0].data.base
    assert isinstance(file, np.ndarray)
    return first.home, file, first.offset, last.offset + last.nbytes
