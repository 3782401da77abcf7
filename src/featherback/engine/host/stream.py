"""Weights read past the system's page cache, for a machine whose memory cannot hold the model's file as well.

There, a mapped page that is dropped must come from the disk again, page by page, and the cache throws out the very
pages that were read ahead. Here two buffers take turns: one is in use while a thread fills the other, in reads of
megabytes that the cache never sees (O_DIRECT on Linux, F_NOCACHE on macOS).
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
from featherback.engine.host.positioned import read_exactly
from featherback.engine.host.reading import BLOCK, OpenFiles, Weights, direct, runs, without_map
from featherback.engine.host.scattered import ScatteredRows

Bytes = NDArray[np.uint8]


class WeightStream:
    """Hands out a model's weights from two buffers; `rows`: most rows of the head that are asked for at once.

    FeatherbackError if the file cannot be read.
    """

    def __init__(self, model: Weights, device: Backend, rows: int) -> None:
        self.model = model
        self._layers = without_map(model)
        self._files, self._scattered = OpenFiles(direct), ScatteredRows(device)
        size = buffer_bytes([list(weights.matrices.values()) for weights in self._layers], model.tables[-1], rows)
        memories = [Arena(size).take("streamed weights", (size,), np.uint8) for _ in range(2)]
        self._buffers = [Buffer(memory, self._files) for memory in memories]
        self._last = self._buffers[0]

    @contextmanager
    def layer(self, index: int, then: int | None = None) -> Iterator[LayerWeights]:
        weights = self._layers[index]
        names, matrices = zip(*weights.matrices.items(), strict=True)
        held = self._hold(matrices)
        if then is not None and 0 <= then < len(self._layers):
            self._expect(tuple(self._layers[then].matrices.values()))
        yield weights.with_matrices(dict(zip(names, held, strict=True)))

    @contextmanager
    def rows(self, stored: Matrix, first: int, last: int) -> Iterator[Matrix]:
        (held,) = self._hold((stored.rows_between(first, last),))
        following = min(stored.rows, 2 * last - first)
        if following > last:
            self._expect((stored.rows_between(last, following),))
        yield held

    def gather(self, stored: Matrix, ids: NDArray[np.int32], out: Array) -> None:
        self._scattered.gather(stored, ids, out)

    def release(self, matrix: Handle) -> None:
        """Nothing: buffers stay."""

    def close(self) -> None:
        for buffer in self._buffers:
            buffer.close()
        self._files.close()
        self._scattered.close()

    def _hold(self, matrices: Sequence[Matrix]) -> list[Matrix]:
        """These matrices in a buffer, which is then the one in use."""
        found = next((b for b in self._buffers if b.holds(matrices)), None)
        self._last = found or self._spare()
        if found is None:
            self._last.fill(matrices)
        return self._last.take()

    def _expect(self, matrices: Sequence[Matrix]) -> None:
        """Fill the buffer that is not in use."""
        if not any(buffer.holds(matrices) for buffer in self._buffers):
            self._spare().fill(matrices)

    def _spare(self) -> Buffer:
        return next(buffer for buffer in self._buffers if buffer is not self._last)


class Buffer:
    """Memory (bytes,), aligned to blocks, that a thread of its own fills."""

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
        """Whether these are what it was last filled with."""
        wanted = [(m.file, m.offset, m.nbytes) for m in matrices]
        return [(m.file, m.offset, m.nbytes) for m in self._content] == wanted

    def fill(self, matrices: Sequence[Matrix]) -> None:
        """Begin to read them; the earlier content is lost, and so is the error of a read that was not waited for."""
        if self._closing:
            raise ValueError("the stream is closed")
        self._ready.wait()
        self._content, self._error = list(matrices), None
        self._ready.clear()
        self._wanted.release()

    def take(self) -> list[Matrix]:
        """The matrices, once they are read."""
        self._ready.wait()
        if self._error is not None:
            self._content, error, self._error = [], self._error, None
            raise error
        return self._held

    def close(self) -> None:
        """End the thread; matrices taken stay valid until they die."""
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
            except Exception as error:  # raised where the data are waited for
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
    """Bytes of one buffer: the largest layer, or that many rows of the head, from block to block of the file."""
    sizes = [sum(end - begin for begin, end in map(whole_blocks, runs(layer))) for layer in layers]
    return max(*sizes, min(rows, head.rows) * head.row_bytes + 2 * BLOCK)


def whole_blocks(run: Sequence[Matrix]) -> tuple[int, int]:
    """[begin, end) of a run in its file, outwards to whole blocks."""
    end = max(m.offset + m.nbytes for m in run)
    return run[0].offset // BLOCK * BLOCK, -(-end // BLOCK) * BLOCK
