"""A model's weights in training, and their optimiser states, in files. Only a few rows are in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from featherback.core import private
from featherback.core.files import atomic_file, open_regular
from featherback.engine.formats.types import TensorType
from featherback.engine.host.positioned import read_exactly, write_exactly
from featherback.errors import FeatherbackError
from featherback.methods.whole.trained_weights import WeightId
from featherback.models.model import Model
from featherback.nn.context import Context
from featherback.optim.rule import Rule

Float32 = NDArray[np.float32]
_PURPOSE = crc32(b"rounding")


class WeightFiles:
    """The weights of a model whose files belong to the run: BF16 with stochastic rounding, or F32.

    Rounding goes up or down with the probabilities that preserve the mean (Gupta et al., ICML 2015, section 3). Most
    steps are smaller than the distance between two BF16 numbers, and rounding to nearest would drop them. The random
    numbers depend only on the seed, the step, the weight and the position in it.
    """

    def __init__(self, model: Model, seed: int, numbers: Mapping[WeightId, int]) -> None:
        self._model, self._seed, self._numbers = model, seed, numbers
        self._files: dict[Path, int] = {}
        for path in model.files:
            try:
                with private.open_to_change(path) as file:
                    self._files[path] = os.dup(file.fileno())
            except OSError as error:
                raise FeatherbackError(f"Cannot write {path}: {error.strerror}.") from error

    def read(self, ctx: Context, weight: WeightId, rows: slice, out: Float32) -> None:
        """Read rows of a weight into `out` (n, cols)."""
        file, kind, offset = self._find(weight, rows, out.shape[1])
        with self._raw(ctx, kind, out) as raw:
            with ctx.backend.host(raw, write=True) as values:
                read_exactly(self._files[file], file, values, offset)
            if raw is not out:
                ctx.ops.cast(raw, out)

    def write(self, ctx: Context, weight: WeightId, rows: slice, values: Float32, step: int) -> None:
        """Store values (n, cols) after the optimiser's step `step`."""
        file, kind, offset = self._find(weight, rows, values.shape[1])
        with self._raw(ctx, kind, values) as raw:
            if raw is not values:
                key = (_PURPOSE, self._seed, step, self._numbers[weight])
                ctx.ops.round_at_random(values, key, rows.start, raw)
            with ctx.backend.host(raw) as stored:
                write_exactly(self._files[file], file, stored, offset)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _find(self, weight: WeightId, rows: slice, cols: int) -> tuple[Path, TensorType, int]:
        """Return file, type and byte offset of rows of a weight."""
        name, store = self._model.stored_name(weight.part, weight.layer), self._model.store
        info = store.tensors[name]
        element = weight.first_row + rows.start * cols  # for a vector, first_row counts elements
        if len(info.shape) > 1:
            element = (weight.first_row + rows.start) * cols
        return store.file_of(name), info.type, info.offset + element * info.type.block_bytes

    @contextmanager
    def _raw(self, ctx: Context, kind: TensorType, values: Float32) -> Iterator[NDArray[Any]]:
        """Provide an array for values in their stored type; the values' own array if they are stored as float32."""
        if kind is TensorType.F32:
            yield values
            return
        with ctx.frame():
            yield ctx.scratch.take("weights, stored", values.shape, np.uint16)


class StateFile:
    """The optimiser states of every weight, flat and one after the other. They start as zeros."""

    def __init__(
        self, rule: Rule, weights: Iterable[tuple[WeightId, tuple[int, int]]], path: Path | None = None
    ) -> None:
        """`path`: the file for the states, created or overwritten. None: in RAM."""
        self.path, self._parts, self.size = path, dict[tuple[WeightId, str], tuple[int, int]](), 0
        for weight, shape in weights:
            for name, size in rule.state_sizes(shape, weight.role).items():
                self._parts[weight, name] = self.size, size
                self.size += size
        self._file: int | None = None
        self._held = np.zeros(self.size if path is None else 0, np.float32)
        if path is not None:
            with private.create_anew(path) as file:
                self._file = os.dup(file.fileno())
            os.ftruncate(self._file, self.size * 4)

    @contextmanager
    def part(self, ctx: Context, weight: WeightId, name: str, first: int, count: int | None) -> Iterator[Float32]:
        """Provide elements of a state, flat, for changing in place."""
        start, size = self._parts[weight, name]
        count = size - first if count is None else count
        if self._file is None or self.path is None:
            with ctx.backend.held(self._held[start + first : start + first + count], changing=True) as values:
                yield values
            return
        with ctx.frame():
            values = ctx.floats(name, count)
            with ctx.backend.host(values, write=True) as there:
                read_exactly(self._file, self.path, there, 4 * (start + first))
            yield values
            with ctx.backend.host(values) as there:
                write_exactly(self._file, self.path, there, 4 * (start + first))

    def load(self, path: Path) -> None:
        """Load states that are in RAM from a file written by `keep`."""
        if self._file is None:
            with open_regular(path) as file:
                if self.size:
                    read_exactly(file.fileno(), path, self._held, 0)

    def keep(self, path: Path) -> None:
        """Write states that are in RAM to a file."""
        with atomic_file(path) as file:
            file.write(self._held.data)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
