"""A device of PyTorch as options and plans see it: whether it is there, its memory, its speed, what it can read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from featherback.core.naming import argument
from featherback.core.sizes import MB, shown_mb
from featherback.engine import kernels
from featherback.engine.backend.protocol import Rates
from featherback.engine.backend.torch_device.arrays import Array, Limits
from featherback.engine.backend.torch_device.device import OPERANDS, TorchDevice
from featherback.engine.backend.torch_device.unpacking import UNPACK
from featherback.engine.backend.torch_device.weights import Weight
from featherback.engine.formats.types import TensorType
from featherback.engine.host.machine import memory_limit
from featherback.errors import FeatherbackError

SHARE = {"cpu": 0.5}
"""The share of the free memory that a process takes if the user sets no limit; of a GPU's, GPU_SHARE."""
GPU_SHARE = 0.9
ROOM = 1 / 8
"""The share of the memory for the temporary arrays of products and attention, at most MOST_ROOM."""
LEAST_ROOM, MOST_ROOM = 4 * MB, 1024 * MB
COPIES = 8
"""Most float32 copies of its arrays that an elementwise operation makes."""
UPLOADS = 8 * MB
"""Bytes of row numbers and targets that stay on the device (`arrays.uploaded`)."""
TIMED = 5


GPU = Rates(products=400e12, attention=200e12, unpacked=1e12, moved=2e12, received=20e9)
"""A large GPU in bf16, about half of what docs/decisions/gpu.md measured."""
APPLE = Rates(products=10e12, attention=5e12, unpacked=100e9, moved=200e9, received=100e9)
CPU = Rates(products=60e9, attention=30e9, unpacked=0.3e9, moved=5e9, received=5e9)
"""These two are guesses."""


@dataclass(frozen=True)
class _Kind:
    """What differs between PyTorch's devices: its name for one, and where it says what the device has."""

    device: str
    module: str  # of torch
    memory: Callable[[Any], tuple[int, int]]  # bytes that are free, and all
    computes: tuple[str, ...] = ("bf16", "fp32")
    rates: Rates = GPU

    @property
    def of_torch(self) -> Any:
        return getattr(torch, self.module)


def _of_mps(mps: Any) -> tuple[int, int]:
    whole = mps.recommended_max_memory()
    return whole - mps.driver_allocated_memory(), whole


KINDS = {
    "cuda": _Kind("cuda", "cuda", lambda cuda: cuda.mem_get_info()),
    "xpu": _Kind("xpu", "xpu", lambda xpu: xpu.mem_get_info()),
    "mps": _Kind("mps", "mps", _of_mps, ("fp32", "bf16"), APPLE),
    "cpu-torch": _Kind("cpu", "cpu", lambda _: (memory_limit(),) * 2, ("fp32", "bf16"), CPU),
}


def _room(memory: float) -> int:
    """Return the bytes for the temporary arrays of products and attention, of all the memory."""
    return int(min(MOST_ROOM, max(LEAST_ROOM, ROOM * memory)))


class TorchCard:
    """`engine.backend.protocol.Card`.

    A process that opens one lets PyTorch use deterministic algorithms only, and as many threads as the kernels have.
    """

    def __init__(self, name: str, limit: int | None) -> None:
        self.name, self.limit, self._kind = name, limit, KINDS[name]
        self.computes = self._kind.computes
        if not self._kind.of_torch.is_available():
            raise FeatherbackError(
                f"{argument('device', name)} is not available: PyTorch {torch.__version__} finds no such device here. "
                f"Install a PyTorch that is built for it (https://pytorch.org), or remove {argument('device')}."
            )
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, CUDA's products are not deterministic
        torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms would load PyTorch's compiler
        setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 - PyTorch declares no such name
        free, whole = self._kind.memory(self._kind.of_torch)
        if limit is not None and limit > free:
            asked = argument("vram", f"{limit // MB}MB")
            raise FeatherbackError(
                f"{asked} is more than the {shown_mb(free)} that are free on {name}. Use at most that."
            )
        self.memory = int(SHARE.get(self._kind.device, GPU_SHARE) * free) if limit is None else limit
        if limit is not None and hasattr(self._kind.of_torch, "set_per_process_memory_fraction"):
            self._kind.of_torch.set_per_process_memory_fraction(limit / whole)
        self._room = _room(self.memory)

    def open(self, compute: str, rounded: bool = False, decoding: bool = False) -> TorchDevice:
        """Return the device that computes. Raises FeatherbackError for a `compute` that it does not have."""
        if compute not in OPERANDS:
            raise FeatherbackError(
                f"{argument('device', self.name)} does not support {argument('compute', compute)}. Use "
                f"{argument('compute', 'bf16')} or {argument('compute', 'fp32')}."
            )
        torch.set_num_threads(kernels.threads())
        return TorchDevice(self._kind.device, compute, Limits.within(self._room))

    def check(self, types: Iterable[TensorType]) -> None:
        """Raise FeatherbackError if a type cannot be read."""
        if wrong := sorted({each.name for each in types if each not in UNPACK}):
            known = ", ".join(each.name for each in UNPACK)
            raise FeatherbackError(
                f"{argument('device', self.name)} cannot read weights of the type {', '.join(wrong)}. It reads "
                f"{known}. Use a model in one of these types, or remove {argument('device')}."
            )

    def rates(self, compute: str) -> Rates:
        """Return the fixed rates by which plans are compared."""
        return self._kind.rates

    def measured(self, compute: str, rows: int, cols: int, tokens: int) -> float:
        """Return the operations per second of a product with a made-up weight (rows, cols), in Q8_0."""
        device, kind = self.open(compute), TensorType.Q8_0
        cols = -(-cols // kind.block_size) * kind.block_size
        stored = torch.zeros(rows * kind.row_bytes(cols), dtype=torch.uint8, device=self._kind.device)
        weight = Weight.of(kind, cols, stored, device.limits)
        x = device.arena(tokens * cols * 4).take("x", (tokens, cols), device.operand)
        out = device.arena(tokens * rows * 4).take("out", (tokens, rows))
        device.ops.fill(x, 0.0)
        best = np.inf
        for _ in range(TIMED):
            began = time.perf_counter()
            device.ops.linear(x, weight, out)
            self._wait(out)
            best = min(best, time.perf_counter() - began)
        return 2 * tokens * rows * cols / best

    def temporaries(self, rows: int, columns: int) -> int:
        """Return the most bytes that an operation on arrays (rows, columns) takes beside them."""
        return self._room + COPIES * 4 * rows * columns + UPLOADS

    def enough(self, nbytes: int) -> int:
        """Return the bytes of memory in which a plan fits that takes `nbytes` with the present memory."""
        held = nbytes - self._room
        return held + _room(held / (1 - ROOM)) + 1

    @staticmethod
    def _wait(x: Array) -> None:
        """Wait until x is computed."""
        x.tensor[:1, :1].cpu()
