"""Devices of PyTorch: GPUs (CUDA, ROCm, XPU, MPS), or PyTorch's own CPU device to try them on.

They need the package `torch`, which is imported on request. Weights keep the types of the model's file in the device's
memory, or stay in the host's memory and are copied block by block (`sources`). Products unpack them by tile.
bf16 products use the GPU's matrix units with float32 sums.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from featherback.core.naming import argument
from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from featherback.engine.backend.torch_device.card import TorchCard


def find(name: str, limit: int | None) -> TorchCard:
    """Return the device `name`, of which the process may take `limit` bytes.

    Raises FeatherbackError if PyTorch is not installed, or has no such device here.
    """
    if find_spec("torch") is None:
        raise FeatherbackError(
            f"{argument('device', name)} needs PyTorch, which is not installed. Install it with "
            f'`pip install "featherback[torch]"`, or remove {argument("device")}.'
        )
    from featherback.engine.backend.torch_device.card import TorchCard

    return TorchCard(name, limit)
