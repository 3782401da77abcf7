"""The native kernels: NumPy arrays in, one native call each.

Every operation overwrites its output unless ``accumulate=True``; ``csrc/core/ops.def`` documents shapes and dtypes.
bf16 arrays are ``uint16``. The instruction set is chosen when the package is imported and can be changed with
:func:`use`; the variable ``FEATHERBACK_KERNELS`` names another one, ``FEATHERBACK_THREADS`` the number of threads.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from featherback import _native
from featherback._native import (
    Matrix,
    ReadAhead,
    adamw,
    add_drawn,
    attention,
    attention_backward,
    attention_backward_cost,
    attention_cost,
    available,
    cast,
    column_dots,
    cross_entropy_finish,
    cross_entropy_tile,
    current,
    decode,
    dequantize,
    drop_pages,
    encode,
    gather_rows,
    glu,
    glu_backward,
    linear,
    linear_backward,
    linear_backward_cost,
    linear_cost,
    lora_gradient,
    lora_gradient_cost,
    lora_in,
    lora_in_cost,
    lost_pages,
    memory_now,
    meter_peak,
    meter_start,
    meter_stop,
    profile,
    profile_report,
    rms_norm,
    rms_norm_backward,
    rope,
    round_at_random,
    scale_columns,
    scratch_peak,
    sgd,
    sum_squares,
    threads,
    unwatch_maps,
    use,
    watch_maps,
)
from featherback.core import signals
from featherback.engine.formats.matrix import Matrix as StoredMatrix
from featherback.errors import FeatherbackError, expected

OPERANDS: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(np.uint16), "int16": np.dtype(np.float32), "fp32": np.dtype(np.float32)
}  # fmt: skip
"""compute -> the type in which matrix products read activations, from the least exact to the most; bf16 is held as
uint16. Those in fixed point round what they read themselves."""


def check_compute(compute: str) -> None:
    """FeatherbackError if nothing computes so."""
    if compute not in OPERANDS:
        raise FeatherbackError(f"Unknown compute {compute!r}; {expected(compute, OPERANDS)}")


MAX_THREADS = 1024
"""More would only exhaust the system's own limits."""

_NOTES = {
    "reference": "scalar, for checking only: very slow",
    "portable": "128-bit vectors, fp32 arithmetic",
    "avx2": "AVX2 + FMA, fp32 arithmetic",
    "avx512": "AVX-512, fp32 arithmetic",
    "avx512bf16": "AVX-512 with bf16 dot products",
    "neon_bf16": "NEON with bf16 matrix products",
}


def matrix(stored: StoredMatrix) -> Matrix:
    """The native handle of a stored weight. No bytes are copied; what lies in a file's map can be released."""
    base = stored.data.base
    mapped = isinstance(base, np.ndarray) and not base.flags.writeable  # what streams fill is not
    return Matrix(stored.data, int(stored.type), stored.rows, stored.cols, base if mapped else None)


def describe_instruction_set() -> str:
    """Which kernels run, and why these."""
    name = current()
    chosen = "named by FEATHERBACK_KERNELS" if os.environ.get("FEATHERBACK_KERNELS") else "best of this CPU"
    return f"{name} ({_NOTES.get(name, 'vector kernels')}; {chosen})"


def describe() -> str:
    """One line: which kernels run and on how many threads."""
    count = threads()
    return f"{describe_instruction_set()}, {count} thread{'s' * (count > 1)}"


def multiplies_bf16() -> bool:
    """Whether the products of the kernels in use read bf16 as it is, weights rounded to it."""
    return current().endswith("bf16")


def set_threads(count: int) -> None:
    """Compute with this many threads; FeatherbackError if the number is impossible."""
    if not 1 <= count <= MAX_THREADS:
        raise FeatherbackError(f"{count} threads are not possible; choose 1 to {MAX_THREADS}.")
    with signals.waiting():
        _native.set_threads(count)


def default_threads() -> int:
    """The CPUs this process may run on, or ``FEATHERBACK_THREADS``."""
    named = os.environ.get("FEATHERBACK_THREADS")
    if named:
        if not named.isdecimal() or int(named) < 1:
            raise FeatherbackError(f"FEATHERBACK_THREADS is {named!r}; it must be a whole number above 0.")
        return int(named)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cpus, MAX_THREADS)


def _choose() -> None:
    """The kernels that ``FEATHERBACK_KERNELS`` names; if it names none, the best ones stay."""
    named = os.environ.get("FEATHERBACK_KERNELS")
    if not named:
        return
    if named not in available():
        raise FeatherbackError(f"FEATHERBACK_KERNELS is {named!r}; this machine runs {', '.join(available())}.")
    use(named)


_choose()
set_threads(default_threads())

__all__ = [
    "OPERANDS",
    "Matrix",
    "ReadAhead",
    "adamw",
    "add_drawn",
    "attention",
    "attention_backward",
    "attention_backward_cost",
    "attention_cost",
    "available",
    "cast",
    "column_dots",
    "cross_entropy_finish",
    "cross_entropy_tile",
    "current",
    "decode",
    "default_threads",
    "dequantize",
    "describe",
    "describe_instruction_set",
    "drop_pages",
    "encode",
    "gather_rows",
    "glu",
    "glu_backward",
    "linear",
    "linear_backward",
    "linear_backward_cost",
    "linear_cost",
    "lora_gradient",
    "lora_gradient_cost",
    "lora_in",
    "lora_in_cost",
    "lost_pages",
    "matrix",
    "memory_now",
    "meter_peak",
    "meter_start",
    "meter_stop",
    "multiplies_bf16",
    "profile",
    "profile_report",
    "rms_norm",
    "rms_norm_backward",
    "rope",
    "round_at_random",
    "scale_columns",
    "scratch_peak",
    "set_threads",
    "sgd",
    "sum_squares",
    "threads",
    "unwatch_maps",
    "use",
    "watch_maps",
]
