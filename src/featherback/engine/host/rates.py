"""The fixed rates by which plans are compared, so that the same command has the same plan and the same bits.

They decide which intermediates are worth keeping and which tiles to use. Only their ratios matter for that, and ratios
differ much less between two machines with the same instructions than between two moments on a busy machine. The seconds
shown to the user are predicted with measured rates (`Machine.measure`). docs/decisions/same-bits.md compares the plans
of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from featherback.engine import kernels
from featherback.engine.host.machine import Machine


@dataclass(frozen=True)
class Rates:
    """Rates of one thread, in 10^9 per second."""

    products: Mapping[str, float]  # compute -> floating-point operations, without unpacking
    unpacked: Mapping[str, float]  # compute -> stored weights
    attention: float  # floating-point operations


def _rates(products: tuple[float, float, float], unpacked: tuple[float, float, float], attention: float) -> Rates:
    computes = ("bf16", "int16", "fp32")
    return Rates(dict(zip(computes, products)), dict(zip(computes, unpacked)), attention)


NOMINAL = {
    # Measured on one thread of an AMD EPYC (Zen 4, AVX512-BF16): the best of many products of 32 and of 256 rows with
    # Q4_0 weights of the widths 576, 896 and 1,536, and of attention over 256 tokens.
    "portable": _rates((27, 45, 27), (3, 3, 3), 24),
    "avx2": _rates((105, 140, 105), (4, 3.1, 4.2), 68),
    "avx512": _rates((107, 162, 107), (6, 4.2, 6), 78),
    "avx512bf16": _rates((225, 182, 107), (12, 4.2, 6.5), 78),
    # Not measured. Cores with this NEON instruction are narrower.
    "neon_bf16": _rates((100, 50, 30), (4, 3, 3), 24),
    "reference": _rates((1, 1, 1), (1, 1, 1), 1),
}
"""By instruction set, as the kernels name it."""

DISK = 2e9
"""Bytes per second from the disk."""
COPIED = 10e9
"""Bytes per second through the page cache, for any number of threads."""
THREADS = 2
"""Plans are compared with the rates of this many threads, so that a plan does not depend on the number in use."""


def nominal(compute: str, memory: int | None = None) -> Machine:
    """Return the rates of the current instruction set on THREADS threads. `memory`: bytes that a process can have."""
    rates = NOMINAL[kernels.current()]
    return Machine(
        product_rate=THREADS * rates.products[compute] * 1e9,
        attention_rate=THREADS * rates.attention * 1e9,
        copy_rate=COPIED,
        unpack_rate=THREADS * rates.unpacked[compute] * 1e9,
        memory=memory,
        disk_rate=DISK,
    )
