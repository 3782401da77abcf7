"""The device of PyTorch that computes, with NumPy arrays of the host on one side and tensors on the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from featherback.engine.backend.torch_device.arrays import Arena, Array, Limits, kept
from featherback.engine.backend.torch_device.operations import Operations
from featherback.engine.backend.torch_device.sources import Resident, Streamed
from featherback.engine.backend.torch_device.weights import Weight
from featherback.engine.formats.matrix import Matrix
from featherback.engine.host.reading import Weights

T = TypeVar("T")
OPERANDS: dict[str, np.dtype[Any]] = {"bf16": np.dtype(np.uint16), "fp32": np.dtype(np.float32)}


class TorchDevice:
    """`engine.backend.protocol.Backend` for a device of PyTorch, such as "cuda" or "cpu"."""

    def __init__(self, name: str, compute: str, limits: Limits) -> None:
        self._device, self.limits = torch.device(name), limits
        self.ops = self.prompts = Operations(limits)
        self.operand: np.dtype[Any] = OPERANDS[compute]
        self.dense_type = self.operand

    def weights(self, model: Weights, mode: str, rows: int, changing: bool) -> Resident | Streamed:
        """Return the source of a model's weights: "resident", or else they are copied from the host's memory."""
        assert not changing, "plans refuse to train a model's own weights"
        if mode == "resident":
            return Resident(model, self._device, self.limits)
        return Streamed(model, self._device, rows, self.limits)

    def arena(self, nbytes: int) -> Arena:
        """Return scratch memory of `nbytes` bytes."""
        return Arena(nbytes, self._device)

    def matrix(self, stored: Matrix | Weight) -> Weight:
        """Return the handle of a stored weight, which is copied unless a source has provided it."""
        if isinstance(stored, Weight):
            return stored
        return self._weight(stored, np.array(stored.data))

    def gather_rows(self, stored: Matrix, ids: NDArray[np.int32], out: Array) -> None:
        """out (n, D) = rows `ids` of a stored weight, dequantised."""
        self.ops.dequantize(self._weight(stored, np.array(stored.data.reshape(stored.rows, -1)[ids])), out)

    def _weight(self, stored: Matrix, data: NDArray[np.uint8]) -> Weight:
        return Weight.of(stored.type, stored.cols, torch.from_numpy(data).to(self._device), self.limits)

    def release(self, matrix: Weight, around: int) -> None:
        """Do nothing: no file is mapped."""

    def vector(self, values: NDArray[np.float32]) -> Array:
        """Return a norm's weight or a bias as an array of the device. It stays there as long as the device is used."""
        return Array(kept(values, self._device))

    @contextmanager
    def host(self, x: Array, *, write: bool = False) -> Iterator[NDArray[Any]]:
        """Yield x in the host's memory, for reading. With `write` it is to be filled, and x has it at the end."""
        if not write:
            yield _to_host(x)
            return
        values = np.empty(x.shape, x.dtype)
        yield values
        x.tensor.copy_(_tensor(values))

    @contextmanager
    def held(self, values: NDArray[Any], *, changing: bool = False) -> Iterator[Array]:
        """Yield an array of the host as one of the device. With `changing`, the host has the changes at the end."""
        x = Array(_tensor(values.copy()).to(self._device))
        yield x
        if changing:
            values[...] = _to_host(x)

    def each(self, tiles: Sequence[T]) -> Sequence[T]:
        """Return all tiles."""
        return tiles

    def most(self, found: Callable[[], T], bound: T) -> T:
        """Return `found()`."""
        return found()


def _tensor(values: NDArray[Any]) -> torch.Tensor:
    """Return an array of the host as a tensor, in which bf16 has its own type."""
    tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if values.dtype == np.uint16 else tensor


def _to_host(x: Array) -> NDArray[Any]:
    tensor = x.tensor.cpu()
    values = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
    return values.numpy().copy() if values.data_ptr() == x.tensor.data_ptr() else values.numpy()
