"""Folders whose weights are stored in another type the first time that they are opened, in a GGUF file in the cache.

Only the weights are there, by the names that the folder has for them: configuration, tokenizer and all else stay the
folder's. The file's name says which contents it was made of, so another folder with the same has it as well.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from featherback.core import private
from featherback.core.cache import cache_folder, unwritable
from featherback.core.files import check_room, remove_leftovers
from featherback.core.sizes import shown_mb
from featherback.core.terminal import Converting, complain
from featherback.engine.formats import fingerprint
from featherback.engine.formats.gguf import CONVERTED, GGUFFile
from featherback.engine.formats.safetensors import SafetensorsFolder
from featherback.engine.formats.store import TensorStore, matrix
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.engine.formats.writer import OutTensor, file_bytes, write_gguf
from featherback.errors import FeatherbackError
from featherback.models.layout import alike
from featherback.models.streams import copied, counted, quantized

NONE = "none"
QUANTIZE: Mapping[str, TensorType] = {"q4_0": TensorType.Q4_0, "q8_0": TensorType.Q8_0}
"""What --quantize can be, besides none."""

VERSION = 1
"""Of what is written. Another one is not read, but made anew."""

Shapes = Mapping[str, tuple[int, ...]]


class Source(Protocol):
    """A folder to be converted."""

    @property
    def label(self) -> str:
        """What it becomes, in the file's name."""

    @property
    def path(self) -> Path:
        """The folder."""

    @property
    def store(self) -> TensorStore:
        """Its files as they are."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name, in the shape that it will have."""

    def output(self, name: str) -> OutTensor:
        """A tensor as it is to be stored."""

    def close(self) -> None:
        """Close the files."""


class Quantizing:
    """A folder of floats, whose matrices become `label`, one of QUANTIZE, where their rows fill whole blocks."""

    def __init__(self, store: SafetensorsFolder, label: str) -> None:
        self.path, self.store, self.label = store.path, store, label

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name."""
        return self.store.tensors

    def output(self, name: str) -> OutTensor:
        """A tensor as it is to be stored."""
        info, kind = self.store.tensors[name], QUANTIZE[self.label]
        if len(info.shape) != 2 or info.shape[1] % kind.block_size:
            return OutTensor(name, info.type, info.shape, lambda: copied(self.store.data(name)))
        return OutTensor(name, kind, info.shape, partial(quantized, matrix(self.store, name), kind, name))

    def close(self) -> None:
        """Close the files."""
        self.store.close()


class ConvertedWeights:
    """The converted weights of the folder `path`: a TensorStore."""

    def __init__(self, path: Path, file: GGUFFile) -> None:
        self.path, self._file = path, file

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

    def close(self) -> None:
        """Close the memory map; views taken from it stay valid."""
        self._file.close()


class Foreseen:
    """The tensors of `source` that `shapes` names as they would be converted, a TensorStore: nothing is, so that those
    that change hold no weights.
    """

    def __init__(self, source: Source, shapes: Shapes) -> None:
        self.path, self._source = source.path, source
        found = {}
        for name in shapes:
            info, out = source.tensors[name], source.output(name)
            found[name] = TensorInfo(name, out.type, out.shape, info.offset, out.nbytes)
        self.tensors: Mapping[str, TensorInfo] = found

    def data(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor, if it stays as it is; else zeros that take no memory."""
        info = self.tensors[name]
        if info.type is self._source.store.tensors[name].type:
            return self._source.store.data(name)
        return np.broadcast_to(np.uint8(0), (info.nbytes,))

    def file_of(self, name: str) -> Path:
        """The file that it would be made of."""
        return self._source.store.file_of(name)

    def close(self) -> None:
        """Close the folder's files."""
        self._source.close()


def converted(source: Source, shapes: Shapes) -> ConvertedWeights:
    """The tensors of `source` that `shapes` names, out of the cache, or first converted into it.

    FeatherbackError if they cannot be converted, or there is no room for them.
    """
    folder = cache_folder() / "weights"
    try:
        private.make_private_folder(folder)  # the model may be what a run made of private text
    except OSError as error:
        raise unwritable(folder, error) from error
    print_of = f"{fingerprint.of_store(source.store)}-v{VERSION}"
    path = folder / f"{source.path.resolve().name[:100]}-{print_of}-{source.label}.gguf"
    if (file := _known(path, shapes)) is None:
        with _alone(folder):
            if (file := _known(path, shapes)) is None:
                remove_leftovers(folder)
                _write(path, source, shapes)
                file = GGUFFile(path)
    return ConvertedWeights(source.path, file)


def _known(path: Path, shapes: Shapes) -> GGUFFile | None:
    """The file, if it is there and whole; one that was damaged is made anew."""
    if not path.exists():
        return None
    with suppress(FeatherbackError):
        file = GGUFFile(path)
        found = {name: info.shape for name, info in file.tensors.items()}
        if found.keys() == shapes.keys() and all(alike(found[name], shape) for name, shape in shapes.items()):
            return file
        file.close()
    return None


def _write(path: Path, source: Source, shapes: Shapes) -> None:
    outputs = [source.output(name) for name in shapes]
    metadata = {"general.type": CONVERTED, "general.architecture": "none", "general.name": path.stem}
    size = file_bytes(metadata, outputs)
    check_room(path, size)
    doing = f"converting {source.path} to {source.label}, {shown_mb(size)}, this once, in {path.parent}"
    with Converting(doing, size) as shown:
        write_gguf(path, metadata, counted(outputs, shown.wrote))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While no other process converts: it may convert the same, and two may not fit the disk."""
    try:
        with private.open_to_append(folder / ".lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                complain(f"waiting for another process that converts weights in {folder}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise unwritable(folder, error) from error
