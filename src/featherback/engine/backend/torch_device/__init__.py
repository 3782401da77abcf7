"""A device of PyTorch: a GPU (CUDA, ROCm), or PyTorch's own CPU device to try it on.

It is imported only on request, and needs the package `torch`. Weights keep the types of the model's file in the
device's memory, or stay in the host's memory and are copied block by block (`sources`). Products unpack them by tile.
It trains LoRA of dense models by MeSP and MeBP. bf16 products use the GPU's matrix units with float32 sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from featherback.core.naming import argument
from featherback.engine.backend.torch_device.arrays import Arena, Array, uploaded
from featherback.engine.backend.torch_device.operations import Operations
from featherback.engine.backend.torch_device.sources import Resident, Streamed
from featherback.engine.backend.torch_device.weights import Weight
from featherback.engine.formats.matrix import Matrix
from featherback.engine.host.reading import Weights
from featherback.errors import FeatherbackError

T = TypeVar("T")
OPERANDS = {"bf16": np.dtype(np.uint16), "fp32": np.dtype(np.float32)}


class TorchDevice:
    """`engine.backend.protocol.Backend` for a device of PyTorch, such as "cuda" or "cpu".

    Raises FeatherbackError for a `compute` that it does not have.
    """

    def __init__(self, name: str, compute: str, rounded: bool = False, decoding: bool = False) -> None:
        if compute not in OPERANDS:
            raise FeatherbackError(f"PyTorch devices do not support {argument('compute')} {compute}. Use bf16 or fp32.")
        self._device = torch.device(name)
        self.ops = self.prompts = Operations()
        self.operand = self.dense_type = OPERANDS[compute]

    def weights(self, model: Weights, mode: str, rows: int, changing: bool) -> Resident | Streamed:
        """Return the source of a model's weights: "streamed" copies a block at a time from the host's memory.

        Raises FeatherbackError if the weights themselves are trained.
        """
        if changing:
            raise FeatherbackError(
                f"PyTorch devices train adapters only. Remove {argument('train')} full, or use the CPU."
            )
        return Streamed(model, self._device, rows) if mode == "streamed" else Resident(model, self._device)

    def arena(self, nbytes: int) -> Arena:
        """Return scratch memory of `nbytes` bytes."""
        return Arena(nbytes, self._device)

    def matrix(self, stored: Matrix | Weight) -> Weight:
        """Return the handle of a stored weight, which is copied unless a source has provided it."""
        if isinstance(stored, Weight):
            return stored
        return Weight.of(stored.type, stored.cols, torch.from_numpy(np.array(stored.data)).to(self._device))

    def gather_rows(self, stored: Matrix, ids: NDArray[np.int32], out: Array) -> None:
        """out (n, D) = rows `ids` of a stored weight, dequantised."""
        rows = np.array(stored.data.reshape(stored.rows, -1)[ids])
        weight = Weight.of(stored.type, stored.cols, torch.from_numpy(rows).to(self._device))
        self.ops.dequantize(weight, out)

    def release(self, matrix: Weight, around: int) -> None:
        """Do nothing: no file is mapped."""

    def vector(self, values: NDArray[np.float32]) -> Array:
        """Return a norm's weight or a bias as an array of the device."""
        return Array(uploaded(values, self._device))

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
