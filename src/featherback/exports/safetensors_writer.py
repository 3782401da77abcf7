"""Write a safetensors file as a stream, so that at most one tensor is in memory.

Format (https://github.com/huggingface/safetensors#format): the length of the header, 8 bytes, little-endian;
the header, JSON padded with spaces to a multiple of 8 bytes; the tensors' bytes, without gaps.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback.core.files import atomic_file
from featherback.engine.formats.safetensors import TYPES
from featherback.engine.formats.types import TensorType
from featherback.engine.formats.writer import OutTensor

_NAMES = {kind: name for name, kind in TYPES.items()}


def write_safetensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Iterable[tuple[str, NDArray[np.float32]]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write float32 `tensors`, which must have the names, the order and the shapes of `shapes`.

    The file is written atomically. Raises FeatherbackError if that fails.
    """
    announced = [OutTensor(name, TensorType.F32, shape, tuple) for name, shape in shapes.items()]
    with atomic_file(path) as file:
        file.write(_header(announced, metadata))
        given = iter(tensors)
        for name, shape in shapes.items():
            found, tensor = next(given, ("nothing", np.empty(0, np.float32)))
            if name != found or shape != tensor.shape or tensor.dtype != np.float32:
                raise ValueError(f"expected {name} {shape}, got {found} {tensor.dtype} {tensor.shape}")
            file.write(np.ascontiguousarray(tensor, "<f4").data)
            del tensor  # before the next one is made, which may be as large
        if (more := next(given, None)) is not None:
            raise ValueError(f"expected no more tensors, got {more[0]}")


def write_tensors(path: Path, tensors: Sequence[OutTensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write `tensors` of any type that safetensors files can hold; otherwise like `write_safetensors`."""
    with atomic_file(path) as file:
        file.write(_header(tensors, metadata))
        for tensor in tensors:
            for chunk in tensor.chunks():
                file.write(chunk)


def _header(tensors: Sequence[OutTensor], metadata: Mapping[str, str] | None) -> bytes:
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for tensor in tensors:
        end = start + tensor.nbytes
        entries[tensor.name] = {"dtype": _NAMES[tensor.type], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
