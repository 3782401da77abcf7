"""Rows per token that wait outside the scratch memory: the inputs of the blocks, a residual stream in chunks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.errors import FeatherbackError
from featherback.host.positioned import read_at, write_at


class Checkpoints:
    """One (T, D) array per layer, bf16 (uint16) or float32; in RAM (`folder` None) or an unnamed file of `folder`."""

    def __init__(self, layers: int, max_tokens: int, width: int, dtype: np.dtype[Any], folder: Path | None) -> None:
        self._dtype, self._width = dtype, width
        self._slot = max_tokens * width * dtype.itemsize
        self._file = None
        self._arrays: NDArray[Any] | None = None
        if folder is None:
            self._arrays = np.empty((layers, max_tokens, width), dtype)
            return
        try:
            self._file = tempfile.TemporaryFile(dir=folder, prefix="checkpoints-")  # noqa: SIM115 - kept open
            os.ftruncate(self._file.fileno(), layers * self._slot)
        except OSError as error:
            raise FeatherbackError(f"Cannot keep checkpoints in {folder}: {error.strerror}.") from error

    def save(self, layer: int, x: NDArray[np.float32], first: int, scratch: NDArray[Any]) -> None:
        """Keep `x` (T, D) as rows [first, first + T) of `layer`; `scratch` (T, D) of this type may be overwritten."""
        if self._arrays is not None:
            kernels.cast(x, self._arrays[layer, first : first + len(x)])
            return
        if self._dtype != x.dtype:
            kernels.cast(x, scratch)
            x = scratch
        try:
            write_at(self._descriptor(), x, self._offset(layer, first))
        except OSError as error:
            raise FeatherbackError(f"Cannot write the checkpoint of layer {layer}: {error.strerror}.") from error

    def load(self, layer: int, out: NDArray[Any], first: int) -> None:
        """Copy rows [first, first + T) of `layer` into `out` (T, D), of the checkpoints' type."""
        if self._arrays is not None:
            out[...] = self._arrays[layer, first : first + len(out)]
        elif not read_at(self._descriptor(), out, self._offset(layer, first)):
            raise FeatherbackError(f"The checkpoint of layer {layer} could not be read back whole.")

    def close(self) -> None:
        """Give the space back."""
        self._arrays = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _offset(self, layer: int, first: int) -> int:
        return layer * self._slot + first * self._width * self._dtype.itemsize

    def _descriptor(self) -> int:
        if self._file is None:
            raise ValueError("the checkpoints are closed")
        return self._file.fileno()
