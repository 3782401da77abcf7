"""Weights read past the system's page cache, for a machine whose memory cannot also hold the model's file.

On such a machine, a mapped page that is dropped must come from the disk again, page by page, and the cache drops the
very pages that were read ahead. Here two buffers alternate: one is in use while a thread fills the other, with reads of
megabytes that bypass the cache (O_DIRECT on Linux, F_NOCACHE on macOS).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.arena import Arena
from featherback.engine.backend.protocol import Array, Backend, Handle
from featherback.engine.formats.matrix import LayerWeights, Matrix
from featherback.engine.host.expert_pages import ExpertPages
from featherback.engine.host.positioned import read_exactly
from featherback.engine.host.reading import BLOCK, OpenFiles, Weights, direct, layers_without_map, runs, without_stacks
from featherback.engine.host.scattered import ScatteredRows

Bytes = NDArray[np.uint8]


class WeightStream:
    """Provides a model's weights from two buffers. `rows`: the most rows of the head that are requested at once.

    Raises FeatherbackError if the file cannot be read.
    """

    def __init__(self, model: Weights, device: Backend, rows: int) -> None:
        self.model = model
        self._layers = layers_without_map(model)
        self._files, self._scattered = OpenFiles(direct), ScatteredRows(device)
        self._whole = [without_stacks(model, index, weights) for index, weights in enumerate(self._layers)]
        self._experts, self._current = ExpertPages(device, resident=False), 0
        size = buffer_bytes(self._whole, model.tables[-1], rows)
        memories = [Arena(size).take("streamed weights", (size,), np.uint8) for _ in range(2)]
        self._buffers = [Buffer(memory, self._files) for memory in memories]
        self._last = self._buffers[0]

    @contextmanager
    def layer(self, index: int, then: int | None = None) -> Iterator[LayerWeights]:
        """Yield the weights of a layer in a buffer, and start reading layer `then`."""
        weights, stored = self._layers[index], self._whole[index]
        self._current = index
        held = dict(zip(map(id, stored), self._buffered(stored), strict=True))
        if then is not None and 0 <= then < len(self._layers):
            self._read_ahead(self._whole[then])
        yield weights.with_matrices({name: held.get(id(m), m) for name, m in weights.matrices.items()})

    @contextmanager
    def rows(self, stored: Matrix, first: int, last: int) -> Iterator[Matrix]:
        """Yield rows [first, last) of the head in a buffer, and start reading the following rows."""
        (held,) = self._buffered((stored.rows_between(first, last),))
        following = min(stored.rows, 2 * last - first)
        if following > last:
            self._read_ahead((stored.rows_between(last, following),))
        yield held

    def gather(self, stored: Matrix, ids: NDArray[np.int32], out: Array) -> None:
        """out (n, D) = rows `ids`, dequantised."""
        self._scattered.gather(stored, ids, out)

    def release(self, matrix: Handle) -> None:
        """Do nothing: the buffers stay allocated."""

    def expect(self, name: str, first: int, last: int) -> None:
        """Start reading rows [first, last) of a stack of the layer in use. Experts are mapped, not streamed."""
        self._experts.expect(self._layers[self._current].matrices[name].rows_between(first, last))

    def release_expert(self, matrix: Handle) -> None:
        """Unmap a used expert, or a part of it."""
        self._experts.release(matrix)

    def close(self) -> None:
        """End the threads, and close the files."""
        for buffer in self._buffers:
            buffer.close()
        self._experts.close()
        self._files.close()
        self._scattered.close()

    def _buffered(self, matrices: Sequence[Matrix]) -> list[Matrix]:
        """Return these matrices in a buffer, which becomes the one in use."""
        found = next((b for b in self._buffers if b.holds(matrices)), None)
        self._last = found or self._spare()
        if found is None:
            self._last.fill(matrices)
        return self._last.take()

    def _read_ahead(self, matrices: Sequence[Matrix]) -> None:
        """Start filling the buffer that is not in use."""
        if not any(buffer.holds(matrices) for buffer in self._buffers):
            self._spare().fill(matrices)

    def _spare(self) -> Buffer:
        return next(buffer for buffer in self._buffers if buffer is not self._last)


class Buffer:
    """Memory (bytes,), aligned to blocks, that its own thread fills."""

    def __init__(self, memory: Bytes, files: OpenFiles) -> None:
        self._memory, self._files = memory, files
        self._content: list[Matrix] = []
        self._held: list[Matrix] = []
        self._error: BaseException | None = None
        self._wanted, self._ready = threading.Semaphore(0), threading.Event()
        self._ready.set()
        self._closing = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def holds(self, matrices: Sequence[Matrix]) -> bool:
        """Return whether the buffer was last filled with these matrices."""
        wanted = [(m.file, m.offset, m.nbytes) for m in matrices]
        return [(m.file, m.offset, m.nbytes) for m in self._content] == wanted

    def fill(self, matrices: Sequence[Matrix]) -> None:
        """Start reading the matrices. The previous content is lost, and so is an error that nobody waited for."""
        if self._closing:
            raise ValueError("the stream is closed")
        self._ready.wait()
        self._content, self._error = list(matrices), None
        self._ready.clear()
        self._wanted.release()

    def take(self) -> list[Matrix]:
        """Wait until the matrices are read, and return them."""
        self._ready.wait()
        if self._error is not None:
            self._content, error, self._error = [], self._error, None
            raise error
        return self._held

    def close(self) -> None:
        """End the thread. Matrices that were taken stay valid while they are referenced."""
        self._closing = True
        self._wanted.release()
        self._thread.join()

    def _work(self) -> None:
        while True:
            self._wanted.acquire()
            if self._closing:
                return
            try:
                self._held = self._read()
            except Exception as error:  # raised again in `take`
                self._error = error
            self._ready.set()

    def _read(self) -> list[Matrix]:
        held: dict[int, Matrix] = {}
        used = 0
        for run in runs(self._content):
            begin, end = whole_blocks(run)
            needed = max(m.offset + m.nbytes for m in run) - begin
            target = self._memory[used : used + end - begin]
            read_exactly(self._files[run[0].home], run[0].home, target, begin, needed)
            for m in run:
                at = used + m.offset - begin
                held[id(m)] = replace(m, data=self._memory[at : at + m.nbytes])
            used += end - begin
        return [held[id(m)] for m in self._content]


def buffer_bytes(layers: Sequence[Sequence[Matrix]], head: Matrix, rows: int) -> int:
    """Return the bytes of one buffer: the largest layer, or `rows` rows of the head, in whole blocks of the file."""
    sizes = [sum(end - begin for begin, end in map(whole_blocks, runs(layer))) for layer in layers]
    return max(*sizes, min(rows, head.rows) * head.row_bytes + 2 * BLOCK)


def whole_blocks(run: Sequence[Matrix]) -> tuple[int, int]:
    """Return [begin, end) of a run in its file, extended to whole blocks."""
    end = max(m.offset + m.nbytes for m in run)
    return run[0].offset // BLOCK * BLOCK, -(-end // BLOCK) * BLOCK
