"""The interface of a device: all that blocks, methods and optimisers may ask of it.

Arrays have a `shape`, a `dtype`, a length, basic slices along rows and columns, and `reshape` where they are
contiguous; nothing else is asked of them. Ids, targets, positions and row numbers are NumPy arrays of the host.
Every operation overwrites its output unless it says `accumulate`. Shapes: T tokens, D width, K in_features,
N out_features, r rank. An *operand* is what a matrix product reads: float32, or bf16 held as uint16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.levels import Code
from featherback.engine.formats.matrix import Matrix as StoredMatrix

Array = Any
"""An array of the device."""
Handle = Any
"""The device's own `Matrix`."""
Int32 = NDArray[np.int32]
T = TypeVar("T")


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
    def lora_gradient(
        self, dh: Array, x: Array, da: Array, scale: float = 1.0, *, accumulate: bool = False
    ) -> None: ...
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

    def capped_slopes(self, x: Array, cap: float) -> None:
        """The derivative of `softcap`, in place, from what it gave: 1 - (x / cap)^2; 1 if cap is 0."""

    def pick(self, x: Array, rows: NDArray[np.intp], columns: Int32, out: Array) -> None:
        """out (E,) = x[rows[e], columns[e]], where x (n, N) has the column."""

    def add_row_sums(self, x: Array, out: Array) -> None:
        """out (T,) += the sum of each row of x (T, N)."""

    def to_host(self, x: Array) -> NDArray[np.float64]:
        """The values of a small array."""

    def from_host(self, values: NDArray[np.float64], out: Array) -> None:
        """out = values of the same shape."""

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

    # Of optimisers. x and y: arrays that NumPy would broadcast, or one of them a number; out may be one of them.
    def add(self, x: Array, y: Array, out: Array, /) -> None: ...
    def subtract(self, x: Array, y: Array, out: Array, /) -> None: ...
    def multiply(self, x: Array, y: Array, out: Array, /) -> None: ...
    def divide(self, x: Array, y: Array, out: Array, /) -> None: ...
    def sqrt(self, x: Array, out: Array, /) -> None: ...
    def sign(self, x: Array, out: Array, /) -> None: ...
    def clip(self, x: Array, least: float, most: float, out: Array, /) -> None: ...
    def matmul(self, x: Array, y: Array, out: Array, /) -> None:
        """out (n, m) = x (n, k) y (k, m), or out (m,) = x (k,) y; all float32."""

    def dot(self, x: Array, y: Array, /) -> float:
        """The sum of x y, both (n,)."""

    def row_means(self, x: Array, out: Array, /) -> None:
        """out (n,) = the means of the rows of x (n, m)."""

    def column_sums(self, x: Array, out: Array, /) -> None:
        """out (m,) = the sums of the columns of x (n, m)."""

    def row_squares(self, x: Array, out: Array, /) -> None:
        """out (n,) = the sums of x^2 over the rows of x (n, m)."""

    def column_squares(self, x: Array, out: Array, /) -> None:
        """out (m,) = the sums of x^2 over the columns of x (n, m)."""

    def negatives(self, x: Array, /) -> tuple[float, int]:
        """The sum of the negative elements, in double, and their number."""

    def replace_negatives(self, x: Array, value: float, /) -> None:
        """The negative elements of x = value."""

    def orthonormal(self, x: Array, room: Array, /) -> None:
        """The columns of x (n, r) = an orthonormal basis of what they span. `room` (8 n r,): as much may be held."""

    def pack(self, x: Array, code: Code, key: tuple[int, ...], held: Array, /) -> None:
        """held (levels.held_size(n),) = x (n,) in 8 bits, as `levels` has it, rounded as the key draws.

        `levels.room(n)` floats of scratch are left free for it.
        """

    def unpack(self, held: Array, code: Code, out: Array, /) -> None:
        """The inverse."""

    def sgd(self, p: Array, g: Array, lr: float, weight_decay: float, grad_scale: float, /) -> None:
        """p -= lr (grad_scale g + weight_decay p), flat."""

    def adamw(
        self, p: Array, g: Array, m: Array, v: Array, lr: float, beta1: float, beta2: float, eps: float,
        weight_decay: float, step: int, grad_scale: float, /,
    ) -> None:  # fmt: skip
        """AdamW's step of p with moments m and v, flat."""

    def dense(self, matrix: Array) -> Handle:
        """A contiguous array (rows, cols), float32 or bf16, as a weight."""


class Backend(Protocol):
    """A device."""

    @property
    def ops(self) -> Operations:
        """Its operations."""

    def host(self, x: Array, *, write: bool = False) -> AbstractContextManager[NDArray[Any]]:
        """x (contiguous) in the host's memory: to be read inside, or to be filled, for x to have it at the end."""

    def held(self, values: NDArray[Any], *, changing: bool = False) -> AbstractContextManager[Array]:
        """An array of the host as the device's inside; `changing`: the host has at the end what becomes of it there."""

    def vector(self, values: NDArray[np.float32]) -> Array:
        """A norm or a bias, which the host holds, as the device's."""

    def gather_rows(self, stored: StoredMatrix, ids: Int32, out: Array) -> None:
        """out (n, D) = rows `ids` of a stored weight, dequantised."""

    def release(self, matrix: Handle, around: int) -> None:
        """A stored weight is no longer in use: where it is mapped, it and `around` bytes about it may be unmapped."""

    def arena(self, nbytes: int) -> Scratch:
        """`nbytes` of scratch."""

    def matrix(self, stored: Any) -> Handle:
        """The device's handle of a stored weight (`engine.formats.matrix.Matrix`)."""

    @property
    def operand(self) -> np.dtype[Any]:
        """The type in which products read activations."""

    @property
    def dense_type(self) -> np.dtype[Any]:
        """The type of a dequantised weight that loses nothing the products would keep."""

    def each(self, tiles: Sequence[tuple[int, int]]) -> Iterable[tuple[int, int]]:
        """Those of `tiles` that the body of a loop over them has to run for: all, where anything is computed.

        Their lengths are the same but for the last one's.
        """

    def most(self, found: Callable[[], T], bound: T) -> T:
        """`found()`, which depends on computed values; where only shapes are known, `bound`.

        No values may lead to more memory, nor to more work, than `bound` does.
        """
