"""The native kernels: NumPy arrays in, one native call each.

Every operation overwrites its output unless ``accumulate=True``. ``csrc/core/ops.def`` documents shapes and dtypes.
bf16 arrays are ``uint16``. The instruction set is chosen when the package is imported, and :func:`use` changes it. The
environment variable ``FEATHERBACK_KERNELS`` selects another one, and ``FEATHERBACK_THREADS`` the number of threads.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from featherback import _native
from featherback._native import (
    MAX_THREADS,
    SEGMENT,
    MapGuard,
    Matrix,
    ReadAhead,
    adamw,
    add_drawn,
    add_rows,
    attention,
    attention_backward,
    attention_backward_cost,
    attention_cost,
    available,
    cache_rows,
    cached_attention,
    cached_attention_cost,
    cast,
    column_dots,
    cross_entropy_finish,
    cross_entropy_tile,
    current,
    decode,
    delta_rule,
    delta_rule_backward,
    delta_rule_backward_cost,
    delta_rule_cost,
    dequantize,
    drop_pages,
    encode,
    gate,
    gate_backward,
    gated_recurrence,
    gated_recurrence_backward,
    gather_rows,
    glu,
    glu_backward,
    hadamard,
    layer_norm,
    layer_norm_backward,
    linear,
    linear_backward,
    linear_backward_cost,
    linear_cost,
    lora_gradient,
    lora_gradient_cost,
    lora_in,
    lora_in_cost,
    lora_in_parts,
    lora_out_parts,
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
    round_rows,
    rounds,
    row_dots,
    scale_columns,
    scratch_peak,
    sgd,
    slope_backward,
    slope_codes,
    sum_squares,
    take_rows,
    threads,
    use,
)
from featherback.core import signals
from featherback.engine.formats.matrix import Matrix as StoredMatrix
from featherback.engine.host.processors import Threads, best_threads
from featherback.errors import FeatherbackError, excerpt, expected

OPERANDS: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(np.uint16), "int16": np.dtype(np.float32), "fp32": np.dtype(np.float32)
}  # fmt: skip
"""compute -> the type in which matrix products read activations, from least to most exact; bf16 is held as uint16.

Fixed-point products round what they read themselves.
"""


def check_compute(compute: str) -> None:
    """Raise FeatherbackError if there is no such compute."""
    if compute not in OPERANDS:
        raise FeatherbackError(f"Unknown compute {compute!r}; {expected(compute, OPERANDS)}")


_NOTES = {
    "reference": "scalar, for checking only: very slow",
    "portable": "128-bit vectors, fp32 arithmetic",
    "avx2": "AVX2 + FMA, fp32 arithmetic",
    "avx512": "AVX-512, fp32 arithmetic",
    "avx512bf16": "AVX-512 with bf16 dot products",
    "neon_bf16": "NEON with bf16 matrix products",
}


def matrix(stored: StoredMatrix) -> Matrix:
    """Return the native handle of a stored weight, without a copy. Pages of a memory-mapped file can be released."""
    base = stored.data.base
    mapped = isinstance(base, np.ndarray) and not base.flags.writeable  # buffers of a stream are writeable
    return Matrix(stored.data, int(stored.type), stored.rows, stored.cols, base if mapped else None)


def library() -> Path:
    """Return the path of the compiled kernels."""
    return Path(_native.__file__)


def describe_instruction_set() -> str:
    """Return which kernels run, and why."""
    name = current()
    chosen = "named by FEATHERBACK_KERNELS" if os.environ.get("FEATHERBACK_KERNELS") else "best of this CPU"
    return f"{name} ({_NOTES.get(name, 'vector kernels')}; {chosen})"


def describe() -> str:
    """Return one line that says which kernels run, on how many threads, and why that many."""
    count, default = threads(), _default_threads()
    why = f" ({default.reason})" if count == default.count and default.reason else ""
    return f"{describe_instruction_set()}, {count} thread{'s' * (count > 1)}{why}"


def multiplies_bf16() -> bool:
    """Return whether the products of the current kernels read bf16 directly, with weights rounded to bf16."""
    return current().endswith("bf16")


def set_threads(count: int) -> None:
    """Compute with this many threads. Raises FeatherbackError if the number is not possible."""
    if not 1 <= count <= MAX_THREADS:
        raise FeatherbackError(f"{count} threads are not possible; choose a number from 1 to {MAX_THREADS}.")
    with signals.waiting():
        _native.set_threads(count)


def default_threads() -> int:
    """Return ``FEATHERBACK_THREADS``, or a number that suits the processors that this process may use."""
    return _default_threads().count


def _default_threads() -> Threads:
    named = os.environ.get("FEATHERBACK_THREADS")
    if named:
        if not named.isdecimal() or len(named) > 9 or not 1 <= int(named) <= MAX_THREADS:
            raise FeatherbackError(
                f"FEATHERBACK_THREADS is {excerpt(named)}; it must be a whole number from 1 to {MAX_THREADS}."
            )
        return Threads(int(named), "named by FEATHERBACK_THREADS")
    best = best_threads()
    return Threads(min(best.count, MAX_THREADS), best.reason)


def _apply_environment() -> None:
    """Use the kernels that ``FEATHERBACK_KERNELS`` names. Without it, the best ones stay in use."""
    named = os.environ.get("FEATHERBACK_KERNELS")
    if not named:
        return
    if named not in available():
        raise FeatherbackError(f"FEATHERBACK_KERNELS is {named!r}; this machine runs {', '.join(available())}.")
    use(named)


_apply_environment()
set_threads(default_threads())

__all__ = [
    "MAX_THREADS",
    "OPERANDS",
    "SEGMENT",
    "MapGuard",
    "Matrix",
    "ReadAhead",
    "adamw",
    "add_drawn",
    "add_rows",
    "attention",
    "attention_backward",
    "attention_backward_cost",
    "attention_cost",
    "available",
    "cache_rows",
    "cached_attention",
    "cached_attention_cost",
    "cast",
    "column_dots",
    "cross_entropy_finish",
    "cross_entropy_tile",
    "current",
    "decode",
    "default_threads",
    "delta_rule",
    "delta_rule_backward",
    "delta_rule_backward_cost",
    "delta_rule_cost",
    "dequantize",
    "describe",
    "describe_instruction_set",
    "drop_pages",
    "encode",
    "gate",
    "gate_backward",
    "gated_recurrence",
    "gated_recurrence_backward",
    "gather_rows",
    "glu",
    "glu_backward",
    "hadamard",
    "layer_norm",
    "layer_norm_backward",
    "linear",
    "linear_backward",
    "linear_backward_cost",
    "linear_cost",
    "lora_gradient",
    "lora_gradient_cost",
    "lora_in",
    "lora_in_cost",
    "lora_in_parts",
    "lora_out_parts",
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
    "round_rows",
    "rounds",
    "row_dots",
    "scale_columns",
    "scratch_peak",
    "set_threads",
    "sgd",
    "slope_backward",
    "slope_codes",
    "sum_squares",
    "take_rows",
    "threads",
    "use",
]
