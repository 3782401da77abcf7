"""A folder of weights that are converted when it is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.store import TensorStore
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.engine.formats.writer import OutTensor


class Folder(Protocol):
    """A folder whose weights take another form when it is opened."""

    @property
    def label(self) -> str:
        """The name of the type that its weights become, as a part of the file's name."""

    @property
    def path(self) -> Path:
        """The folder."""

    @property
    def store(self) -> TensorStore:
        """The folder's own tensors."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name, in its shape after conversion."""

    def close(self) -> None:
        """Close the files."""


class Source(Folder, Protocol):
    """A folder whose weights need converting."""

    def output(self, name: str) -> OutTensor:
        """The tensor as the cache's file will store it."""


class RowSource(Folder, Protocol):
    """A folder whose tensors are read a few rows at a time. The leading axes of a tensor are joined to rows."""

    def kind(self, name: str) -> TensorType:
        """The type of the rows of a tensor."""

    def rows(self, name: str, wanted: range) -> Iterator[Matrix]:
        """Yield rows of a tensor, a few at a time, and unmap their pages."""


class Piece(NamedTuple):
    """Rows of a tensor, whose leading axes are joined. `columns`: each value of it is a row of its own."""

    name: str
    rows: slice = slice(None)
    columns: bool = False


Made = Mapping[str, tuple[Piece, ...]]
"""A tensor that the folder does not have -> the rows of its tensors that it consists of, in order."""
