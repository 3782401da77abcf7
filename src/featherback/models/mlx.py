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
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.quantize import affine8_blocks, q4_1_blocks
from featherback.engine.formats.safetensors import CONFIG, SafetensorsFolder
from featherback.engine.formats.store import matrix
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.errors import FeatherbackError, excerpt
from featherback.models.mxfp4 import packed_rows
from featherback.models.streams import floats_of, picked, row_blocks, unmap_pages

QUANTIZATION, COPY = "quantization", "quantization_config"
"""Entries of config.json. The second is a copy of the first, for transformers."""
BITS, SIZES, MODE, MXFP4 = (4, 8), (32, 64, 128), "affine", "mxfp4"
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
    """The bits, the group size and the mode of a packed matrix."""

    bits: int
    size: int  # weights in a group
    mode: str


class Packed(NamedTuple):
    """The tensors that make up a packed matrix."""

    info: TensorInfo  # of the unpacked matrix: (rows, cols), or of a stack of them
    words: TensorInfo
    numbers: list[Matrix]  # scales and biases (rows, groups); of MXFP4 only scales
    grouping: Grouping


class MLXFolder:
    """The weights of an MLX folder. `tensors` lists the unpacked matrices and their shapes."""

    label = "mlx"

    def __init__(self, path: Path, quantization: object) -> None:
        """Open a folder. `quantization`: that entry of its config.json.

        Raises FeatherbackError if the tensors do not fit the entry.
        """
        self.path = path
        self.store = SafetensorsFolder(path, packed=("U32", "U8"))
        try:
            self._groupings = _Groupings(path / CONFIG, quantization)
            self._packed = {
                name: self._matched(name)
                for name in self.store.tensors
                if (name in self.store.words and not self._is_scales(name)) or _part(name, SCALES) in self.store.tensors
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

    def kind(self, name: str) -> TensorType:
        """The type of the rows of a tensor: Q4_1 or AFFINE8 for packed ones."""
        if (packed := self._packed.get(name)) is None:
            return self.tensors[name].type
        if packed.grouping.mode == MXFP4:
            return TensorType.MXFP4
        halves = packed.grouping.bits == 4 and all(self._fits_halves(packed))
        return TensorType.Q4_1 if halves else TensorType.AFFINE8

    def rows(self, name: str, wanted: range) -> Iterator[Matrix]:
        """Yield rows of a tensor, a few at a time, and unmap their pages."""
        if (packed := self._packed.get(name)) is None:
            yield from picked(matrix(self.store, name), wanted)
            return
        kind = self.kind(name)
        for first, last in row_blocks(len(wanted), packed.info.shape[-1]):
            yield self._stored(packed, wanted[first:last], kind)
            self._give_back(packed)

    def close(self) -> None:
        """Close the files."""
        self.store.close()

    def _is_scales(self, name: str) -> bool:
        return name.endswith(SCALES) and name.removesuffix(SCALES) + WEIGHT in self.store.tensors

    def _matched(self, name: str) -> Packed:
        """Find the parts of a packed matrix. Raises FeatherbackError if one is missing or has another shape."""
        tensors, words = self.store.tensors, self.store.words
        where = f"{name} of {self.path}"
        if not name.endswith(WEIGHT) or _part(name, SCALES) not in tensors:
            raise FeatherbackError(
                f"Tensor {where} is packed, but its {_part(name, SCALES)} is missing; the folder is incomplete."
            )
        grouping = self._groupings.of(name.removesuffix(WEIGHT))
        ends = (SCALES,) if grouping.mode == MXFP4 else (SCALES, BIASES)
        if _part(name, BIASES) not in tensors and len(ends) == 2:
            raise FeatherbackError(
                f"Tensor {where} has scales but no {_part(name, BIASES)}; only MLX's affine mode is supported."
            )
        info, numbers = tensors[name], [tensors[_part(name, end)] for end in ends]
        bytewise = grouping.mode == MXFP4  # scales are bytes, not floats
        if name not in words or any((part.name in words) != bytewise for part in numbers):
            raise FeatherbackError(
                f"Tensor {where} must have the type U32, and its scales{'' if bytewise else ' and biases'} must be "
                f"{'U8' if bytewise else 'floats'}."
            )
        bits, size, _ = grouping
        if len(info.shape) not in (2, 3):
            raise FeatherbackError(f"Tensor {where} has shape {info.shape}; a packed matrix has two dimensions.")
        *lead, width = info.shape
        cols = width * 32 // bits
        if cols % size:
            raise FeatherbackError(
                f"Tensor {where} has rows of {cols} weights of {bits} bits; that is not a multiple of its group size, "
                f"{size}."
            )
        for part in numbers:
            needed = (*lead, cols // size)
            if part.nbytes != prod(needed) if bytewise else part.shape != needed:
                raise FeatherbackError(
                    f"Tensor {part.name} of {self.path} has shape {part.shape}; {prod(lead)} rows of {cols} weights in "
                    f"groups of {size} need {needed}."
                )
        stands_for = TensorInfo(name, info.type, (*lead, cols), info.offset, info.nbytes)
        return Packed(stands_for, info, [matrix(self.store, part.name) for part in numbers], grouping)

    def _fits_halves(self, packed: Packed) -> Iterator[bool]:
        """Yield, for a few rows at a time, whether float16 represents their scales and biases exactly."""
        height = prod(packed.info.shape[:-1])
        for first, last in row_blocks(height, packed.info.shape[-1]):
            some = range(first, last)
            scales, biases = self._numbers(packed, some)
            fits = _is_half(scales)
            if not fits.all():
                codes = self._codes(packed, some).reshape(*scales.shape, packed.grouping.size)
                fits |= ~codes.any(axis=2)  # the scale of a group whose codes are all 0 does not matter
            yield bool(fits.all() and _is_half(biases).all())
            self._give_back(packed)

    def _stored(self, packed: Packed, some: range, kind: TensorType) -> Matrix:
        """Return some rows of a matrix as `kind`."""
        size = packed.grouping.size
        if kind is TensorType.MXFP4:
            exponents = self.store.data(_part(packed.info.name, SCALES)).reshape(-1, packed.info.shape[-1] // size)
            return packed_rows(self._words(packed, some), exponents[some.start : some.stop : some.step])
        scales, biases = self._numbers(packed, some)
        codes = self._codes(packed, some)
        if kind is TensorType.Q4_1:  # a scale that does not fit is unused: it becomes a zero of the same sign
            scales = np.where(_is_half(scales), scales, scales * np.float32(0))
        store = q4_1_blocks if kind is TensorType.Q4_1 else affine8_blocks
        d, m = (part.repeat(size // kind.block_size, axis=1).reshape(-1, 1) for part in (scales, biases))
        data = store(d, m, codes.reshape(-1, kind.block_size)).reshape(-1)
        return Matrix(data, kind, len(some), packed.info.shape[-1])

    def _numbers(self, packed: Packed, some: range) -> tuple[Floats, Floats]:
        """Scales and biases of some rows, each (rows, groups). Raises FeatherbackError if one is not finite."""
        found = []
        for part, end in zip(packed.numbers, (SCALES, BIASES), strict=True):
            values = floats_of(part.rows_between(some.start, some[-1] + 1))[:: some.step]
            if not np.isfinite(values).all():
                raise FeatherbackError(
                    f"Tensor {_part(packed.info.name, end)} of {self.path} holds a value that is not finite."
                )
            found.append(values)
        return found[0], found[1]

    def _words(self, packed: Packed, some: range) -> Codes:
        """The bytes of some rows, shape (rows, bytes)."""
        data = self.store.data(packed.words.name).reshape(-1, packed.words.shape[-1] * 4)
        return data[some.start : some.stop : some.step]

    def _codes(self, packed: Packed, some: range) -> Codes:
        """The codes of some rows, shape (rows, cols), uint8."""
        words = self._words(packed, some)
        if packed.grouping.bits == 8:
            return words
        codes = np.empty((*words.shape, 2), np.uint8)
        np.bitwise_and(words, 15, out=codes[..., 0])
        np.right_shift(words, 4, out=codes[..., 1])
        return codes.reshape(len(words), -1)

    def _give_back(self, packed: Packed) -> None:
        """Unmap the pages of a matrix."""
        unmap_pages(self.store.data(packed.words.name), *(part.data for part in packed.numbers))


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
        said, of = self._entries, ""
        if isinstance(own, dict):  # it has a mode of its own
            said, of = {**said, "mode": MODE, **own}, f" of {module}"
        mode = said.get("mode", MODE)
        four = mode == MXFP4
        for name, value, known in (
            ("mode", mode, (MODE, MXFP4)),
            ("bits", said.get("bits"), (4,) if four else BITS),
            ("group_size", said.get("group_size"), (32,) if four else SIZES),
        ):
            if type(value) is not type(known[0]) or value not in known:
                raise FeatherbackError(
                    f"The {name}{of} under {QUANTIZATION} in {self._path} is {excerpt(value)}; supported: "
                    f"{', '.join(map(str, known))}."
                )
        return Grouping(said["bits"], said["group_size"], mode)


def _part(name: str, end: str) -> str:
    """The name of another tensor of the same module: "x.scales" for "x.weight" and ".scales"."""
    return name.removesuffix(WEIGHT) + end


def _is_half(values: Floats) -> NDArray[np.bool_]:
    """Which of the values float16 represents exactly."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32) == values
