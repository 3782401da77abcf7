"""Devices: operations on arrays, scratch memory and stored matrices. `cpu` computes; `counting` only counts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

from featherback.engine.backend.cpu import CPU
from featherback.engine.backend.protocol import Backend
from featherback.errors import FeatherbackError, expected

TORCH = {"cuda": "cuda", "cpu-torch": "cpu"}
"""Devices of the package `torch`, which only they import, and PyTorch's names for them."""
_chosen = "cpu"


def use(name: str) -> None:
    """Let the process compute on the device `name`: "cpu", or one of TORCH. Raises FeatherbackError for another."""
    global _chosen
    if name != "cpu" and name not in TORCH:
        raise FeatherbackError(f"Unknown device {name!r}; {expected(name, ('cpu', *TORCH))}")
    _chosen = name


def of(compute: str, rounded: bool = False, decoding: bool = False) -> Backend:
    """Return the device on which everything runs, computing in "bf16", "int16" or "fp32".

    `decoding`: its operations are those of next tokens, in which a row has the same bits whatever the number of rows.
    `rounded`: besides, products round these rows to eight bits where that is faster. No other place chooses a device.
    """
    device: Callable[..., Backend] = CPU
    if _chosen != "cpu":
        device = partial(import_module(f"{__name__}.torch_device").TorchDevice, TORCH[_chosen])
    return device(compute, rounded, decoding)
