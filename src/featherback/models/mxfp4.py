"""Folders of gpt-oss with experts in MXFP4: blocks of 32 weights, w = 2^(scale - 127) * number, of 4 bits each.

NAME_blocks (E, out, in / 32, 16), bytes, holds two weights in each byte, the first in the lower half. NAME_scales
(E, out, in / 32), bytes, holds the exponents. The kernels' type MXFP4 has the same numbers and exponents, with the
first 16 weights of a block in the lower halves, so every weight stays what it is.
(https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.quantize import mxfp4_blocks
from featherback.engine.formats.safetensors import CONFIG, SafetensorsFolder
from featherback.engine.formats.store import matrix
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.errors import FeatherbackError
from featherback.models.streams import picked, row_blocks, unmap_pages

TITLE = "in MXFP4"
ENTRY, METHOD = "quantization_config", "mxfp4"
BLOCKS, SCALES = "_blocks", "_scales"
BYTES = 16
"""Bytes of the weights of a block."""
SIZE = TensorType.MXFP4.block_size

Bytes = NDArray[np.uint8]


def take(entries: dict[str, Any], path: Path) -> object:
    """Remove the entry of this quantisation from a config.json and return it; None if there is none."""
    entry = entries.get(ENTRY)
    if not isinstance(entry, dict) or entry.get("quant_method") != METHOD:
        return None
    del entries[ENTRY]
    return entry


class MXFP4Folder:
    """The weights of a folder. `tensors` lists NAME_blocks and NAME_scales as the stack NAME (E, out, in)."""

    label = "mxfp4"

    def __init__(self, path: Path) -> None:
        """Open a folder. Raises FeatherbackError if blocks and scales do not fit each other."""
        self.path = path
        self.store = SafetensorsFolder(path, packed=("U8",))
        try:
            stacks = {name.removesuffix(BLOCKS) for name in self.store.words if name.endswith(BLOCKS)}
            self._packed = {name: self._matched(name) for name in stacks}
            parts = {name + end for name in stacks for end in (BLOCKS, SCALES)}
            if rest := self.store.words - parts:
                raise FeatherbackError(f"Tensor {min(rest)} of {path} has the type 'U8', but no {BLOCKS} beside it.")
        except BaseException:
            self.store.close()
            raise
        floats = {name: info for name, info in self.store.tensors.items() if name not in parts}
        self.tensors: Mapping[str, TensorInfo] = {**floats, **self._packed}

    def kind(self, name: str) -> TensorType:
        """The type of the rows of a tensor."""
        return self.tensors[name].type

    def rows(self, name: str, wanted: range) -> Iterator[Matrix]:
        """Yield rows of a tensor, a few at a time, and unmap their pages."""
        if name not in self._packed:
            yield from picked(matrix(self.store, name), wanted)
            return
        cols = self._packed[name].shape[-1]
        height = prod(self._packed[name].shape[:-1])
        blocks, scales = self.store.data(name + BLOCKS), self.store.data(name + SCALES)
        for first, last in row_blocks(len(wanted), cols):
            some = wanted[first:last]
            part = slice(some.start, some.stop, some.step)
            yield packed_rows(blocks.reshape(height, -1)[part], scales.reshape(height, -1)[part])
            unmap_pages(blocks, scales)

    def close(self) -> None:
        """Close the files."""
        self.store.close()

    def _matched(self, name: str) -> TensorInfo:
        """The stack of blocks and scales."""
        blocks, scales = self.store.tensors[name + BLOCKS], self.store.tensors.get(name + SCALES)
        *lead, count, width = blocks.shape  # words of four bytes
        if scales is None or len(blocks.shape) != 4 or width * 4 != BYTES or scales.nbytes * BYTES != blocks.nbytes:
            found = "is missing" if scales is None else f"has {scales.nbytes} bytes"
            raise FeatherbackError(
                f"Tensor {name}{SCALES} of {self.path} {found}; the blocks of {BYTES} bytes in {name}{BLOCKS}, "
                f"{blocks.nbytes} bytes, need one byte each. See {self.path / CONFIG}."
            )
        shape = (*lead, count * SIZE)
        nbytes = prod(lead) * TensorType.MXFP4.row_bytes(shape[-1])
        return TensorInfo(name, TensorType.MXFP4, shape, blocks.offset, nbytes)


def packed_rows(blocks: Bytes, scales: Bytes) -> Matrix:
    """Return MXFP4 rows from blocks (rows, n * 16) and exponents (rows, n)."""
    rows, count = scales.shape
    data = mxfp4_blocks(scales.reshape(-1, 1), blocks.reshape(-1, BYTES))
    return Matrix(data.reshape(-1), TensorType.MXFP4, rows, count * SIZE)
