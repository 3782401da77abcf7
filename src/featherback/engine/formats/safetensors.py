"""Lean readers of safetensors (https://github.com/huggingface/safetensors#format): one file, or a folder.

The `safetensors` package is not used because it returns copies, and views of the memory map are needed.
"""

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.core.files import read_json
from featherback.engine.formats.mapping import MappedFile, corrupt, opening, truncated
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.errors import FeatherbackError, excerpt

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER = 4 << 20  # bytes: 40,000 tensors; parsed JSON can take twenty times as much memory
LARGEST = 1 << 128
MAX_DIMENSIONS = 8
TYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}
INDICES = ("position_ids", "token_type_ids")
"""Ends of the names of I64 buffers in old checkpoints of encoders. They only count, and are left out."""
WORDS = {"U32": 1, "U8": 4}
"""Type of packed weights -> the number of its elements that take as many bytes as a float32."""


class SafetensorsFile:
    """A safetensors file, memory-mapped.

    Raises FeatherbackError if the file is not a safetensors file, is truncated or corrupt, or holds a tensor that is
    not F32, F16 or BF16. `packed`: types of packed weights, U32 and U8, that are accepted as well. `words` names these
    tensors, which are listed as F32 of the same size in bytes: in rows if the last size allows it, else as one vector.
    """

    def __init__(self, path: str | Path, packed: Collection[str] = ()) -> None:
        self.path = Path(path)
        self._file = MappedFile(self.path)
        types = {**TYPES, **dict.fromkeys(packed, TensorType.F32)}
        with opening(self._file):
            header, start = _read_header(self._file)
            notes = header.pop("__metadata__", None)
            header = {name: entry for name, entry in header.items() if not _is_index(name, entry)}
            self.metadata: Mapping[str, Any] = notes if isinstance(notes, dict) else {}
            self.tensors: dict[str, TensorInfo] = {
                name: _read_tensor_info(self._file, name, entry, start, types) for name, entry in header.items()
            }
            self.words = {name for name, entry in header.items() if entry["dtype"] in packed}
            _check_overlap(self.path, self.tensors)

    def data(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor: a one-dimensional read-only view of the memory map."""
        info = self.tensors[name]
        return self._file.view(info.offset, info.nbytes)

    def file_of(self, name: str) -> Path:
        """Return this file, for any tensor."""
        return self.path

    def maps(self) -> list[MappedFile]:
        """Return the mapped file."""
        return [self._file]

    def close(self) -> None:
        """Close the memory map. Views taken from it stay valid."""
        self._file.close()


class SafetensorsFolder:
    """The weights of a Hugging Face folder: `model.safetensors`, or the parts that its index lists.

    Raises FeatherbackError as SafetensorsFile does, and if there are no weights, a part is missing, or two parts hold
    the same tensor. `packed` and `words` are as in SafetensorsFile.
    """

    def __init__(self, path: str | Path, packed: Collection[str] = ()) -> None:
        self.path = Path(path)
        self._files: list[SafetensorsFile] = []
        self._home: dict[str, SafetensorsFile] = {}
        try:
            for name in _parts(self.path):
                file = SafetensorsFile(self.path / name, packed)
                self._files.append(file)
                if twice := self._home.keys() & file.tensors.keys():
                    raise FeatherbackError(
                        f"{self._home[min(twice)].path} and {file.path} both hold the tensor {excerpt(min(twice))}. "
                        "The folder mixes two models. Download the model into an empty folder."
                    )
                self._home |= dict.fromkeys(file.tensors, file)
        except BaseException:
            self.close()
            raise
        self.tensors: dict[str, TensorInfo] = {name: file.tensors[name] for name, file in self._home.items()}
        self.words = {name for file in self._files for name in file.words}

    def data(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor: a one-dimensional read-only view of the memory map."""
        return self._home[name].data(name)

    def file_of(self, name: str) -> Path:
        """Return the part that holds the tensor."""
        return self._home[name].path

    def maps(self) -> list[MappedFile]:
        """Return the mapped parts."""
        return [each for file in self._files for each in file.maps()]

    def close(self) -> None:
        """Close the memory maps. Views taken from them stay valid."""
        for file in self._files:
            file.close()


def _parts(folder: Path) -> list[str]:
    """Return the names of the files that hold a model's weights."""
    if (folder / SINGLE).is_file():
        return [SINGLE]
    if not (folder / INDEX).is_file():
        raise FeatherbackError(f"{folder} has neither {SINGLE} nor {INDEX}; weights must be in the safetensors format.")
    index = read_json(folder / INDEX)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise FeatherbackError(f"{folder / INDEX} has no weight_map. Download it again.")
    for part in weight_map.values():
        if not isinstance(part, str) or Path(part).name != part or not part.isprintable():
            raise FeatherbackError(
                f"{folder / INDEX} lists {part!r}, which is not the name of a file in that folder. Download the model "
                f"again."
            )
    return sorted(set(weight_map.values()))


def _read_header(file: MappedFile) -> tuple[dict[str, Any], int]:
    """Return the header, and the offset at which the data begins."""
    length = int.from_bytes(file.buffer[:8], "little")
    if length > MAX_HEADER:
        raise corrupt(file.path, f"its header has {length} bytes")
    if 8 + length > file.size:
        raise truncated(file.path)
    try:
        header = json.loads(file.buffer[8 : 8 + length])
    except (ValueError, RecursionError):
        raise corrupt(file.path, "its header is not JSON") from None
    if not isinstance(header, dict):
        raise corrupt(file.path, "its header is not a JSON object")
    return header, 8 + length


def _is_index(name: str, entry: Any) -> bool:
    """Return whether an entry of the header is one of INDICES."""
    return name.endswith(INDICES) and isinstance(entry, dict) and entry.get("dtype") == "I64"


def _check_overlap(path: Path, tensors: Mapping[str, TensorInfo]) -> None:
    """Raise FeatherbackError if tensors share bytes, because a small file could then exhaust the reader's memory."""
    end = 0
    for info in sorted(tensors.values(), key=lambda info: (info.offset, info.nbytes)):
        if info.offset < end:
            raise corrupt(path, f"the tensor {info.name!r} overlaps another")
        end = info.offset + info.nbytes


def _read_tensor_info(
    file: MappedFile, name: str, entry: Any, start: int, types: Mapping[str, TensorType]
) -> TensorInfo:
    """Return one entry of the header, with its byte range checked."""
    try:
        kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        numbers = (*shape, begin, end)
    except (TypeError, KeyError, ValueError):
        raise corrupt(file.path, f"malformed entry of the tensor {name!r}") from None
    if (
        len(shape) > MAX_DIMENSIONS
        or not isinstance(kind, str)
        or not all(type(number) is int and 0 <= number < LARGEST for number in numbers)
    ):
        raise corrupt(file.path, f"malformed entry of the tensor {name!r}")
    if kind not in types:
        raise FeatherbackError(
            f"Tensor {name!r} of {file.path} has the type {kind!r}, which is not supported (supported: "
            f"{' '.join(TYPES)})."
        )
    if (each := WORDS.get(kind, 1)) > 1:
        if (count := math.prod(shape)) % each:
            raise FeatherbackError(
                f"Tensor {name!r} of {file.path} has the type {kind!r} and the shape {shape}; the number of its values "
                f"must be a multiple of {each}."
            )
        shape = (count // each,) if not shape or shape[-1] % each else (*shape[:-1], shape[-1] // each)
    if end - begin != math.prod(shape) * types[kind].block_bytes:
        raise corrupt(file.path, f"the tensor {name!r} has {end - begin} bytes, which do not fit its shape {shape}")
    if start + end > file.size:
        raise truncated(file.path, f": tensor {name!r} ends at byte {start + end} of {file.size}")
    return TensorInfo(name, types[kind], shape, start + begin, end - begin)
