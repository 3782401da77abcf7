"""The interface that weight files of all formats share, and functions that read tensors from it."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.mapping import MappedFile
from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.errors import FeatherbackError


class TensorStore(Protocol):
    """A file, or a folder of files, with named tensors that are mapped into memory."""

    @property
    def path(self) -> Path:
        """The file or folder."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors, by name."""

    def data(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor: a one-dimensional read-only view of the memory map."""

    def file_of(self, name: str) -> Path:
        """Return the file to which `tensors[name].offset` refers."""

    def maps(self) -> list[MappedFile]:
        """Return the files that are mapped into memory."""

    def close(self) -> None:
        """Close the memory map. Views taken from it stay valid."""


def matrix(store: TensorStore, name: str) -> Matrix:
    """Return the tensor `name`, still quantised, as a view. A three-dimensional tensor is stacked into one matrix."""
    info = store.tensors[name]
    *rows, cols = info.shape
    return Matrix(store.data(name), info.type, math.prod(rows), cols, store.file_of(name), info.offset)


def floats(store: TensorStore, name: str) -> NDArray[np.float32]:
    """Return the unquantised tensor `name` as float32 in its own shape: a view if it is stored so, else a copy.

    Raises FeatherbackError if it is quantised.
    """
    info, data = store.tensors[name], store.data(name)
    if info.type is TensorType.F32:
        values = data.view(np.float32)
    elif info.type is TensorType.F16:
        values = data.view(np.float16).astype(np.float32)
    elif info.type is TensorType.BF16:
        values = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        raise FeatherbackError(
            f"Tensor {name} of {store.path} is stored as {info.type.name}; it must be F32, F16 or BF16."
        )
    return values.reshape(info.shape)
