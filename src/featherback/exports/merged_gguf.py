"""Write a GGUF model with an adapter merged into it. All other tensors are copied, see `own_types`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from featherback.core.files import check_free_space
from featherback.engine.formats.gguf import DEFAULT_ALIGNMENT, GGUFFile
from featherback.engine.formats.mapping import reading
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.engine.formats.writer import OutTensor, Value, file_bytes, write_gguf
from featherback.exports.merging import Merge
from featherback.exports.own_types import copied_to_gguf
from featherback.models.adapter import Adapter
from featherback.models.form import LayerTarget

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
