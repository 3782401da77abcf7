"""Map only the pages of the layer in use. The next layer is read ahead, and the previous one is dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback.core.system import machine
from featherback.engine import kernels
from featherback.engine.backend.protocol import Array, Backend, Handle
from featherback.engine.formats.mapping import FOLIO
from featherback.engine.formats.matrix import LayerWeights, Matrix
from featherback.engine.host.expert_pages import ExpertPages
from featherback.engine.host.positioned import read_exactly
from featherback.engine.host.reading import OpenFiles, Weights, copied, drop_maps, plain, runs, without_stacks
from featherback.engine.host.scattered import ScatteredRows, check_ids

READ = 64 << 10
"""Bytes read at once to bring them into the page cache."""
Stretch = tuple[Path, NDArray[np.uint8], int, int]
"""A file, its map, and [begin, end) in it."""


class WeightPager:
    """Weights that stay mapped ("resident"), or are unmapped after use while the next ones are read ahead.

    "paged" unmaps a layer after it was used; "by_matrix" also unmaps each matrix, or rows of it, when `release` is
    called.
    """

    def __init__(self, model: Weights, device: Backend, weights: str, changing: bool = False) -> None:
        """`changing`: the file's content may have changed each time a layer is requested."""
        drop = weights != "resident"
        self._by_matrix = weights == "by_matrix"
        self.model, self._device, self._drop, self._scattered = model, device, drop, ScatteredRows(device)
        self._files, self._read = OpenFiles(plain), set[tuple[Path, int]]()
        self._ahead = kernels.ReadAhead()
        self._head_read = False
        self._faults, self._hints = 0, 0  # major faults so far, and how many more hints they justify
        self._layers = [model.layer(i) for i in range(len(model.blocks))]
        self._changing = changing
        self._experts, self._current = ExpertPages(device, resident=not drop), 0
        if drop:
            drop_maps(chain(model.tables, *(layer.matrices.values() for layer in self._layers)))
        matrices = [without_stacks(model, index, layer) for index, layer in enumerate(self._layers)]
        self._stretches = [self._stretches_of(layer) for layer in matrices]

    @contextmanager
    def layer(self, index: int, then: int | None = None) -> Iterator[LayerWeights]:
        """Yield the weights of a layer, and read layer `then` ahead. The end of the context unmaps the layer."""
        if then is not None and 0 <= then < len(self._layers):
            self._read_ahead(self._stretches[then])
        self._current = index
        weights = self.model.layer(index) if self._changing else self._layers[index]
        if self._by_matrix:  # pages that reading the norms mapped are dropped before the matrices are read
            weights = copied(weights)
            self._drop_around(self._stretches[index])
        try:
            yield weights
        finally:
            self._drop_around(self._stretches[index])

    @contextmanager
    def rows(self, stored: Matrix, first: int, last: int) -> Iterator[Matrix]:
        """Yield rows [first, last) of the head, and read the following rows ahead. The end unmaps them."""
        part = stored.rows_between(first, last)
        following = min(stored.rows, 2 * last - first)
        if following > last:
            self._read_ahead(self._stretches_of([stored.rows_between(last, following)]))
        try:
            yield part
        finally:
            self._drop_around(self._stretches_of([part]))

    def gather(self, stored: Matrix, ids: NDArray[np.int32], out: Array) -> None:
        """out (n, D) = rows `ids`, dequantised."""
        if not self._drop:
            check_ids(ids, stored.rows)
            self._device.gather_rows(stored, ids, out)
            return
        if stored is self.model.tables[-1] and not self._head_read:
            self._head_read = True
            self._read_in_order(stored)
        self._scattered.gather(stored, ids, out)

    def release(self, matrix: Handle) -> None:
        """Unmap a used weight, or rows of it, if the pager works by matrix."""
        if self._by_matrix:
            self._device.release(matrix, FOLIO)

    def expect(self, name: str, first: int, last: int) -> None:
        """Start reading rows [first, last) of a stack of the layer in use."""
        self._experts.expect(self._layers[self._current].matrices[name].rows_between(first, last))

    def release_expert(self, matrix: Handle) -> None:
        """Unmap a used expert, or a part of it, unless all weights stay mapped."""
        self._experts.release(matrix)

    def close(self) -> None:
        """End reading ahead, and close the files."""
        self._ahead.close()
        self._experts.close()
        self._scattered.close()
        self._files.close()

    def _stretches_of(self, matrices: list[Matrix]) -> list[Stretch]:
        """Return the stretches to read ahead and drop. Neighbours are joined, because each system call has a cost."""
        return [_stretch(run) for run in runs(matrices, FOLIO)] if self._drop else []

    def _read_ahead(self, stretches: list[Stretch]) -> None:
        for path, file, begin, end in stretches:
            if (path, begin) not in self._read:
                self._read.add((path, begin))
                self._ahead.file(self._files[path], begin, end - begin)
            elif self._cache_is_short():
                self._ahead.map(file[begin:end])

    def _read_in_order(self, stored: Matrix) -> None:
        """Read the matrix in order.

        Then its file is cached in large pieces, which map faster than pages of scattered rows.
        """
        piece = np.empty(READ, np.uint8)
        for start in range(stored.offset, stored.offset + stored.nbytes, READ):
            part = piece[: stored.offset + stored.nbytes - start]
            read_exactly(self._files[stored.home], stored.home, part, start)

    def _cache_is_short(self) -> bool:
        """Return whether a page recently had to come from the disk although all had been read.

        If not, reading ahead would be wasted.
        """
        faults = machine.disk_reads()
        if faults != self._faults:
            self._faults, self._hints = faults, 2 * len(self._layers)
        self._hints -= 1
        return self._hints >= 0

    def _drop_around(self, stretches: list[Stretch]) -> None:
        """Drop stretches, and the pages that the system mapped around them: one access can map a FOLIO of a file."""
        for _, file, begin, end in stretches:
            kernels.drop_pages(file[max(0, begin - FOLIO) : end + FOLIO])


def mapped(matrices: Iterable[Matrix]) -> int:
    """Return how many bytes of a file may be mapped while these matrices are in use: every FOLIO that they touch."""
    stretches = (_stretch(run) for run in runs(matrices, FOLIO))
    return sum((-(-end // FOLIO) - begin // FOLIO) * FOLIO for _, _, begin, end in stretches)


def _stretch(run: list[Matrix]) -> Stretch:
    first, last, file = run[0], run[-1], run[0].data.base
    assert isinstance(file, np.ndarray)
    return first.home, file, first.offset, last.offset + last.nbytes
