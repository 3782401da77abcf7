"""A folder of weights that are converted when it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from featherback.engine.formats.store import TensorStore
from featherback.engine.formats.types import TensorInfo
from featherback.engine.formats.writer import OutTensor


class Source(Protocol):
    """A folder whose weights need converting."""

    @property
    def label(self) -> str:
        """The name of the new type, as a part of the file's name."""

    @property
    def path(self) -> Path:
        """The folder."""

    @property
    def store(self) -> TensorStore:
        """The folder's own tensors."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name, in its shape after conversion."""

    def output(self, name: str) -> OutTensor:
        """The tensor as the cache's file will store it."""

    def close(self) -> None:
        """Close the files."""
