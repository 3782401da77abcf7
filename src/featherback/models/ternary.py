"""Ternary weights: -s, 0 or s, with one scale s for a matrix, as in BitNet b1.58. They become the type TERNARY.

Three kinds of files hold them in forms that the kernels do not read, so they are converted when they are first opened:

- GGUF files with I2_S tensors, a type of Microsoft's fork of llama.cpp: 128 weights in 32 bytes, codes of two bits, of
  which group j of 32 weights has bits 6 - 2j; w = s (code - 1); s, float32, follows the whole tensor.
- GGUF files with a tensor NAME.scale beside NAME.weight: the weights are multiplied by it.
- Hugging Face folders whose config.json has a quantization_config of `quant_method` bitnet. Packed matrices (out / 4,
  in) have row r + j out / 4 in bits 2j of row r; w = code - 1, multiplied by NAME.weight_scale if `linear_class` is
  autobitlinear, otherwise divided. With `quantization_mode` online the weights are float masters, ternarised as the
  model does before each product: s = mean |w|, w = s clip(round(w / s), -1, 1).

Every weight is then exact in float32, rounded at most once. See docs/models.md, 'Ternary weights'.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.quantize import ternary_blocks
from featherback.engine.formats.safetensors import CONFIG, SafetensorsFolder
from featherback.engine.formats.store import TensorStore, floats, matrix
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.engine.formats.writer import OutTensor
from featherback.errors import FeatherbackError, excerpt
from featherback.models.architecture.names import Names
from featherback.models.streams import copied, floats_of, row_blocks, unmap_pages

TITLE = "as a BitNet"
LABEL = "ternary"
ENTRY, METHOD = "quantization_config", "bitnet"
MULTIPLIES, DIVIDES = "autobitlinear", "bitlinear"
ONLINE, OFFLINE = "online", "offline"
WEIGHT, SCALE, HF_SCALE = ".weight", ".scale", ".weight_scale"
BLOCK = TensorType.TERNARY.block_size
GROUP, GROUPS = 32, 4
"""Weights that share the position of their bits in a block of I2_S, and groups in a block."""
LEAST_MEAN = np.float32(1e-5)
"""The smallest mean |w| by which masters are divided."""

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]


class Quantization(NamedTuple):
    """How a Hugging Face folder stores ternary weights."""

    online: bool  # float masters, ternarised at load
    multiplies: bool  # by the scale; otherwise packed weights are divided by it


def take(entries: dict[str, Any], path: Path) -> Quantization | None:
    """Remove BitNet's entry from a config.json and return it; None if there is none.

    Raises FeatherbackError if it states something that is not supported.
    """
    entry = entries.get(ENTRY)
    if not isinstance(entry, dict) or entry.get("quant_method") != METHOD:
        return None
    del entries[ENTRY]
    kind, mode = entry.get("linear_class", DIVIDES), entry.get("quantization_mode", OFFLINE)
    for name, value, known in (
        ("linear_class", kind, (MULTIPLIES, DIVIDES)),
        ("quantization_mode", mode, (ONLINE, OFFLINE)),
        ("use_rms_norm", entry.get("use_rms_norm", False), (False,)),
        ("modules_to_not_convert", entry.get("modules_to_not_convert"), (None, [], ["lm_head"])),
    ):
        if value not in known:
            raise FeatherbackError(
                f"The {name} under {ENTRY} in {path} is {excerpt(value)}; supported: {', '.join(map(str, known))}."
            )
    return Quantization(kind == MULTIPLIES and mode == ONLINE, kind == MULTIPLIES)


class _Source:
    """The tensors of a file or folder: `outputs` names those that become TERNARY; the others are copied."""

    label = LABEL
    path: Path
    store: TensorStore
    tensors: Mapping[str, TensorInfo]

    def output(self, name: str) -> OutTensor:
        """The tensor as the cache's file will store it."""
        info = self.tensors[name]
        if not self._is_ternary(name):
            return OutTensor(name, info.type, info.shape, lambda: copied(self.store.data(name)))
        if len(info.shape) != 2 or info.shape[1] % BLOCK:
            raise FeatherbackError(
                f"Tensor {name} of {self.path} has shape {info.shape}; ternary weights need two dimensions and rows of "
                f"a multiple of {BLOCK} weights."
            )
        return OutTensor(name, TensorType.TERNARY, info.shape, partial(self._blocks, info))

    def close(self) -> None:
        """Close the files."""
        self.store.close()

    def _is_ternary(self, name: str) -> bool:
        raise NotImplementedError

    def _blocks(self, info: TensorInfo) -> Iterator[memoryview]:
        raise NotImplementedError

    def _scale(self, name: str) -> np.float32:
        """Read a scale, one number. Raises FeatherbackError if there are several, or if it is not finite or 0."""
        info = self.store.tensors.get(name)
        if info is None:
            raise FeatherbackError(f"{self.path} has no tensor {name}, the scale of its ternary weights.")
        values = floats(self.store, name).reshape(-1)
        return self._checked(values, name)

    def _checked(self, values: Floats, name: str) -> np.float32:
        if values.size != 1 or not np.isfinite(values[0]) or values[0] == 0:
            raise FeatherbackError(
                f"The scale {name} of {self.path} is {excerpt(values.tolist())}; it must be one finite number, not 0."
            )
        return np.float32(values[0])

    def _stored(self, codes: Codes, scale: np.float32, name: str) -> memoryview:
        """The bytes of TERNARY blocks with these codes (rows, cols) and one scale."""
        if codes.max(initial=0) > 2:
            raise FeatherbackError(
                f"Tensor {name} of {self.path} holds the code 3, which no ternary weight has; the file is corrupt, or "
                f"of another type."
            )
        runs = codes.reshape(-1, BLOCK)
        return ternary_blocks(np.full((len(runs), 1), scale, np.float32), runs).reshape(-1).data


class TernaryGGUF(_Source):
    """The weights of a GGUF file that has I2_S tensors, or scales."""

    def __init__(self, file: GGUFFile) -> None:
        self.path, self.store, self._file = file.path, file, file
        self._scales = _scales(file)
        used = set(self._scales.values())
        self.tensors = {name: info for name, info in file.tensors.items() if name not in used}

    def _is_ternary(self, name: str) -> bool:
        return name in self._file.i2_s or name in self._scales

    def _blocks(self, info: TensorInfo) -> Iterator[memoryview]:
        own = np.float32(1)
        if (beside := self._scales.get(info.name)) is not None:
            own = self._scale(beside)
        return self._of_i2_s(info, own) if info.name in self._file.i2_s else self._scaled(info, own)

    def _of_i2_s(self, info: TensorInfo, factor: np.float32) -> Iterator[memoryview]:
        rows, cols = info.shape
        if cols % (GROUP * GROUPS):
            raise FeatherbackError(
                f"The I2_S tensor {info.name} of {self.path} has rows of {cols} weights; supported: multiples of "
                f"{GROUP * GROUPS}."
            )
        data, width = self.store.data(info.name), cols // GROUPS
        scale = self._checked(data[rows * width :][:4].copy().view(np.float32), f"of {info.name}") * factor
        for first, last in row_blocks(rows, cols):
            stored = data[first * width : last * width].reshape(-1, 1, GROUP)
            shifts = np.arange(GROUPS - 1, -1, -1, dtype=np.uint8)[:, None] * np.uint8(2)
            codes = stored >> shifts & np.uint8(3)  # (blocks, groups, 32)
            yield self._stored(codes.reshape(last - first, cols), scale, info.name)
            unmap_pages(data)

    def _scaled(self, info: TensorInfo, factor: np.float32) -> Iterator[memoryview]:
        whole = matrix(self.store, info.name)
        for first, last in row_blocks(whole.rows, whole.cols):
            runs = floats_of(whole.rows_between(first, last)).reshape(-1, BLOCK)
            sizes = np.abs(runs)
            scale = sizes.max(axis=1, keepdims=True)
            if not np.isfinite(scale).all() or not ((sizes == scale) | (runs == 0)).all():
                raise FeatherbackError(
                    f"Tensor {info.name} of {self.path} has a scale, but its weights are not ternary, which is not "
                    f"supported."
                )
            codes = (np.sign(runs) + 1).astype(np.uint8)
            yield ternary_blocks(scale * factor, codes).reshape(-1).data
            unmap_pages(whole.data)


class TernaryFolder(_Source):
    """The weights of a Hugging Face folder with ternary weights."""

    def __init__(self, path: Path, quantization: Quantization, names: Names) -> None:
        """Open a folder. `names`: part of the model -> name of its tensor; projections are ternary.

        Raises FeatherbackError if the tensors do not fit the quantisation.
        """
        self.path, self._how = path, quantization
        templates = (name for part, name in names.items() if part.endswith("_proj"))
        self._ternary = re.compile("|".join(re.escape(name).replace(r"\{\}", r"\d+") for name in templates))
        self._folder = self.store = SafetensorsFolder(path, packed=("U8",))
        self.tensors = {name: self._info(name) for name in self.store.tensors if not self._is_scale(name)}

    def _is_ternary(self, name: str) -> bool:
        return self._ternary.fullmatch(name) is not None

    def _is_scale(self, name: str) -> bool:
        return name.endswith(HF_SCALE) and self._is_ternary(name.removesuffix(HF_SCALE) + WEIGHT)

    def _info(self, name: str) -> TensorInfo:
        """A tensor in its shape after conversion. Raises FeatherbackError if it is packed and should not be."""
        info = self.store.tensors[name]
        if name not in self._folder.words:
            if self._is_ternary(name) and not (self._how.online or self._how.multiplies):
                raise FeatherbackError(
                    f"Tensor {name} of {self.path} is not packed, but the {DIVIDES} of {self.path / CONFIG} needs "
                    f"packed weights."
                )
            return info
        if not self._is_ternary(name) or self._how.online:
            raise FeatherbackError(f"Tensor {name} of {self.path} has the type 'U8', which is not supported there.")
        if len(info.shape) != 2:
            raise FeatherbackError(
                f"Tensor {name} of {self.path} has {info.nbytes} bytes that are not a matrix of ternary weights: it "
                f"needs two dimensions, and rows of a multiple of 4 bytes."
            )
        rows, words = info.shape  # words of four bytes
        return TensorInfo(name, info.type, (rows * GROUPS, words * 4), info.offset, info.nbytes)

    def _blocks(self, info: TensorInfo) -> Iterator[memoryview]:
        if self._how.online:
            return self._of_masters(info)
        scale = self._scale(info.name.removesuffix(WEIGHT) + HF_SCALE)
        scale = scale if self._how.multiplies else np.float32(1) / scale
        return self._unpacked(info, scale) if info.name in self._folder.words else self._of_signs(info, scale)

    def _unpacked(self, info: TensorInfo, scale: np.float32) -> Iterator[memoryview]:
        rows, cols = info.shape
        data = self.store.data(info.name)
        packed = data.reshape(rows // GROUPS, cols)
        for part in range(GROUPS):
            for first, last in row_blocks(rows // GROUPS, cols):
                yield self._stored(packed[first:last] >> np.uint8(2 * part) & np.uint8(3), scale, info.name)
                unmap_pages(data)

    def _of_signs(self, info: TensorInfo, scale: np.float32) -> Iterator[memoryview]:
        for values in self._rows(info):
            if not np.isin(values, (-1, 0, 1)).all():
                raise FeatherbackError(
                    f"Tensor {info.name} of {self.path} holds weights other than -1, 0 and 1, although "
                    f"{self.path / CONFIG} says that they are quantised."
                )
            yield self._stored((values + 1).astype(np.uint8), scale, info.name)

    def _of_masters(self, info: TensorInfo) -> Iterator[memoryview]:
        total = sum(float(np.abs(values).sum(dtype=np.float64)) for values in self._rows(info))
        mean = np.float32(total / (info.shape[0] * info.shape[1]))
        if not np.isfinite(mean):
            raise FeatherbackError(f"Tensor {info.name} of {self.path} holds a value that is not finite.")
        inverse = np.float32(1) / max(mean, LEAST_MEAN)
        scale = _rounded(np.float32(1) / inverse, info.type)
        for values in self._rows(info):
            yield self._stored((np.rint(values * inverse).clip(-1, 1) + 1).astype(np.uint8), scale, info.name)

    def _rows(self, info: TensorInfo) -> Iterator[Floats]:
        """Yield the values of a float matrix, a few rows at a time."""
        whole = matrix(self.store, info.name)
        for first, last in row_blocks(whole.rows, whole.cols):
            yield floats_of(whole.rows_between(first, last))
            unmap_pages(whole.data)


def needs_conversion(file: GGUFFile) -> bool:
    """Return whether a GGUF file has I2_S tensors, or scales beside its weights."""
    return bool(file.i2_s or _scales(file))


def _scales(file: GGUFFile) -> dict[str, str]:
    """NAME.weight -> NAME.scale, for each matrix that has one."""
    names = ((name, name.removesuffix(WEIGHT) + SCALE) for name in file.tensors if name.endswith(WEIGHT))
    return {name: scale for name, scale in names if scale in file.tensors}


def _rounded(value: np.float32, kind: TensorType) -> np.float32:
    """`value` in the precision of a float type."""
    if kind is TensorType.BF16:
        bits = np.array([value], np.float32).view(np.uint32)
        return np.float32(((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)[0])
    return np.float32(np.float16(value)) if kind is TensorType.F16 else value
