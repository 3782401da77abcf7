"""Arrays with a row per token outside the scratch memory: the blocks' inputs, and a residual stream in chunks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from featherback.engine.backend.arena import aligned
from featherback.engine.backend.protocol import Array, Backend
from featherback.engine.host.positioned import read_at, write_at
from featherback.errors import FeatherbackError


class Checkpoints:
    """One (T, D) array per layer, bf16 (uint16) or float32.

    They are in the device's memory (`folder` None) or in an unnamed file in `folder`.
    """

    def __init__(
        self, device: Backend, layers: int, max_tokens: int, width: int, dtype: np.dtype[Any], folder: Path | None
    ) -> None:
        self._device, self._dtype, self._width = device, dtype, width
        self._slot = max_tokens * width * dtype.itemsize
        self._file = None
        self._arrays: list[Array] = []
        if folder is None:
            self._memory = device.arena(layers * aligned((max_tokens, width), dtype))
            with self._memory.frame():  # the arrays live on: nothing else is allocated
                self._arrays = [self._memory.take("checkpoint", (max_tokens, width), dtype) for _ in range(layers)]
            return
        try:
            self._file = tempfile.TemporaryFile(dir=folder, prefix="checkpoints-")  # noqa: SIM115 - kept open
            os.ftruncate(self._file.fileno(), layers * self._slot)
        except OSError as error:
            raise FeatherbackError(f"Cannot keep checkpoints in {folder}: {error.strerror}.") from error

    def save(self, layer: int, x: Array, first: int, scratch: Array) -> None:
        """Store `x` (T, D) as rows [first, first + T) of `layer`.

        `scratch` (T, D), of this type, may be overwritten.
        """
        if self._arrays:
            self._device.ops.cast(x, self._arrays[layer][first : first + len(x)])
            return
        if self._dtype != x.dtype:
            self._device.ops.cast(x, scratch)
            x = scratch
        try:
            with self._device.host(x) as values:
                write_at(self._descriptor(), values, self._offset(layer, first))
        except OSError as error:
            raise FeatherbackError(f"Cannot write the checkpoint of layer {layer}: {error.strerror}.") from error

    def load(self, layer: int, out: Array, first: int) -> None:
        """Copy rows [first, first + T) of `layer` into `out` (T, D), which has the checkpoints' type."""
        if self._arrays:
            self._device.ops.cast(self._arrays[layer][first : first + len(out)], out)
            return
        with self._device.host(out, write=True) as values:
            whole = read_at(self._descriptor(), values, self._offset(layer, first))
        if not whole:
            raise FeatherbackError(f"The checkpoint of layer {layer} could not be read back completely.")

    def release(self) -> None:
        """Free the memory of all rows until rows are stored again."""
        if self._arrays:
            self._memory.release()

    def close(self) -> None:
        """Free the space."""
        self._arrays = []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _offset(self, layer: int, first: int) -> int:
        return layer * self._slot + first * self._width * self._dtype.itemsize

    def _descriptor(self) -> int:
        if self._file is None:
            raise ValueError("the checkpoints are closed")
        return self._file.fileno()
