"""The rates that plans are compared by. They are fixed, so that the same command has the same plan and the same bits.

They decide what is worth keeping and which tiles to take: for that their ratios count, which differ much less between
two machines with the same instructions than between two moments of a busy one. The seconds that are shown are
predicted with measured rates (`Machine.measure`). docs/decisions/same-bits.md compares the plans of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from featherback import kernels
from featherback.host.machine import Machine


@dataclass(frozen=True)
class Rates:
    """Of one thread, in 10^9 per second."""

    products: Mapping[str, float]  # compute -> floating-point operations
    attention: float  # floating-point operations
    unpacked: float  # stored weights


def _rates(bf16: float, int16: float, fp32: float, attention: float, unpacked: float) -> Rates:
    return Rates({"bf16": bf16, "int16": int16, "fp32": fp32}, attention, unpacked)


NOMINAL = {
    # Measured with Machine.measure on an AMD EPYC (Zen 4, AVX512-BF16), Q4_0, widths 576 to 1,536, 256 tokens.
    "portable": _rates(27, 45, 27, 24, 3),
    "avx2": _rates(105, 140, 105, 68, 8),
    "avx512": _rates(107, 162, 107, 78, 8),
    "avx512bf16": _rates(225, 182, 107, 78, 8),
    # Not measured: from the rate of their instructions for products of bf16, the rest as in the set beside it.
    "amx_bf16": _rates(900, 182, 107, 78, 8),
    "neon_bf16": _rates(100, 50, 30, 24, 3),
    "reference": _rates(1, 1, 1, 1, 1),
}
"""By instruction set, as the kernels name it."""

COPIED = 10e9
"""Bytes per second through the page cache, on any number of threads."""


def nominal(compute: str, threads: int, memory: int | None = None) -> Machine:
    """The instruction set in use on so many threads; `memory`: bytes that a process can have."""
    rates = NOMINAL[kernels.current()]
    return Machine(
        product_rate=threads * rates.products[compute] * 1e9,
        attention_rate=threads * rates.attention * 1e9,
        copy_rate=COPIED,
        unpack_rate=threads * rates.unpacked * 1e9,
        memory=memory,
    )
