"""What layers and methods ask of a device.

Arrays have a `shape`, a `dtype`, a length, basic slices along rows and columns, and `reshape` where they are
contiguous; nothing else is asked of them.
Every operation overwrites its output unless it says `accumulate`. Shapes: T tokens, D width, K in_features,
N out_features, r rank. An *operand* is what a matrix product reads: float32, or bf16 held as uint16.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = Any
"""An array of the device."""
Handle = Any
"""The device's own `Matrix`."""
Int32 = NDArray[np.int32]


class Matrix(Protocol):
    """A stored weight (rows = out_features, cols = in_features), or a rectangle of one."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def slice(self, rows: tuple[int, int] | None = None, cols: tuple[int, int] | None = None) -> Matrix:
        """The rectangle [rows) x [cols)."""


class Scratch(Protocol):
    """Scratch memory with stack discipline."""

    def take(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        """An uninitialised array, valid until the frame that it was taken in ends."""

    def frame(self) -> AbstractContextManager[None]:
        """Everything taken inside is given back at the end."""


class Operations(Protocol):
    """The operations of a device; `csrc/core/ops.def` documents shapes and types."""

    def linear(
        self, x: Array, w: Handle, out: Array, *, bias: Array = None, h: Array = None, b: Array = None,
        accumulate: bool = False,
    ) -> None: ...  # fmt: skip
    def linear_backward(
        self, dy: Array, w: Handle, dx: Array, *, dh: Array = None, a: Array = None, accumulate: bool = False
    ) -> None: ...
    def lora_in(self, x: Array, a: Array, h: Array, scale: float, *, accumulate: bool = False) -> None: ...
    def lora_gradient(self, dh: Array, x: Array, da: Array, *, accumulate: bool = False) -> None: ...
    def dequantize(self, w: Handle, out: Array) -> None: ...
    def rms_norm(self, x: Array, weight: Array, eps: float, out: Array, *, accumulate: bool = False) -> None: ...
    def rms_norm_backward(
        self, dn: Array, x: Array, weight: Array, eps: float, dx: Array, *, accumulate: bool = True
    ) -> None: ...
    def rope(
        self, x: Array, cos: Array, sin: Array, out: Array, head_dim: int, interleaved: bool, *,
        inverse: bool = False,
    ) -> None: ...  # fmt: skip
    def attention(
        self, q: Array, k: Array, v: Array, out: Array, lse: Array, heads: int, kv_heads: int,
        cu_q: Int32, cu_k: Int32, *, scale: float, window: int, softcap: float, p: Array = None,
        prefix: Int32 | None = None,
    ) -> None: ...  # fmt: skip
    def attention_backward(
        self, dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, delta: Array,
        dq: Array, dk: Array, dv: Array, heads: int, kv_heads: int, cu_q: Int32, cu_k: Int32, *,
        scale: float, window: int, softcap: float, p: Array = None, accumulate: bool = False,
        prefix: Int32 | None = None,
    ) -> None: ...  # fmt: skip
    def glu(self, gate: Array, up: Array, out: Array, activation: str) -> None: ...
    def glu_backward(
        self, da: Array, gate: Array, up: Array, dgate: Array, dup: Array, activation: str, a: Array = None
    ) -> None: ...
    def cross_entropy_tile(
        self, logits: Array, first: int, targets: Int32, reference: Array, sum: Array, target_logit: Array,
        p: Array = None, dh: Array = None, *, softcap: float = 0.0,
    ) -> None: ...  # fmt: skip
    def cross_entropy_finish(
        self, reference: Array, sum: Array, target_logit: Array, loss: Array, target_rows: Array = None,
        dh: Array = None, scale: float = 1.0, *, softcap: float = 0.0,
    ) -> None: ...  # fmt: skip
    def encode(self, x: Array, codes: Array) -> None:
        """codes (T, bytes), uint8 = x (T, n), float32 or bf16, in blocks of eight bits: Q8_0's."""

    def decode(self, codes: Array, out: Array) -> None:
        """out (T, n), float32 or bf16 = what stands in such codes."""

    def cast(self, x: Array, out: Array) -> None: ...
    def scale_columns(
        self, x: Array, factors: Array, out: Array, *, bias: Array = None, accumulate: bool = False
    ) -> None: ...
    def column_dots(self, x: Array, y: Array, out: Array, *, less: Array = None, over: Array = None) -> None: ...
    def fill(self, out: Array, value: float) -> None:
        """Every element = value."""

    def scale(self, out: Array, factor: float) -> None:
        """out *= factor."""

    def over_norm(self, m: Array, squares: Array, dots: Array, factor: float, out: Array) -> None:
        """out (n,) = m / sqrt(squares + factor dots)."""

    def take_rows(self, x: Array, rows: NDArray[np.intp], out: Array) -> None:
        """out (n, D) = the rows of x (T, D)."""

    def put_rows(self, values: Array, rows: NDArray[np.intp], x: Array) -> None:
        """The rows of x (T, D) = values (n, D)."""

    def scale_rows(self, x: Array, factors: Array) -> None:
        """x (T, D) *= factors (T,), a row each."""

    def add_rows(self, values: Array, rows: Int32, out: Array, *, factors: Array = None) -> None:
        """out (n, D) += values (T, D), times factors (T,) if given, each to row rows[t], if out has it."""

    def transpose(self, x: Array, out: Array) -> None:
        """out (N, T) = x (T, N)^T."""

    def softmax_shares(
        self, reference: Array, sum: Array, target_logit: Array, scale: float, shares: Array, pulls: Array, *,
        softcap: float = 0.0,
    ) -> None:  # fmt: skip
        """From the states (n,) of `cross_entropy_tile`: shares (n,), whose products with its p are the gradient
        of scale * loss, and pulls (n,): that at the targets, divided by the shares."""

    def zero_rows(self, x: Array, rows: NDArray[np.intp]) -> None:
        """The rows of x (T, D) = 0."""

    def softcap(self, out: Array, cap: float) -> None:
        """out = cap tanh(out / cap)."""

    def total(self, x: Array) -> float:
        """The sum of x, in double."""

    def sum_squares(self, x: Array) -> float:
        """The sum of x^2, in double."""

    def add_normal(self, key: tuple[int, ...], factor: float, out: Array, *, weights: Array = None) -> None:
        """out (n,) += factor z, with n standard normal numbers z that depend on the key alone (`noise.normal`); or
        factor z weights, with weights (n,).
        """

    def add_normals(self, key: tuple[int, ...], corner: tuple[int, int], factor: float, out: Array) -> None:
        """out (n, m) += factor z, with standard normal numbers z that depend on the key and the place alone: out begins
        at `corner` (row, column) of a matrix.
        """

    def smallest(self, x: Array, count: int) -> float:
        """The magnitude that `count` of x (n,) do not exceed: the count-th smallest. x is used up."""

    def mark_small(self, x: Array, limit: float) -> None:
        """x (n,) = 1 where |x| <= limit, else 0."""

    def round_at_random(self, x: Array, key: tuple[int, ...], first_row: int, out: Array) -> None:
        """out (n, cols), bf16 = x (n, cols), float32, up or down with the probability that keeps the mean.

        What is drawn depends on the key and the place alone: x begins at row `first_row` of a matrix.
        """

    def drop(
        self, x: Array, key: tuple[int, ...], rate: float, corner: tuple[int, int], out: Array, *,
        accumulate: bool = False,
    ) -> None:  # fmt: skip
        """out (T, n) (+)= x (T, n) where `noise.kept` leaves it, 0 elsewhere; to accumulate, both float32."""

    def rotary_table(self, inverse_frequencies: NDArray[np.float32], positions: Int32, cos: Array, sin: Array) -> None:
        """cos and sin (T, n) of positions (T,) times inverse frequencies (n,), in float32."""

    def dense(self, matrix: Array) -> Handle:
        """A contiguous array (rows, cols), float32 or bf16, as a weight."""


class Backend(Protocol):
    """A device."""

    @property
    def ops(self) -> Operations:
        """Its operations."""

    def arena(self, nbytes: int) -> Scratch:
        """`nbytes` of scratch."""

    def matrix(self, stored: Any) -> Handle:
        """The device's handle of a stored weight (`weights.matrix.Matrix`)."""

    def operand(self, compute: str) -> np.dtype[Any]:
        """The type in which products read activations when computing in "bf16", "int16" or "fp32"."""

    def dense_type(self, compute: str) -> np.dtype[Any]:
        """The type of a dequantised weight that loses nothing the products would keep."""

    def each(self, tiles: Sequence[tuple[int, int]]) -> Iterable[tuple[int, int]]:
        """Those of `tiles` that the body of a loop over them has to run for: all, where anything is computed.

        Their lengths are the same but for the last one's.
        """
