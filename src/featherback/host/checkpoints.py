"""The inputs of the blocks, kept from the forward pass to the backward pass."""

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
    """One (T, D) array a layer, bf16 (uint16) or float32; in RAM (`folder` None) or in an unnamed file of `folder`."""

    def __init__(
        self, layers: int, max_tokens: int, width: int, dtype: np.dtype[Any], folder: Path | None
    ) -> None:
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

    def save(self, layer: int, x: NDArray[np.float32], scratch: NDArray[Any]) -> None:
        """Keep `x` (T, D) as the input of `layer`; `scratch` (T, D) of the checkpoints' type is overwritten."""
        if self._arrays is not None:
            kernels.cast(x, self._arrays[layer, : len(x)])
            return
        if self._dtype != x.dtype:
            kernels.cast(x, scratch)
            x = scratch
        try:
            write_at(self._descriptor(), x, layer * self._slot)
        except OSError as error:
            raise FeatherbackError(
                f"Cannot write the checkpoint of layer {layer}: {error.strerror}."
            ) from error

    def load(self, layer: int, out: NDArray[Any]) -> None:
        """Copy the input of `layer` into `out` (T, D), of the checkpoints' type."""
        if self._arrays is not None:
            out[...] = self._arrays[layer, : len(out)]
        elif not read_at(self._descriptor(), out, layer * self._slot):
            raise FeatherbackError(f"The checkpoint of layer {layer} could not be read back whole.")

    def close(self) -> None:
        """Give the space back."""
        self._arrays = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _descriptor(self) -> int:
        if self._file is None:
            raise ValueError("the checkpoints are closed")
        return self._file.fileno()
