"""Devices: operations on arrays, scratch memory and stored matrices. `cpu` computes; `counting` only counts."""

from __future__ import annotations

from featherback.engine.backend.cpu import CPU
from featherback.engine.backend.protocol import Backend


def of(compute: str, rounded: bool = False, decoding: bool = False) -> Backend:
    """Return the device on which everything runs, computing in "bf16", "int16" or "fp32".

    `decoding`: its operations are those of next tokens, in which a row has the same bits whatever the number of rows.
    `rounded`: besides, products round these rows to eight bits where that is faster. No other place chooses a device.
    """
    return CPU(compute, rounded, decoding)
