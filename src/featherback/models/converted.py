"""Folders whose weights are converted to another type when they are first opened, into a GGUF file in the cache.

The file holds only the weights, under their names in the folder. The configuration, the tokenizer and everything else
are read from the folder. The file's name contains a checksum of the weights, so equal folders share one file.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback.core import private
from featherback.core.cache import cache_folder, unwritable
from featherback.core.files import check_free_space, remove_leftovers
from featherback.core.sizes import shown_mb
from featherback.core.system import locks
from featherback.core.terminal import Converting, print_error
from featherback.engine.formats import fingerprint
from featherback.engine.formats.gguf import CONVERTED, GGUFFile
from featherback.engine.formats.mapping import MappedFile
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.engine.formats.writer import file_bytes, write_gguf
from featherback.errors import FeatherbackError
from featherback.models.layout import same_shape
from featherback.models.source import Made, Source
from featherback.models.streams import counted

NONE = "none"
QUANTIZE: Mapping[str, TensorType] = {"q4_0": TensorType.Q4_0, "q8_0": TensorType.Q8_0}
"""Values of --quantize, besides none."""

VERSION = 1
"""Version of the files in the cache. Files of other versions are not read."""

Shapes = Mapping[str, tuple[int, ...]]


class ConvertedWeights:
    """The converted weights of the folder `path`, as a TensorStore.

    `label`: of the source. `made`: how tensors were put together, if they were not only converted.
    """

    def __init__(self, path: Path, file: GGUFFile, label: str, made: Made) -> None:
        self.path, self._file, self.label, self.made = path, file, label, made

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name."""
        return self._file.tensors

    def data(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor: a one-dimensional read-only view of the memory map."""
        return self._file.data(name)

    def file_of(self, name: str) -> Path:
        """The file in the cache."""
        return self._file.path

    def maps(self) -> list[MappedFile]:
        """The mapped file in the cache."""
        return self._file.maps()

    def close(self) -> None:
        """Close the memory map; views taken from it stay valid."""
        self._file.close()


class UnconvertedWeights:
    """The tensors named in `shapes`, with the types that they would be converted to, as a TensorStore.

    Nothing is written: tensors that would change read as zeros, except `vectors`.
    """

    def __init__(self, source: Source, shapes: Shapes, vectors: Collection[str]) -> None:
        self.path, self._source, self._vectors = source.path, source, vectors
        found = {}
        for name in shapes:
            info, out = source.tensors[name], source.output(name)
            found[name] = TensorInfo(name, out.type, out.shape, info.offset, out.nbytes)
        self.tensors: Mapping[str, TensorInfo] = found

    def data(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor if they do not change, else zeros that take no memory."""
        info, own = self.tensors[name], self._source.store.tensors.get(name)
        if own is not None and (info.type, info.nbytes) == (own.type, own.nbytes):
            return self._source.store.data(name)
        if name in self._vectors:
            return np.frombuffer(b"".join(self._source.output(name).chunks()), np.uint8)
        return np.broadcast_to(np.uint8(0), (info.nbytes,))

    def file_of(self, name: str) -> Path:
        """The folder's file that holds the tensor, or the folder itself for a tensor that is computed."""
        return self._source.store.file_of(name) if name in self._source.store.tensors else self.path

    def maps(self) -> list[MappedFile]:
        """The folder's mapped files."""
        return self._source.store.maps()

    def close(self) -> None:
        """Close the folder's files."""
        self._source.close()


def converted(source: Source, shapes: Shapes, made: Made) -> ConvertedWeights:
    """Open the converted tensors named in `shapes`, and convert them first if the cache does not have them.

    `made`: the tensors that the source makes of others.

    Raises FeatherbackError if they cannot be converted, or if the disk has no room for them.
    """
    folder = cache_folder() / "weights"
    try:
        private.make_private_folder(folder)  # the model may have been trained on private text
    except OSError as error:
        raise unwritable(folder, error) from error
    checksum = f"{fingerprint.of_store(source.store)}-v{VERSION}"
    path = folder / f"{source.path.resolve().name[:100]}-{checksum}-{source.label}.gguf"
    if (file := _open_cached(path, shapes)) is None:
        with _conversion_lock(folder):
            if (file := _open_cached(path, shapes)) is None:
                remove_leftovers(folder)
                _write(path, source, shapes)
                file = GGUFFile(path)
    return ConvertedWeights(source.path, file, source.label, made)


def _open_cached(path: Path, shapes: Shapes) -> GGUFFile | None:
    """Open the file if it exists and is complete; None otherwise."""
    if not path.exists():
        return None
    with suppress(FeatherbackError):
        file = GGUFFile(path)
        found = {name: info.shape for name, info in file.tensors.items()}
        if found.keys() == shapes.keys() and all(same_shape(found[name], shape) for name, shape in shapes.items()):
            return file
        file.close()
    return None


def _write(path: Path, source: Source, shapes: Shapes) -> None:
    outputs = [source.output(name) for name in shapes]
    metadata = {"general.type": CONVERTED, "general.architecture": "none", "general.name": path.stem}
    size = file_bytes(metadata, outputs)
    check_free_space(path, size)
    doing = f"converting {source.path} to {source.label} (once only): {shown_mb(size)} in {path.parent}"
    with Converting(doing, size) as shown:
        write_gguf(path, metadata, counted(outputs, shown.wrote))


@contextmanager
def _conversion_lock(folder: Path) -> Iterator[None]:
    """Hold the lock on conversions: another process may convert the same folder, or fill the disk."""
    try:
        try:
            lock = locks.hold(folder, wait=False)
        except BlockingIOError:
            print_error(f"waiting for another process to finish converting weights in {folder}")
            lock = locks.hold(folder)
        try:
            yield
        finally:
            os.close(lock)
    except OSError as error:
        raise unwritable(folder, error) from error
