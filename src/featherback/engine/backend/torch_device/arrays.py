"""Arrays of the device, as the protocol has them, around tensors of PyTorch, and scratch memory for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from featherback.engine.backend.arena import ALIGNMENT, Stack, aligned

TYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(np.float32): torch.float32,
    np.dtype(np.uint16): torch.bfloat16,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.uint8): torch.uint8,
}
"""The type of a tensor for each type of the protocol, in which uint16 holds bf16."""
NAMES = {tensor_type: array_type for array_type, tensor_type in TYPES.items()}


class Array:
    """A tensor with what the protocol asks of an array, and nothing else."""

    __array_ufunc__ = None
    __slots__ = ("dtype", "shape", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.shape, self.dtype = tensor, tuple(tensor.shape), NAMES[tensor.dtype]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Array:
        return Array(self.tensor[key])

    def reshape(self, *shape: int) -> Array:
        """Return the same elements in another shape. Raises RuntimeError if they are not contiguous."""
        return Array(self.tensor.view(shape))


class Arena(Stack):
    """Scratch memory of `nbytes` on a device: one tensor, used as a stack."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        memory = torch.empty(-(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT, dtype=torch.uint8, device=device)
        self._memory = {kind: memory.view(kind) for kind in NAMES}
        self.capacity, self.high_water = max(nbytes, ALIGNMENT), 0

    def take(self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> Array:
        """Return an uninitialised array, valid until its frame ends. Raises MemoryError if there is no room."""
        kind = np.dtype(dtype)
        start, self._top = self._top, self._top + aligned(shape, kind)
        self.high_water = max(self.high_water, self._top)
        if self._top > self.capacity:
            raise MemoryError(f"the arena of {self.capacity} bytes has no room for {name} {shape}: the plan is wrong")
        strides = [1]
        for extent in shape[:0:-1]:
            strides.insert(0, strides[0] * extent)
        return Array(self._memory[TYPES[kind]].as_strided(shape, strides, start // kind.itemsize))

    def release(self) -> None:
        """Do nothing: the memory is the device's."""


def on_tensors(operation: Callable[..., Any]) -> Any:
    """Turn an operation on tensors into one on arrays."""

    def run(*arguments: Any, **options: Any) -> Any:
        return operation(*map(_inside, arguments), **{name: _inside(value) for name, value in options.items()})

    return staticmethod(run)


def _inside(value: Any) -> Any:
    if type(value) is Array:
        return value.tensor
    if isinstance(value, list):  # the parts of `lora_in_parts`
        return [tuple(map(_inside, part)) if isinstance(part, tuple) else part for part in value]
    return value


def put(out: Tensor, values: Tensor, accumulate: bool = False) -> None:
    """out (+)= values, in the type of out."""
    if accumulate:
        out.add_(values)
    else:
        out.copy_(values)


@dataclass(frozen=True)
class Limits:
    """Sizes of what products and attention compute at a time."""

    tile: int  # weights that are unpacked
    scores: int

    @classmethod
    def within(cls, room: int) -> Limits:
        """Return the largest that need at most `room` bytes of temporary arrays (tests measure the factors)."""
        return cls(min(1 << 24, room // 20), min(1 << 26, room // 24))


def uploaded(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return the host's values on the device. Equal values share a tensor, which must not be changed.

    A pass uploads the same row numbers and targets again and again. An upload would wait for the device.
    """
    return _uploaded(values.tobytes(), values.dtype.str, values.shape, device)


def kept(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return the host's values on the device like `uploaded`, for values of the model, which stay there."""
    return _kept(values.tobytes(), values.dtype.str, values.shape, device)


def _upload(content: bytes, dtype: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
    values = torch.from_numpy(np.frombuffer(content, dtype).reshape(shape).copy())
    if device.type == "cuda":
        values = values.pin_memory()  # so that the copy does not wait for the device
    return values.to(device, non_blocking=True)


_uploaded, _kept = lru_cache(maxsize=128)(_upload), lru_cache(maxsize=4096)(_upload)


def row_numbers(rows: NDArray[Any], device: torch.device) -> Tensor:
    """Return row numbers on the device, in the type that PyTorch indexes with."""
    return uploaded(np.asarray(rows, np.int64), device)


def wide(x: Tensor) -> Tensor:
    """Return x in float64: in the host's memory if the device has no such numbers."""
    return x.double() if x.device.type in ("cpu", "cuda") else x.cpu().double()


@cache
def fused(what: str) -> ModuleType:
    """Return the Triton kernels for "unpacking" or "units". Triton comes with PyTorch for GPUs only."""
    return import_module(f"featherback.engine.backend.torch_device.fused_{what}")
