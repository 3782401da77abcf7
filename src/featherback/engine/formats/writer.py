"""A lean writer of GGUF files. Tensors are bytes, or streams of bytes that are never collected in memory."""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from featherback.core.files import atomic_file
from featherback.engine.formats.gguf import ARRAY, DEFAULT_ALIGNMENT, MAGIC, SCALARS, STRING
from featherback.engine.formats.quantize import quantize
from featherback.engine.formats.types import TensorType

Buffer = bytes | bytearray | memoryview
Value = str | bool | int | float | np.generic | Sequence[str] | NDArray[Any] | memoryview

VERSION = 3
_TYPE_OF_DTYPE = {np.dtype(code): value_type for value_type, code in SCALARS.items()}


@dataclass(frozen=True, eq=False)
class OutTensor:
    """A tensor to write. `chunks()` yields its bytes in order, as many as its type and shape need."""

    name: str
    type: TensorType
    shape: tuple[int, ...]  # NumPy order
    chunks: Callable[[], Iterable[Buffer]]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor. Raises FeatherbackError if its rows do not fill whole blocks."""
        rows = 1
        for size in self.shape[:-1]:
            rows *= size
        return rows * self.type.row_bytes(self.shape[-1])


def tensor_of_bytes(name: str, kind: TensorType, shape: tuple[int, ...], data: Buffer) -> OutTensor:
    """Return a tensor with the given bytes."""
    return OutTensor(name, kind, shape, lambda: (data,))


def tensor_of_array(name: str, weights: ArrayLike, kind: TensorType = TensorType.F32) -> OutTensor:
    """Return a tensor of float32 `weights`, to be stored as `kind`."""
    array = np.asarray(weights, dtype=np.float32)
    return tensor_of_bytes(name, kind, array.shape, quantize(array, kind).data)


def write_gguf(
    path: str | Path, metadata: Mapping[str, Value], tensors: Sequence[OutTensor], alignment: int = DEFAULT_ALIGNMENT
) -> None:
    """Write a GGUF file atomically: it gets its name once every byte is on the disk.

    Metadata values are str, bool, list of str, NumPy arrays and scalars (stored in their own type), int (stored as
    uint32, or as int64 if that is too small), float (stored as float32), or the bytes that `GGUFFile.value` returns.
    Tensors start at multiples of `alignment`; if it is not the default, general.alignment must state it.

    Raises ValueError if a tensor's stream has the wrong length, and FeatherbackError if the file cannot be written.
    """
    with atomic_file(Path(path)) as file:
        for part in _header(metadata, tensors, alignment):
            file.write(part)
        for tensor in tensors:
            _pad(file, alignment)
            _write_tensor(file, tensor)
        _pad(file, alignment)


def file_bytes(metadata: Mapping[str, Value], tensors: Sequence[OutTensor], alignment: int = DEFAULT_ALIGNMENT) -> int:
    """Return the size in bytes of the file that `write_gguf` would write."""
    sizes = [sum(len(part) for part in _header(metadata, tensors, alignment)), *(t.nbytes for t in tensors)]
    return sum(-(-size // alignment) * alignment for size in sizes)


def _header(metadata: Mapping[str, Value], tensors: Sequence[OutTensor], alignment: int) -> Iterator[Buffer]:
    yield MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata))
    for key, value in metadata.items():
        yield _string(key)
        yield _value(value)
    offset = 0
    for tensor in tensors:
        shape = tensor.shape[::-1]  # ggml lists the fastest dimension first
        yield _string(tensor.name)
        yield struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, tensor.type, offset)
        offset += -(-tensor.nbytes // alignment) * alignment


def _write_tensor(file: IO[bytes], tensor: OutTensor) -> None:
    written = 0
    for chunk in tensor.chunks():
        written += file.write(chunk)
    if written != tensor.nbytes:
        raise ValueError(f"tensor {tensor.name} needs {tensor.nbytes} bytes, not {written}")


def _pad(file: IO[bytes], alignment: int) -> None:
    file.write(b"\0" * (-file.tell() % alignment))


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Value) -> Buffer:
    """Return a metadata value, preceded by its type."""
    if isinstance(value, memoryview):
        return value
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, np.ndarray):
        kind = _TYPE_OF_DTYPE[value.dtype]
        return struct.pack("<IIQ", ARRAY, kind, value.size) + np.ascontiguousarray(value).tobytes()
    if isinstance(value, Sequence):
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(_string(str(text)) for text in value)
    kind = _scalar_type(value)
    return struct.pack("<I" + SCALARS[kind], kind, value)


def _scalar_type(value: bool | int | float | np.generic) -> int:
    if isinstance(value, np.generic):
        return _TYPE_OF_DTYPE[value.dtype]
    if isinstance(value, bool):
        return 7
    if isinstance(value, float):
        return 6
    return 4 if 0 <= value < 1 << 32 else 11
