"""Lean readers of safetensors (https://github.com/huggingface/safetensors#format): one file, or a folder.

The `safetensors` package is not used here, as it hands out copies where views of the memory map are wanted.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.errors import FeatherbackError
from featherback.files import read_json
from featherback.weights.mapping import MappedFile, corrupt, truncated
from featherback.weights.types import TensorInfo, TensorType

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER = 4 << 20  # bytes: 40,000 tensors; what JSON becomes in memory can be twenty times as much
LARGEST = 1 << 128
MAX_DIMENSIONS = 8
TYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}


class SafetensorsFile:
    """A safetensors file, memory-mapped.

    Opening raises FeatherbackError if the file is not a safetensors file, is truncated or corrupt, or holds a
    tensor that is not F32, F16 or BF16.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = MappedFile(self.path)
        try:
            header, start = _read_header(self._file)
            notes = header.pop("__metadata__", None)
            self.metadata: Mapping[str, Any] = notes if isinstance(notes, dict) else {}
            self.tensors: dict[str, TensorInfo] = {
                name: _read_tensor_info(self._file, name, entry, start) for name, entry in header.items()
            }
        except BaseException:
            self._file.close()
            raise

    def data(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor: a one-dimensional read-only view of the memory map."""
        info = self.tensors[name]
        return self._file.view(info.offset, info.nbytes)

    def close(self) -> None:
        """Close the memory map; views taken from it stay valid."""
        self._file.close()


class SafetensorsFolder:
    """The weights of a Hugging Face folder: `model.safetensors`, or the parts its index names.

    Opening raises FeatherbackError like SafetensorsFile, and if there are no weights or a part is missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._files: list[SafetensorsFile] = []
        self._home: dict[str, SafetensorsFile] = {}
        try:
            for name in _parts(self.path):
                file = SafetensorsFile(self.path / name)
                self._files.append(file)
                self._home |= dict.fromkeys(file.tensors, file)
        except BaseException:
            self.close()
            raise
        self.tensors: dict[str, TensorInfo] = {name: file.tensors[name] for name, file in self._home.items()}

    def data(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor: a one-dimensional read-only view of the memory map."""
        return self._home[name].data(name)

    def file_of(self, name: str) -> Path:
        """The part that holds the tensor."""
        return self._home[name].path

    def close(self) -> None:
        """Close the memory maps; views taken from them stay valid."""
        for file in self._files:
            file.close()


def _parts(folder: Path) -> list[str]:
    """The names of the files that hold a model's weights."""
    if (folder / SINGLE).is_file():
        return [SINGLE]
    if not (folder / INDEX).is_file():
        raise FeatherbackError(
            f"{folder} has neither {SINGLE} nor {INDEX}; only safetensors weights are read."
        )
    index = read_json(folder / INDEX)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise FeatherbackError(f"{folder / INDEX} has no weight_map.")
    for part in weight_map.values():
        if not isinstance(part, str) or Path(part).name != part or not part.isprintable():
            raise FeatherbackError(f"{folder / INDEX} names {part!r}, which is not a file of its own folder.")
    return sorted(set(weight_map.values()))


def _read_header(file: MappedFile) -> tuple[dict[str, Any], int]:
    """The header and the offset of the data behind it."""
    length = int.from_bytes(file.buffer[:8], "little")
    if length > MAX_HEADER:
        raise corrupt(file.path, f"a header of {length} bytes")
    if 8 + length > file.size:
        raise truncated(file.path)
    try:
        header = json.loads(file.buffer[8 : 8 + length])
    except (ValueError, RecursionError):
        raise corrupt(file.path, "a header that is not JSON") from None
    if not isinstance(header, dict):
        raise corrupt(file.path, "a header that is not a JSON object")
    return header, 8 + length


def _read_tensor_info(file: MappedFile, name: str, entry: Any, start: int) -> TensorInfo:
    """One entry of the header, its byte range checked."""
    try:
        kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        numbers = (*shape, begin, end)
    except (TypeError, KeyError, ValueError):
        raise corrupt(file.path, f"a malformed entry of the tensor {name!r}") from None
    if (
        len(shape) > MAX_DIMENSIONS
        or not isinstance(kind, str)
        or not all(type(number) is int and 0 <= number < LARGEST for number in numbers)
    ):
        raise corrupt(file.path, f"a malformed entry of the tensor {name!r}")
    if kind not in TYPES:
        raise FeatherbackError(
            f"Tensor {name!r} of {file.path} has the type {kind!r}, which is not supported (supported: "
            f"{' '.join(TYPES)})."
        )
    if end - begin != math.prod(shape) * TYPES[kind].block_bytes:
        raise corrupt(
            file.path, f"the tensor {name!r}, whose {end - begin} bytes do not fit its shape {shape}"
        )
    if start + end > file.size:
        raise truncated(file.path, f": tensor {name!r} ends at byte {start + end} of {file.size}")
    return TensorInfo(name, TYPES[kind], shape, start + begin, end - begin)
