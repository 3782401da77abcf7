"""Write a GGUF model with an adapter merged into it. All other tensors are copied.

Matrices of Featherback's own type TERNARY become TQ2_0, or F16 if it cannot hold them. TQ2_0 needs rows of whole blocks
of 256 weights that share one scale. The scale is rounded to float16 in both types, which changes a weight by at most
one part in 2048.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback.core.files import check_free_space
from featherback.engine.formats.gguf import DEFAULT_ALIGNMENT, GGUFFile
from featherback.engine.formats.mapping import reading
from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.quantize import quantize, tq2_0_blocks
from featherback.engine.formats.store import TensorStore, matrix
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.engine.formats.writer import OutTensor, Value, file_bytes, write_gguf
from featherback.exports.merging import Merge
from featherback.models.adapter import Adapter
from featherback.models.form import LayerTarget
from featherback.models.streams import copied, floats_of, row_blocks, unmap_pages

FILE_TYPES = {
    TensorType.F32: 0, TensorType.F16: 1, TensorType.Q4_0: 2, TensorType.Q4_1: 3, TensorType.Q8_0: 7,
    TensorType.Q5_0: 8, TensorType.Q5_1: 9, TensorType.BF16: 32,
}  # fmt: skip
"""Type of most weights -> general.file_type."""
_FILE_TYPE, _ALIGNMENT = "general.file_type", "general.alignment"


class MergedGGUF:
    """A GGUF file to be written. `kind`: the type of merged matrices; None: types that keep enough of the update."""

    def __init__(self, adapter: Adapter, kind: TensorType | None = None) -> None:
        self.adapter, model = adapter, adapter.model
        self.merge = Merge(adapter)
        self.types: Counter[TensorType] = Counter()
        """Type -> number of merged matrices."""
        merged = {
            model.naming.tensors[target].format(layer): (layer, target)
            for layer in range(len(model.blocks))
            for target in adapter.layout.kinds(layer)
        }
        self._tensors = [
            self._merged(info, merged[name], kind) if name in merged else copied_to_gguf(model.store, info)
            for name, info in model.store.tensors.items()
        ]

    @property
    def nbytes(self) -> int:
        """Size of all tensors in the new file, in bytes."""
        return sum(tensor.nbytes for tensor in self._tensors)

    def write(self, path: Path) -> None:
        """Write the file atomically. Raises FeatherbackError if that fails, or if the disk has no room for it."""
        weights: Counter[TensorType] = Counter()
        for tensor in self._tensors:
            weights[tensor.type] += tensor.nbytes
        kind = weights.most_common(1)[0][0] if self.types and self._differs() else None
        write_with_metadata(self.adapter.model.path, path, self._tensors, kind)

    def _differs(self) -> bool:
        """Whether any tensor has another type than in the base model."""
        tensors = self.adapter.model.store.tensors
        return any(tensor.type != tensors[tensor.name].type for tensor in self._tensors)

    def _merged(self, info: TensorInfo, place: LayerTarget, wanted: TensorType | None) -> OutTensor:
        kind = self.merge.type_of(place, wanted)
        self.types[kind] += 1
        return OutTensor(info.name, kind, info.shape, partial(self.merge.chunks, place, kind))


def write_with_metadata(base: Path, path: Path, tensors: Sequence[OutTensor], kind: TensorType | None = None) -> None:
    """Write `tensors` with the metadata of the GGUF model `base`, atomically.

    `kind`: the type of most weights, if it changed. Raises FeatherbackError if writing fails, or if the disk has no
    room for the file.
    """
    with reading(GGUFFile(base)) as file:
        alignment = int(file.metadata.get(_ALIGNMENT, DEFAULT_ALIGNMENT))
        metadata: dict[str, Value] = {key: file.value(key) for key in file.keys if key[:6] != "split."}
        if kind in FILE_TYPES:
            metadata[_FILE_TYPE] = FILE_TYPES[kind]
        check_free_space(path, file_bytes(metadata, tensors, alignment))
        write_gguf(path, metadata, tensors, alignment)
        metadata.clear()  # it holds views of the file's map


_LARGE = TensorType.TQ2_0.block_size


def copied_to_gguf(store: TensorStore, info: TensorInfo) -> OutTensor:
    """The tensor as a GGUF file can hold it: unchanged, unless it is TERNARY."""
    if info.type is not TensorType.TERNARY:
        return OutTensor(info.name, info.type, info.shape, lambda: copied(store.data(info.name)))
    stored = matrix(store, info.name)
    kind = TensorType.TQ2_0 if _has_large_blocks(stored) else TensorType.F16
    return OutTensor(info.name, kind, info.shape, partial(_blocks, stored, kind))


def _has_large_blocks(stored: Matrix) -> bool:
    """Whether each 256 weights of a row have one scale."""
    if stored.cols % _LARGE:
        return False
    for first, last in row_blocks(*stored.shape):
        sizes = _scales(stored.rows_between(first, last)).reshape(-1, _LARGE // stored.type.block_size)
        if (sizes != sizes[:, :1]).any():
            return False
    unmap_pages(stored.data)
    return True


def _scales(rows: Matrix) -> NDArray[np.float32]:
    """The scales of the blocks (n,)."""
    blocks = rows.data.reshape(-1, rows.type.block_bytes)
    return np.ascontiguousarray(blocks[:, :4]).view(np.float32).reshape(-1)


def _blocks(stored: Matrix, kind: TensorType) -> Iterator[memoryview]:
    for first, last in row_blocks(*stored.shape):
        rows = stored.rows_between(first, last)
        if kind is TensorType.TQ2_0:
            scales = _scales(rows)[:: _LARGE // stored.type.block_size]
            signs = np.sign(floats_of(rows)) * np.sign(scales).repeat(_LARGE).reshape(rows.shape)
            data = tq2_0_blocks(scales[:, None], (signs.reshape(-1, _LARGE) + 1).astype(np.uint8))
        else:
            data = quantize(floats_of(rows), kind)
        yield data.reshape(-1).data
        unmap_pages(stored.data)
