"""MLX folders: matrices of groups of weights, each group with a scale and a bias: w = scale * code + bias.

NAME.weight (out, in * bits / 32) holds unsigned codes in words of 32 bits, the first code in the lowest bits.
NAME.scales and NAME.biases (out, in / group size) are floats. The entry "quantization" of config.json has the bits and
the group size, and may have others for some modules. (https://ml-explore.github.io/mlx, mlx.core.quantize.)

GGML has no such type. 4-bit matrices become Q4_1 if float16 represents all of their scales and biases. Otherwise, and
for 8 bits, they become AFFINE8, which has float32 scales and biases. So every weight is scale * code + bias, rounded
once, to float32. (If the scales are float32 themselves, there may be two roundings: docs/decisions/mlx-weights.md.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.quantize import affine8_blocks, q4_1_blocks
from featherback.engine.formats.safetensors import CONFIG, SafetensorsFolder
from featherback.engine.formats.store import matrix
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.engine.formats.writer import OutTensor
from featherback.errors import FeatherbackError, excerpt
from featherback.models.streams import copied, floats_of, row_blocks, unmap_pages

QUANTIZATION, COPY = "quantization", "quantization_config"
"""Entries of config.json. The second is a copy of the first, for transformers."""
BITS, SIZES, MODE = (4, 8), (32, 64, 128), "affine"
WEIGHT, SCALES, BIASES = ".weight", ".scales", ".biases"

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]


TITLE = "by MLX"


def take(entries: dict[str, Any], path: Path) -> object:
    """Remove MLX's entries from a config.json and return the quantisation; None if there is none."""
    packed = entries.pop(QUANTIZATION, None)
    if packed is not None and entries.get(COPY) == packed:
        del entries[COPY]
    return packed


class Grouping(NamedTuple):
    """The bits and the group size of a packed matrix."""

    bits: int
    size: int  # weights in a group


class Packed(NamedTuple):
    """The tensors that make up a packed matrix."""

    info: TensorInfo  # of the unpacked matrix: (rows, cols)
    words: TensorInfo
    scales: Matrix  # (rows, groups)
    biases: Matrix
    grouping: Grouping


class MLXFolder:
    """The weights of an MLX folder. `tensors` lists the unpacked matrices and their shapes."""

    label = "mlx"

    def __init__(self, path: Path, quantization: object) -> None:
        """Open a folder. `quantization`: that entry of its config.json.

        Raises FeatherbackError if the tensors do not fit the entry.
        """
        self.path = path
        self.store = SafetensorsFolder(path, packed="U32")
        try:
            self._groupings = _Groupings(path / CONFIG, quantization)
            self._packed = {
                name: self._matched(name)
                for name in self.store.tensors
                if name in self.store.words or _part(name, SCALES) in self.store.tensors
            }
        except BaseException:
            self.store.close()
            raise
        parts = {_part(name, end) for name in self._packed for end in (SCALES, BIASES)}
        self.tensors: Mapping[str, TensorInfo] = {
            name: self._packed[name].info if name in self._packed else info
            for name, info in self.store.tensors.items()
            if name not in parts
        }

    def output(self, name: str) -> OutTensor:
        """The tensor as the cache's file will store it."""
        info = self.tensors[name]
        if (packed := self._packed.get(name)) is None:
            return OutTensor(name, info.type, info.shape, lambda: copied(self.store.data(name)))
        halves = packed.grouping.bits == 4 and all(self._fits_halves(packed))
        kind = TensorType.Q4_1 if halves else TensorType.AFFINE8
        return OutTensor(name, kind, info.shape, partial(self._blocks, packed, kind))

    def close(self) -> None:
        """Close the files."""
        self.store.close()

    def _matched(self, name: str) -> Packed:
        """Find the parts of a packed matrix. Raises FeatherbackError if one is missing or has another shape."""
        tensors, words = self.store.tensors, self.store.words
        where = f"{name} of {self.path}"
        if not name.endswith(WEIGHT) or _part(name, SCALES) not in tensors:
            raise FeatherbackError(
                f"Tensor {where} is packed, but its {_part(name, SCALES)} is missing; the folder is incomplete."
            )
        if _part(name, BIASES) not in tensors:
            raise FeatherbackError(
                f"Tensor {where} has scales but no {_part(name, BIASES)}; only MLX's affine mode is supported."
            )
        grouping = self._groupings.of(name.removesuffix(WEIGHT))
        info, scales, biases = (tensors[_part(name, end)] for end in (WEIGHT, SCALES, BIASES))
        if name not in words or {scales.name, biases.name} & words:
            raise FeatherbackError(f"Tensor {where} must have the type U32, and its scales and biases must be floats.")
        bits, size = grouping
        if len(info.shape) != 2:
            raise FeatherbackError(f"Tensor {where} has shape {info.shape}; a packed matrix has two dimensions.")
        rows, cols = info.shape[0], info.shape[1] * 32 // bits
        if cols % size:
            raise FeatherbackError(
                f"Tensor {where} has rows of {cols} weights of {bits} bits; that is not a multiple of its group size, "
                f"{size}."
            )
        for part in (scales, biases):
            if part.shape != (rows, cols // size):
                raise FeatherbackError(
                    f"Tensor {part.name} of {self.path} has shape {part.shape}; {rows} rows of {cols} weights in "
                    f"groups of {size} need {(rows, cols // size)}."
                )
        stands_for = TensorInfo(name, info.type, (rows, cols), info.offset, info.nbytes)
        return Packed(stands_for, info, matrix(self.store, scales.name), matrix(self.store, biases.name), grouping)

    def _fits_halves(self, packed: Packed) -> Iterator[bool]:
        """Yield, for a few rows at a time, whether float16 represents their scales and biases exactly."""
        for first, last in row_blocks(*packed.info.shape):
            scales, biases = self._numbers(packed, first, last)
            fits = _is_half(scales)
            if not fits.all():
                codes = self._codes(packed, first, last).reshape(*scales.shape, packed.grouping.size)
                fits |= ~codes.any(axis=2)  # the scale of a group whose codes are all 0 does not matter
            yield bool(fits.all() and _is_half(biases).all())
            self._give_back(packed)

    def _blocks(self, packed: Packed, kind: TensorType) -> Iterator[memoryview]:
        """Yield the bytes of a matrix stored as `kind`."""
        runs = packed.grouping.size // kind.block_size
        for first, last in row_blocks(*packed.info.shape):
            scales, biases = self._numbers(packed, first, last)
            codes = self._codes(packed, first, last)
            if kind is TensorType.Q4_1:  # a scale that does not fit is unused: it becomes a zero of the same sign
                scales = np.where(_is_half(scales), scales, scales * np.float32(0))
            store = q4_1_blocks if kind is TensorType.Q4_1 else affine8_blocks
            d, m = (part.repeat(runs, axis=1).reshape(-1, 1) for part in (scales, biases))
            yield store(d, m, codes.reshape(-1, kind.block_size)).reshape(-1).data
            self._give_back(packed)

    def _numbers(self, packed: Packed, first: int, last: int) -> tuple[Floats, Floats]:
        """Scales and biases of some rows, each (rows, groups). Raises FeatherbackError if one is not finite."""
        found = []
        for part, end in ((packed.scales, SCALES), (packed.biases, BIASES)):
            values = floats_of(part.rows_between(first, last))
            if not np.isfinite(values).all():
                raise FeatherbackError(
                    f"Tensor {_part(packed.info.name, end)} of {self.path} holds a value that is not finite."
                )
            found.append(values)
        return found[0], found[1]

    def _codes(self, packed: Packed, first: int, last: int) -> Codes:
        """The codes of some rows, shape (rows, cols), uint8."""
        width = packed.words.shape[1] * 4
        words = self.store.data(packed.words.name)[first * width : last * width]
        if packed.grouping.bits == 8:
            return words.reshape(last - first, -1)
        codes = np.empty((*words.shape, 2), np.uint8)
        np.bitwise_and(words, 15, out=codes[:, 0])
        np.right_shift(words, 4, out=codes[:, 1])
        return codes.reshape(last - first, -1)

    def _give_back(self, packed: Packed) -> None:
        """Unmap the pages of a matrix."""
        unmap_pages(self.store.data(packed.words.name), packed.scales.data, packed.biases.data)


class _Groupings:
    """The bits and group size of each module, from config.json."""

    def __init__(self, path: Path, quantization: object) -> None:
        self._path = path
        if not isinstance(quantization, dict):
            raise FeatherbackError(f"The entry {QUANTIZATION} of {path} is not a JSON object.")
        self._entries = quantization

    def of(self, module: str) -> Grouping:
        """The bits and group size of a module. Raises FeatherbackError if they are unsupported."""
        own = self._entries.get(module)
        if own is False:
            raise FeatherbackError(f"{self._path} says that {module} is not quantised, but it has scales.")
        said = {**self._entries, **(own if isinstance(own, dict) else {})}
        of = f" of {module}" if isinstance(own, dict) else ""
        for name, value, known in (
            ("mode", said.get("mode", MODE), (MODE,)),
            ("bits", said.get("bits"), BITS),
            ("group_size", said.get("group_size"), SIZES),
        ):
            if type(value) is not type(known[0]) or value not in known:
                raise FeatherbackError(
                    f"The {name}{of} under {QUANTIZATION} in {self._path} is {excerpt(value)}; supported: "
                    f"{', '.join(map(str, known))}."
                )
        return Grouping(said["bits"], said["group_size"])


def _part(name: str, end: str) -> str:
    """The name of another tensor of the same module: "x.scales" for "x.weight" and ".scales"."""
    return name.removesuffix(WEIGHT) + end


def _is_half(values: Floats) -> NDArray[np.bool_]:
    """Which of the values float16 represents exactly."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32) == values
