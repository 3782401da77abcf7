"""A lean reader of GGUF files (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

The header of a real model is a few kilobytes of facts and several megabytes of vocabulary. The reader skips the
vocabulary string by string without creating Python objects, and decodes it only on demand.
"""

import math
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.mapping import MappedFile, corrupt, opening, truncated
from featherback.engine.formats.types import TensorInfo, TensorType, tensor_type
from featherback.errors import FeatherbackError

Scalar = int | float | bool | str

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # version 1 had 32-bit counts and is no longer in use
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
# A header that exceeds these limits is corrupt, or made to exhaust the reader's memory.
MAX_TENSORS, MAX_KEYS = 1 << 16, 1 << 14
MAX_NAME = 1 << 10  # bytes
MAX_TEXT = 1 << 24  # bytes of all text values together; the longest are chat templates
MAX_STRINGS = 1 << 22  # in all arrays together; the largest vocabularies, with their merges, have a million

CONVERTED = "featherback weights"
"""general.type of the files of `models.converted`, which are not models by themselves."""

I2_S, I2_S_TAIL = 36, 32
"""Type number of ternary tensors in Microsoft's fork of llama.cpp, and their bytes after the weights, two bits each."""

STRING, ARRAY = 8, 9
SCALARS: dict[int, str] = {  # value type: struct and NumPy code
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """An array in the metadata, not decoded."""

    type: int  # value type of its elements
    count: int
    offset: int  # bytes from the start of the file to the first element


class GGUFFile:
    """A GGUF file, memory-mapped. Metadata and tensor directory are read at once, everything else on demand.

    Raises FeatherbackError if the file is not a GGUF file, has an unsupported version or byte order, is truncated or
    corrupt, or holds a tensor of an unsupported type.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = MappedFile(self.path)
        with opening(self._file):
            cursor = _Cursor(self._file)
            self.version, tensor_count, metadata_count = _read_preamble(cursor)
            metadata, self._arrays, self._values = _read_metadata(cursor, metadata_count)
            self.metadata: Mapping[str, Scalar] = MappingProxyType(metadata)
            self.i2_s: set[str] = set()
            """The tensors of the type I2_S, which are listed as TERNARY. `models.ternary` converts them."""
            self.tensors: dict[str, TensorInfo] = _read_directory(cursor, tensor_count, metadata, self.i2_s)
        self.header_bytes = cursor.position
        """Bytes of the metadata, which include the vocabulary, and of the tensor directory."""
        self.drop_header()  # training does not use the vocabulary

    @property
    def arrays(self) -> Mapping[str, ArrayInfo]:
        """The arrays of the metadata, not decoded. `array` decodes one."""
        return MappingProxyType(self._arrays)

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The whole file, as a read-only view of the memory map."""
        return self._file.view(0, self._file.size)

    def array(self, key: str) -> list[str] | NDArray[Any]:
        """Decode an array of the metadata: strings as a list, numbers as a NumPy array of their own type.

        Raises KeyError if there is no such array. Bytes that are not UTF-8 decode to U+FFFD.
        """
        found = self._arrays[key]
        if found.type != STRING:
            code = np.dtype(SCALARS[found.type]).newbyteorder("<")
            return np.frombuffer(self._file.buffer, code, found.count, found.offset).copy()
        cursor = _Cursor(self._file, found.offset)
        return [cursor.string() for _ in range(found.count)]

    def value(self, key: str) -> memoryview:
        """Return a metadata value as stored, preceded by its type, for writing it again: a view of the memory map."""
        start, end = self._values[key]
        return self._file.view(start, end - start).data

    @property
    def keys(self) -> Collection[str]:
        """The keys of the metadata, in order."""
        return self._values.keys()

    def data(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor: a one-dimensional read-only view of the memory map."""
        info = self.tensors[name]
        return self._file.view(info.offset, info.nbytes)

    def file_of(self, name: str) -> Path:
        """Return this file, for any tensor."""
        return self.path

    def maps(self) -> list[MappedFile]:
        """Return the mapped file, or files."""
        return [self._file]

    def drop_header(self) -> None:
        """Free the memory of the header's pages, until they are read again."""
        self._file.drop_pages(self.header_bytes)

    def close(self) -> None:
        """Close the memory map. Views taken from it stay valid."""
        self._file.close()


class _Cursor:
    """A reading position in the header. Raises FeatherbackError at the end of the file."""

    def __init__(self, file: MappedFile, position: int = 0) -> None:
        self.data, self.path, self.position, self.end = file.buffer, file.path, position, file.size
        self.text_left, self.strings_left = MAX_TEXT, MAX_STRINGS

    def take(self, code: str) -> Any:
        """Read one number of the struct format `code`."""
        size = struct.calcsize("<" + code)
        if self.position + size > self.end:
            raise truncated(self.path)
        (value,) = struct.unpack_from("<" + code, self.data, self.position)
        self.position += size
        return value

    def text(self) -> str:
        """Read a text value of the metadata."""
        start = self.position
        value = self.string(self.text_left)
        self.text_left -= self.position - start - 8
        return value

    def string(self, limit: int | None = None, errors: str = "replace") -> str:
        """Read one string of at most `limit` bytes: a 64-bit length, then that many bytes."""
        length = self.take("Q")
        if length > self.end - self.position:
            raise truncated(self.path)
        if limit is not None and length > limit:
            raise corrupt(self.path, f"a string in the header has {length} bytes")
        raw = self.data[self.position : self.position + length]
        self.position += length
        return raw.decode("utf-8", errors)

    def name(self) -> str:
        """Read a key or a tensor name, which must be valid UTF-8."""
        try:
            return self.string(MAX_NAME, "strict")
        except UnicodeDecodeError:
            raise corrupt(self.path, "a name in the header is not UTF-8") from None

    def skip_array(self) -> ArrayInfo:
        """Skip an array without decoding it."""
        kind, count = self.take("I"), self.take("Q")
        found = ArrayInfo(kind, count, self.position)
        if kind in SCALARS:
            self._skip(count * struct.calcsize("<" + SCALARS[kind]))
        elif kind == STRING:
            if count > (self.end - self.position) // 8:
                raise truncated(self.path)
            self.strings_left -= count
            if self.strings_left < 0:
                raise corrupt(self.path, f"the header has more than {MAX_STRINGS} strings")
            self._skip_strings(count)
        else:
            raise corrupt(self.path, f"the header has an array of value type {kind}, which does not exist")
        return found

    def _skip(self, nbytes: int) -> None:
        if nbytes > self.end - self.position:
            raise truncated(self.path)
        self.position += nbytes

    def _skip_strings(self, count: int) -> None:
        # Hot: a vocabulary and its merges are 300,000 strings, about 0.1 us each in this form.
        data, position, unpack = self.data, self.position, struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                position += 8 + unpack(data, position)[0]
        except (struct.error, OverflowError):  # past the end of the file, or beyond any address
            raise truncated(self.path) from None
        if position > self.end:
            raise truncated(self.path)
        self.position = position


def _read_preamble(cursor: _Cursor) -> tuple[int, int, int]:
    """Read the version, the number of tensors and the number of metadata pairs."""
    if cursor.data[: len(MAGIC)] != MAGIC:
        raise FeatherbackError(f"{cursor.path} is not a GGUF file (it does not begin with 'GGUF').")
    cursor.position = len(MAGIC)
    version = cursor.take("I")
    if int.from_bytes(version.to_bytes(4, "big"), "little") in (1, *VERSIONS):
        raise FeatherbackError(f"{cursor.path} is a big-endian GGUF; only little-endian files are supported.")
    if version not in VERSIONS:
        raise FeatherbackError(f"{cursor.path} has GGUF version {version}; versions 2 and 3 are supported.")
    tensors, keys = cursor.take("Q"), cursor.take("Q")
    if tensors > MAX_TENSORS or keys > MAX_KEYS:
        raise corrupt(cursor.path, f"it claims {tensors} tensors and {keys} keys of metadata")
    return version, tensors, keys


def _read_metadata(
    cursor: _Cursor, count: int
) -> tuple[dict[str, Scalar], dict[str, ArrayInfo], dict[str, tuple[int, int]]]:
    """Read the metadata: scalars and strings, arrays, and the place of each value with its type, [start, end)."""
    scalars: dict[str, Scalar] = {}
    arrays: dict[str, ArrayInfo] = {}
    values: dict[str, tuple[int, int]] = {}
    for _ in range(count):
        key, start = cursor.name(), cursor.position
        kind = cursor.take("I")
        if key in scalars or key in arrays:
            raise corrupt(cursor.path, f"the metadata key {key!r} occurs twice")
        if kind == ARRAY:
            arrays[key] = cursor.skip_array()
        elif kind == STRING:
            scalars[key] = cursor.text()
        elif kind in SCALARS:
            scalars[key] = cursor.take(SCALARS[kind])
        else:
            raise corrupt(cursor.path, f"the metadata key {key!r} has value type {kind}, which does not exist")
        values[key] = start, cursor.position
    return scalars, arrays, values


def _read_directory(
    cursor: _Cursor, count: int, metadata: Mapping[str, Scalar], i2_s: set[str]
) -> dict[str, TensorInfo]:
    """Read the tensor directory, in file order. Offsets become absolute, and every byte range is checked.

    Names of tensors of the type I2_S are added to `i2_s`.
    """
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
        raise corrupt(cursor.path, f"its alignment is {alignment!r}")
    relative: dict[str, TensorInfo] = {}
    for _ in range(count):
        info = _read_tensor_info(cursor, metadata.get("general.type") == CONVERTED, i2_s)
        if info.name in relative:
            raise corrupt(cursor.path, f"the tensor {info.name!r} occurs twice")
        if info.offset % alignment:
            raise corrupt(cursor.path, f"the tensor {info.name!r} starts at an unaligned offset")
        relative[info.name] = info
    start = -(-cursor.position // alignment) * alignment
    end = start
    for info in sorted(relative.values(), key=lambda info: info.offset):
        if start + info.offset < end:
            raise corrupt(cursor.path, f"the tensor {info.name!r} overlaps another")
        end = start + info.offset + info.nbytes
        if end > cursor.end:
            raise truncated(cursor.path, f": tensor {info.name!r} ends at byte {end} of {cursor.end}")
    return {
        info.name: TensorInfo(info.name, info.type, info.shape, start + info.offset, info.nbytes)
        for info in relative.values()
    }


def _read_tensor_info(cursor: _Cursor, own: bool, i2_s: set[str]) -> TensorInfo:
    """Read one entry of the tensor directory. Its offset is relative to the data section. `own`: see tensor_type."""
    name, dimensions = cursor.name(), cursor.take("I")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise corrupt(cursor.path, f"the tensor {name!r} has {dimensions} dimensions")
    shape = tuple(cursor.take("Q") for _ in range(dimensions))[::-1]  # ggml lists the fastest dimension first
    if 0 in shape:
        raise corrupt(cursor.path, f"the tensor {name!r} is empty")
    number = cursor.take("I")
    if number == I2_S and not math.prod(shape) % 4:
        i2_s.add(name)
        return TensorInfo(name, TensorType.TERNARY, shape, cursor.take("Q"), math.prod(shape) // 4 + I2_S_TAIL)
    kind = tensor_type(number, f"{name!r} of {cursor.path}", own)
    if shape[-1] % kind.block_size:
        raise corrupt(cursor.path, f"the {kind.name} tensor {name!r} has rows of {shape[-1]} weights")
    nbytes = kind.row_bytes(shape[-1])
    for rows in shape[:-1]:
        nbytes *= rows
    return TensorInfo(name, kind, shape, cursor.take("Q"), nbytes)
