"""A wrong call raises a clear error, and never reads or writes foreign memory."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.kernels.native import REFERENCE, stored, using

from featherback.engine import kernels


def f32(*shape: int) -> NDArray[Any]:
    return np.zeros(shape, np.float32)


def cu(*bounds: int) -> NDArray[np.int32]:
    return np.array(bounds, np.int32)


def attention(**changes: Any) -> None:
    arguments: dict[str, Any] = {"q": f32(4, 16), "k": f32(4, 8), "v": f32(4, 8), "out": f32(4, 16), "lse": f32(2, 4)}
    arguments |= {"heads": 2, "kv_heads": 1, "cu_q": cu(0, 4)}
    kernels.attention(**{**arguments, **changes})


WRITABLE = np.frombuffer(mmap.mmap(-1, 4096), np.uint8)
READ_ONLY = np.frombuffer(mmap.mmap(-1, 4096, access=mmap.ACCESS_READ), np.uint8)
W = stored(np.random.default_rng(0), "Q4_0", 6, 32).matrix  # (6, 32)

WRONG = {
    "x too narrow": lambda: kernels.linear(f32(2, 31), W, f32(2, 6)),
    "out too short": lambda: kernels.linear(f32(2, 32), W, f32(1, 6)),
    "bias too long": lambda: kernels.linear(f32(2, 32), W, f32(2, 6), bias=f32(7)),
    "b without h": lambda: kernels.linear(f32(2, 32), W, f32(2, 6), b=f32(3, 6)),
    "ranks differ": lambda: kernels.linear(f32(2, 32), W, f32(2, 6), h=f32(2, 4), b=f32(3, 6)),
    "h of another type": lambda: kernels.linear(f32(2, 32), W, f32(2, 6), h=np.zeros((2, 3), np.uint16), b=f32(3, 6)),
    "columns not contiguous": lambda: kernels.linear(f32(32, 2).T, W, f32(2, 6)),
    "float64 into vector kernels": lambda: kernels.linear(np.zeros((2, 32)), W, f32(2, 6)),
    "integers": lambda: kernels.cast(np.zeros((2, 2), np.int32), f32(2, 2)),
    "three dimensions": lambda: kernels.cast(f32(2, 2, 2), f32(2, 2)),
    "dx too wide": lambda: kernels.linear_backward(f32(2, 6), W, f32(2, 33)),
    "a of another width": lambda: kernels.lora_in(f32(2, 5), f32(3, 4), f32(2, 3)),
    "da of another rank": lambda: kernels.lora_gradient(f32(2, 3), f32(2, 5), f32(4, 5)),
    "parts that overlap": lambda: kernels.lora_in_parts(
        f32(3, 5), [(0, 2, f32(4, 5), 1.0), (1, 3, f32(4, 5), 1.0)], f32(3, 4)
    ),
    "a part outside": lambda: kernels.lora_in_parts(f32(3, 5), [(2, 4, f32(4, 5), 1.0)], f32(3, 4)),
    "a part before": lambda: kernels.lora_out_parts(f32(3, 4), [(-1, 1, f32(4, 5))], f32(3, 5)),
    "an empty part": lambda: kernels.lora_out_parts(f32(3, 4), [(1, 1, f32(4, 5))], f32(3, 5)),
    "a part's a of another width": lambda: kernels.lora_in_parts(f32(3, 5), [(0, 3, f32(4, 6), 1.0)], f32(3, 4)),
    "a part of a rank beyond h": lambda: kernels.lora_in_parts(f32(3, 5), [(0, 3, f32(5, 5), 1.0)], f32(3, 4)),
    "a part's b of another width": lambda: kernels.lora_out_parts(f32(3, 4), [(0, 3, f32(4, 6))], f32(3, 5)),
    "a part of a rank beyond h's": lambda: kernels.lora_out_parts(f32(3, 4), [(0, 3, f32(5, 5))], f32(3, 5)),
    "parts of too few rows": lambda: kernels.lora_out_parts(f32(2, 4), [(0, 2, f32(4, 5))], f32(3, 5)),
    "weight of another width": lambda: kernels.rms_norm(f32(2, 5), f32(4), 1e-5, f32(2, 5)),
    "odd head": lambda: kernels.rope(f32(2, 6), f32(2, 1), f32(2, 1), f32(2, 6), 3, False),
    "table too short": lambda: kernels.rope(f32(2, 8), f32(1, 2), f32(1, 2), f32(2, 8), 4, False),
    "table too wide": lambda: kernels.rope(f32(2, 8), f32(2, 3), f32(2, 3), f32(2, 8), 4, False),
    "tables of two widths": lambda: kernels.rope(f32(2, 8), f32(2, 2), f32(2, 1), f32(2, 8), 4, False),
    "weight that does not divide": lambda: kernels.rms_norm(f32(2, 6), f32(4), 1e-5, f32(2, 6)),
    "empty weight": lambda: kernels.rms_norm(f32(2, 6), f32(0), 1e-5, f32(2, 6)),
    "bf16 added to": lambda: kernels.rms_norm(f32(2, 6), f32(6), 1e-5, np.zeros((2, 6), np.uint16), accumulate=True),
    "gradients in bf16 added to": lambda: kernels.rms_norm_backward(
        f32(2, 6), f32(2, 6), f32(6), 1e-5, np.zeros((2, 6), np.uint16)
    ),
    "up of another shape": lambda: kernels.glu(f32(2, 5), f32(2, 4), f32(2, 5), "silu"),
    "up of another type": lambda: kernels.glu(f32(2, 5), np.zeros((2, 5), np.uint16), f32(2, 5), "silu"),
    "factors of another length": lambda: kernels.scale_columns(f32(2, 5), f32(4), f32(2, 5)),
    "columns added to in bf16": lambda: kernels.scale_columns(
        f32(2, 5), f32(5), np.zeros((2, 5), np.uint16), accumulate=True
    ),
    "columns of another shape": lambda: kernels.column_dots(f32(2, 5), f32(3, 5), f32(5)),
    "dots of another length": lambda: kernels.column_dots(f32(2, 5), f32(2, 5), f32(4)),
    "dots in double": lambda: kernels.column_dots(f32(2, 5), f32(2, 5), np.zeros(5)),
    "divisors of another length": lambda: kernels.column_dots(f32(2, 5), f32(2, 5), f32(5), over=f32(6)),
    "unknown activation": lambda: kernels.glu(f32(2, 5), f32(2, 5), f32(2, 5), "relu"),
    "heads not shared evenly": lambda: attention(heads=4, kv_heads=3),
    "boundaries past the end": lambda: attention(cu_q=cu(0, 5)),
    "boundaries that fall": lambda: attention(cu_q=cu(0, 3, 2, 4)),
    "boundaries not from zero": lambda: attention(cu_q=cu(1, 4)),
    "more queries than keys": lambda: attention(k=f32(3, 8), v=f32(3, 8), cu_k=cu(0, 3)),
    "sequences that differ": lambda: attention(cu_k=cu(0, 2, 4)),
    "k and v of different lengths": lambda: attention(v=f32(3, 8)),
    "negative window": lambda: attention(window=-2),
    "negative cap": lambda: attention(softcap=-1),
    "a cap that is no number": lambda: attention(softcap=float("nan")),
    "sinks for one head only": lambda: attention(sinks=f32(1)),
    "p for one head only": lambda: attention(p=f32(4, 4)),
    "lse transposed": lambda: attention(lse=f32(4, 2)),
    "row past the end": lambda: kernels.gather_rows(W, cu(0, 6), f32(2, 32)),
    "negative row": lambda: kernels.gather_rows(W, cu(-1), f32(1, 32)),
    "data outside of its file": lambda: kernels.Matrix(np.zeros(8, np.uint8), 0, 1, 2, READ_ONLY),
    "a file's map that can be written to": lambda: kernels.Matrix(WRITABLE[:8], 0, 1, 2, WRITABLE),
    "a part of a file's map": lambda: kernels.Matrix(READ_ONLY[8:16], 0, 1, 2, READ_ONLY[8:]),
    "releasing a negative surrounding": lambda: kernels.Matrix(READ_ONLY[:8], 0, 1, 2, READ_ONLY).release(-1),
    "loss of another length": lambda: kernels.cross_entropy_finish(f32(2), f32(2), f32(2), f32(3)),
    "step zero": lambda: kernels.adamw(f32(1, 2), f32(1, 2), f32(1, 2), f32(1, 2), 1e-3, 0.9, 0.999, 1e-8, 0.0, 0),
    "moments of another shape": lambda: kernels.adamw(
        f32(1, 2), f32(1, 2), f32(1, 3), f32(1, 2), 1e-3, 0.9, 0.999, 1e-8, 0.0, 1
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_refused(case: str) -> None:
    with using(next(name for name in kernels.available() if name != REFERENCE)), pytest.raises((ValueError, TypeError)):
        WRONG[case]()


def test_an_output_that_cannot_be_written_is_refused() -> None:
    out = f32(2, 2)
    out.flags.writeable = False
    with pytest.raises((ValueError, TypeError)):
        kernels.cast(f32(2, 2), out)


def test_an_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(ValueError, match="not available"):
        kernels.use("mmx")


def test_the_choice_can_be_changed_and_is_reported() -> None:
    before = kernels.current()
    for name in kernels.available():
        with using(name):
            assert kernels.current() == name
    assert kernels.current() == before


def test_a_matrix_keeps_its_bytes_alive() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    matrix = kernels.Matrix(values.copy().view(np.uint8).reshape(-1), 0, 2, 3).slice(rows=(1, 2))
    out = f32(1, 3)
    kernels.dequantize(matrix, out)
    assert out.tolist() == [[3, 4, 5]]
