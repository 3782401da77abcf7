"""The interface of a device: everything that blocks, methods and optimisers may use.

Arrays have a `shape`, a `dtype`, a length, basic slices along rows and columns, and `reshape` if they are contiguous.
Nothing else is used. Ids, targets, positions and row numbers are NumPy arrays of the host.

Every operation overwrites its output unless `accumulate` is set. Shapes: T tokens, D width, K in_features, N
out_features, r rank. An *operand* is an array in the type that matrix products read: float32, or bf16 held as uint16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.levels import Code
from featherback.engine.formats.matrix import Matrix as StoredMatrix
from featherback.engine.formats.types import TensorType

Array = Any
"""An array of the device."""
Handle = Any
"""The device's own `Matrix`."""
Int32 = NDArray[np.int32]
T = TypeVar("T")

BOTH_WAYS = -1
"""The window of attention in which a query sees all keys of its sequence, also later ones."""


class Matrix(Protocol):
    """A stored weight (rows = out_features, cols = in_features), or a rectangle of one."""

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols)."""

    def slice(self, rows: tuple[int, int] | None = None, cols: tuple[int, int] | None = None) -> Matrix:
        """Return the rectangle [rows) x [cols)."""


class Scratch(Protocol):
    """Scratch memory that is used as a stack."""

    def take(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        """Return an uninitialised array, valid until the frame in which it was allocated ends."""

    def frame(self) -> AbstractContextManager[None]:
        """Free, at the end of the context, all arrays that were allocated inside."""

    def release(self) -> None:
        """Give the memory back to the system until it is used again. Nothing may be allocated."""


class TokenStore(Protocol):
    """Stores rows outside the scratch memory, such as one per token: an array (T, D) per slot."""

    def save(self, slot: int, x: Array, first: int, scratch: Array) -> None:
        """Store x (n, D) as the rows from `first` on. `scratch` (n, D), of the store's type, may be overwritten."""

    def load(self, slot: int, out: Array, first: int) -> None:
        """Load the rows from `first` on into `out` (n, D), of the store's type."""

    def release(self) -> None:
        """Free the memory of all rows until rows are stored again."""

    def close(self) -> None:
        """Free the space."""


class Operations(Protocol):
    """The operations of a device. `csrc/core/ops.def` documents shapes and types."""

    def linear(
        self, x: Array, w: Handle, out: Array, *, bias: Array = None, h: Array = None, b: Array = None,
        accumulate: bool = False,
    ) -> None:  # fmt: skip
        """out (T, N) (+)= x (T, K) W^T + bias (N,) + h (T, r) b (r, N). x and h are operands; b is float32."""

    def linear_backward(
        self, dy: Array, w: Handle, dx: Array, *, dh: Array = None, a: Array = None, accumulate: bool = False
    ) -> None:
        """dx (T, K) (+)= dy (T, N) W + dh (T, r) a (r, K). dy and dh are operands; a is float32."""

    def lora_in(self, x: Array, a: Array, h: Array, scale: float, *, accumulate: bool = False) -> None:
        """h (T, r) (+)= scale * x (T, K) a (r, K)^T. x is an operand; a is float32."""

    def lora_gradient(self, dh: Array, x: Array, da: Array, scale: float = 1.0, *, accumulate: bool = False) -> None:
        """da (r, K) (+)= scale * dh (T, r)^T x (T, K). dh and x are operands; da is float32."""

    def lora_in_parts(
        self, x: Array, parts: Sequence[tuple[int, int, Array, float]], h: Array, *, accumulate: bool = False
    ) -> None:
        """Like `lora_in` for each part (first, last, a (r, K), scale): rows [first, last) of x (T, K) and h (T, R).

        Writes the first r columns of these rows of h. Parts are in order and do not overlap.
        """

    def lora_out_parts(self, h: Array, parts: Sequence[tuple[int, int, Array]], out: Array) -> None:
        """out (T, N) += h b for each part (first, last, b (r, N)): rows [first, last) of out and of h (T, R).

        Reads the first r columns of these rows of h, an operand. Parts are in order and do not overlap.
        """

    def dequantize(self, w: Handle, out: Array) -> None:
        """out (N, K), float32 or bf16 = the weight W."""

    def rms_norm(self, x: Array, weight: Array, eps: float, out: Array, *, accumulate: bool = False) -> None:
        """out (T, D) (+)= x / sqrt(mean(x^2) + eps) * weight, for each group of as many columns as weight has."""

    def rms_norm_backward(
        self, dn: Array, x: Array, weight: Array, eps: float, dx: Array, *, accumulate: bool = True
    ) -> None:
        """dx (T, D) (+)= the gradient of x in n = rms_norm(x), from dn (T, D), float32."""

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float, out: Array) -> None:
        """out (T, D) = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias; bias (D,) may be None."""

    def layer_norm_backward(
        self, dn: Array, x: Array, weight: Array, eps: float, dx: Array, *, accumulate: bool = True
    ) -> None:
        """dx (T, D) (+)= the gradient of x in n = layer_norm(x), from dn (T, D), float32."""

    def rope(
        self, x: Array, cos: Array, sin: Array, out: Array, head_dim: int, interleaved: bool, *,
        inverse: bool = False,
    ) -> None:  # fmt: skip
        """out = x (T, heads * head_dim), rotated by the angles with these cos, sin (T, n), or back if `inverse`."""

    def attention(
        self, q: Array, k: Array, v: Array, out: Array, lse: Array, heads: int, kv_heads: int,
        cu_q: Int32, cu_k: Int32, *, scale: float, window: int, softcap: float, p: Array = None,
        prefix: Int32 | None = None, sinks: Array = None,
    ) -> None:  # fmt: skip
        """out (T, H d) = softmax(scale q k^T) v, per sequence and head. lse (H, T), p (H T, keys) or None.

        A query sees the keys up to its own, at most `window` of them (0: no limit), or all keys if it is BOTH_WAYS.

        sinks (H,) or None: logits that take part in each row's softmax, with a value of zero. lse includes them.
        """

    def attention_backward(
        self, dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, delta: Array,
        dq: Array, dk: Array, dv: Array, heads: int, kv_heads: int, cu_q: Int32, cu_k: Int32, *,
        scale: float, window: int, softcap: float, p: Array = None, accumulate: bool = False,
        prefix: Int32 | None = None,
    ) -> None:  # fmt: skip
        """dq, dk, dv from dout (T, H d), where out = attention(q, k, v). delta (H, T) = each row's dout . out."""

    def cache_rows(
        self, k: Array, v: Array, start: int, cache: Array, type: int, kv_heads: int, first: int = 0
    ) -> None:
        """Store k, v (T, Hk d) of tokens [start, start + T) in a piece of a cache, bytes (n,), from token `first` on.

        `type`: the `TensorType` of the cache.
        """

    def cached_attention(
        self, q: Array, cache: Array, type: int, out: Array, heads: int, kv_heads: int, keys: int, *, scale: float,
        window: int = 0, softcap: float = 0.0, sinks: Array = None, first: int = 0, last: int | None = None,
        state: Array = None, begins: bool = True, ends: bool = True,
    ) -> None:  # fmt: skip
        """out (T, H d), an operand = attention of q (T, H d), float32, the last T of `keys` tokens, over a cache.

        The cache is the piece for keys [first, last). With several pieces, in order, state (T, H (d + 2)) carries the
        softmax from the first that q sees (`begins`) to the last (`ends`), without which out is not written. All
        divisions of a cache into pieces give the same bits.
        """

    def hadamard(self, x: Array, size: int) -> None:
        """x (T, n size) times the Hadamard matrix of `size`, a power of two, divided by sqrt(size), in place."""

    def sinks_gradient(self, sinks: Array, lse: Array, delta: Array, out: Array) -> None:
        """out (H,) = the gradient of sinks: - sum over t of exp(sinks - lse) delta; lse, delta (H, T) of attention."""

    def gate(self, z: Array, x: Array, out: Array, form: str) -> None:
        """out (T, F) = x * form(z), where form is "silu" or "sigmoid", and x None is 1. out may be x or z."""

    def gate_backward(self, da: Array, z: Array, x: Array, dz: Array, dx: Array, form: str) -> None:
        """dz, dx (T, F), float32, from da (T, F), where a = x * form(z). dx may be None; dz or dx may be da."""

    def delta_rule(
        self, q: Array, k: Array, v: Array, decay: Array, beta: Array, y: Array, k_heads: int, v_heads: int,
        tiled: bool, cu: Int32, *, before: Array = None, after: Array = None,
    ) -> None:  # fmt: skip
        """y (T, Hv Dv) = the gated delta rule of q, k (T, Hk Dk), v (T, Hv Dv), decay and beta (T, Hv), per sequence.

        before (Hv, Dk Dv): the states before the first sequence's first token, or None for zeros. after: the states
        after the last token, or None; it may be `before`. y may be None.
        """

    def delta_rule_backward(
        self, dy: Array, q: Array, k: Array, v: Array, decay: Array, beta: Array, dq: Array, dk: Array, dv: Array,
        ddecay: Array, dbeta: Array, k_heads: int, v_heads: int, tiled: bool, cu: Int32, *, before: Array = None,
        dafter: Array = None, dbefore: Array = None,
    ) -> None:  # fmt: skip
        """dq, dk, dv, ddecay, dbeta from dy (T, Hv Dv) and dafter, where y, after = delta_rule(...).

        dbefore may be None, or `dafter`.
        """

    def glu(self, gate: Array, up: Array, out: Array, activation: str) -> None:
        """out (T, F) = activation(gate) * up: "silu", "gelu", "gelu_tanh", "relu2" or "clipped_silu".

        up may be None, except with clipped_silu: then out = activation(gate).
        """

    def glu_backward(
        self, da: Array, gate: Array, up: Array, dgate: Array, dup: Array, activation: str, a: Array = None
    ) -> None:
        """dgate, dup (T, F) from da (T, F), where a = activation(gate) * up; a itself is written if given.

        dup is None exactly if up is.
        """

    def slope_codes(self, x: Array, bounds: Array, codes: Array) -> None:
        """codes (T, bytes), uint8 = the number of `bounds` (3,), ascending, that each x (T, F) exceeds, in two bits.

        16 bytes hold 64 columns.
        """

    def slope_backward(self, da: Array, codes: Array, slopes: Array, dz: Array) -> None:
        """dz (T, F), an operand = da (T, F), float32, times the slope of each code, one of `slopes` (4,)."""

    def gated_recurrence(self, i: Array, f: Array, bound: Array, state: Array, h: Array) -> None:
        """h_t (T, D) = (1 - k_t) h_{t-1} + silu(i_t) k_t, k_t = (1 - bound) sigmoid(-f_t), from h_{-1} = state (D,).

        state becomes the last row of h. All are float32; bound (D,).
        """

    def gated_recurrence_backward(
        self, dh: Array, i: Array, f: Array, bound: Array, before: Array, h: Array, carry: Array, di: Array, df: Array
    ) -> None:
        """di, df (T, D) from dh (T, D), float32, where h = gated_recurrence(i, f) from h_{-1} = before (D,).

        carry (D,) is the gradient of the last row from the rows behind it. It becomes the gradient of `before`.
        """

    def round_rows(self, x: Array, out: Array) -> None:
        """out (T, K) = x (T, K), float32, in 8-bit steps of its row: nearest(x s) / s, s = 127 / max(max |x|, 1e-5).

        out may be x.
        """

    def cross_entropy_tile(
        self, logits: Array, first: int, targets: Int32, reference: Array, sum: Array, target_logit: Array,
        p: Array = None, dh: Array = None, *, softcap: float = 0.0,
    ) -> None:  # fmt: skip
        """One tile (n, tile) of the vocabulary: update the online softmax, compute p, and add p W to dh."""

    def cross_entropy_finish(
        self, reference: Array, sum: Array, target_logit: Array, loss: Array, target_rows: Array = None,
        dh: Array = None, scale: float = 1.0, *, softcap: float = 0.0,
    ) -> None:  # fmt: skip
        """loss (n,) in nats after the last tile, and dh (n, D) = scale * its gradient, in place."""

    def encode(self, x: Array, codes: Array) -> None:
        """codes (T, bytes), uint8 = x (T, n), float32 or bf16, as blocks of eight bits (Q8_0)."""

    def decode(self, codes: Array, out: Array) -> None:
        """out (T, n), float32 or bf16 = the values of such codes."""

    def cast(self, x: Array, out: Array) -> None:
        """out = x, in the type of out."""

    def scale_columns(
        self, x: Array, factors: Array, out: Array, *, bias: Array = None, accumulate: bool = False
    ) -> None:
        """out (T, N) (+)= x (T, N) * factors (N,) + bias (N,). Factors and bias may be None."""

    def column_dots(self, x: Array, y: Array, out: Array, *, less: Array = None, over: Array = None) -> None:
        """out (N,) += sum over t of x[t] * (y[t] - less) / over; x, y (T, N), less, over (N,) or None."""

    def fill(self, out: Array, value: float) -> None:
        """Set every element to `value`."""

    def scale(self, out: Array, factor: float) -> None:
        """out *= factor."""

    def over_norm(self, m: Array, squares: Array, dots: Array, factor: float, out: Array) -> None:
        """out (n,) = m / sqrt(squares + factor dots)."""

    def take_rows(self, x: Array, rows: NDArray[np.integer[Any]], out: Array) -> None:
        """out (n, D) = the rows of x (T, D), in the type of out."""

    def row_dots(self, x: Array, y: Array, out: Array, *, accumulate: bool = False) -> None:
        """out (T,) (+)= the sum of x y over each row of x, y (T, D)."""

    def put_rows(self, values: Array, rows: NDArray[np.intp], x: Array) -> None:
        """The rows of x (T, D) = values (n, D)."""

    def scale_rows(self, x: Array, factors: Array) -> None:
        """x (T, D) *= factors (T,), a row each."""

    def add_rows(self, values: Array, rows: Int32, out: Array, *, factors: Array = None) -> None:
        """out[rows[t]] += values[t], times factors[t] if given, for each t for which out (n, D) has that row."""

    def transpose(self, x: Array, out: Array) -> None:
        """out (N, T) = x (T, N)^T."""

    def softmax_shares(
        self, reference: Array, sum: Array, target_logit: Array, scale: float, shares: Array, pulls: Array, *,
        softcap: float = 0.0,
    ) -> None:  # fmt: skip
        """Compute shares (n,) and pulls (n,) from the states (n,) of `cross_entropy_tile`.

        The gradient of scale * loss with respect to the logits is shares * p, with p as in `cross_entropy_tile`. At the
        targets, where that p is 0, the gradient is shares * pulls.
        """

    def zero_rows(self, x: Array, rows: NDArray[np.intp]) -> None:
        """The rows of x (T, D) = 0."""

    def softcap(self, out: Array, cap: float) -> None:
        """out = cap tanh(out / cap)."""

    def capped_slopes(self, x: Array, cap: float) -> None:
        """x = the derivative of `softcap`, from its output x: 1 - (x / cap)^2; 1 if cap is 0."""

    def pick(self, x: Array, rows: NDArray[np.intp], columns: Int32, out: Array) -> None:
        """out (E,) = x[rows[e], columns[e]], with x (n, N). Elements whose column is outside x stay as they are."""

    def clear(self, x: Array, rows: NDArray[np.intp], columns: Int32) -> None:
        """x[rows[e], columns[e]] = 0 for each column that x (n, N), of operands, has."""

    def largest(self, x: Array, first: int, values: Array, columns: Array) -> None:
        """values (n, k) = the k largest of each row's values and x (n, N), in any order.

        columns (n, k), int32: their columns, where x begins at column `first`.
        """

    def add_row_sums(self, x: Array, out: Array) -> None:
        """out (T,) += the sum of each row of x (T, N)."""

    def total(self, x: Array) -> float:
        """Return the sum of x, computed in float64."""

    def sum_squares(self, x: Array) -> float:
        """Return the sum of x^2, computed in float64."""

    def add_normal(self, key: tuple[int, ...], factor: float, out: Array, *, weights: Array = None) -> None:
        """out (n,) += factor * z, times weights (n,) if given.

        z are n standard normal numbers that depend only on the key (`noise.normal`).
        """

    def add_normals(self, key: tuple[int, ...], corner: tuple[int, int], factor: float, out: Array) -> None:
        """out (n, m) += factor * z, where out begins at `corner` (row, column) of a matrix.

        z are standard normal numbers that depend only on the key and on the element's place in the matrix.
        """

    def smallest(self, x: Array, count: int) -> float:
        """Return the magnitude that `count` elements of x (n,) do not exceed: the count-th smallest. Overwrites x."""

    def mark_small(self, x: Array, limit: float) -> None:
        """x (n,) = 1 where |x| <= limit, else 0."""

    def round_at_random(self, x: Array, key: tuple[int, ...], first_row: int, out: Array) -> None:
        """out (n, cols), bf16 = x (n, cols), float32, rounded up or down with the probability that preserves the mean.

        The random numbers depend only on the key and on the place: x begins at row `first_row` of a matrix.
        """

    def drop(
        self, x: Array, key: tuple[int, ...], rate: float, corner: tuple[int, int], out: Array, *,
        accumulate: bool = False,
    ) -> None:  # fmt: skip
        """out (T, n) (+)= x (T, n) where `noise.kept` keeps it, else 0. With `accumulate` both are float32."""

    def rotary_table(self, inverse_frequencies: NDArray[np.float32], positions: Int32, cos: Array, sin: Array) -> None:
        """cos and sin (T, n) of positions (T,) times inverse frequencies (n,), in float32."""

    # For optimisers. x and y are arrays that broadcast as in NumPy, or one is a number; out may be one of them.
    def add(self, x: Array, y: Array, out: Array, /) -> None:
        """out = x + y."""

    def subtract(self, x: Array, y: Array, out: Array, /) -> None:
        """out = x - y."""

    def multiply(self, x: Array, y: Array, out: Array, /) -> None:
        """out = x * y."""

    def divide(self, x: Array, y: Array, out: Array, /) -> None:
        """out = x / y."""

    def sqrt(self, x: Array, out: Array, /) -> None:
        """out = the square root of x."""

    def sign(self, x: Array, out: Array, /) -> None:
        """out = the sign of x: -1, 0 or 1."""

    def clip(self, x: Array, least: float, most: float, out: Array, /) -> None:
        """out = x, limited to [least, most]."""

    def matmul(self, x: Array, y: Array, out: Array, /) -> None:
        """out (n, m) = x (n, k) y (k, m), or out (m,) = x (k,) y; all float32."""

    def dot(self, x: Array, y: Array, /) -> float:
        """Return the sum of x y, both (n,)."""

    def row_means(self, x: Array, out: Array, /) -> None:
        """out (n,) = the means of the rows of x (n, m)."""

    def column_sums(self, x: Array, out: Array, /) -> None:
        """out (m,) = the sums of the columns of x (n, m)."""

    def row_squares(self, x: Array, out: Array, /) -> None:
        """out (n,) = the sums of x^2 over the rows of x (n, m)."""

    def column_squares(self, x: Array, out: Array, /) -> None:
        """out (m,) = the sums of x^2 over the columns of x (n, m)."""

    def negatives(self, x: Array, /) -> tuple[float, int]:
        """Return the sum of the negative elements, computed in float64, and their number."""

    def replace_negatives(self, x: Array, value: float, /) -> None:
        """Set the negative elements of x to `value`."""

    def orthonormal(self, x: Array, room: Array, /) -> None:
        """Replace the columns of x (n, r) by an orthonormal basis of their span.

        `room` (8 n r,) may be used as scratch.
        """

    def pack(self, x: Array, code: Code, key: tuple[int, ...], held: Array, /) -> None:
        """held (levels.held_size(n),) = x (n,) in 8 bits (see `levels`), rounded at random by the key.

        `levels.room(n)` floats of scratch memory must be free.
        """

    def unpack(self, held: Array, code: Code, out: Array, /) -> None:
        """out (n,) = the values in `held`: the inverse of `pack`."""

    def sgd(self, p: Array, g: Array, lr: float, weight_decay: float, grad_scale: float, /) -> None:
        """p -= lr (grad_scale g + weight_decay p), flat arrays."""

    def adamw(
        self, p: Array, g: Array, m: Array, v: Array, lr: float, beta1: float, beta2: float, eps: float,
        weight_decay: float, step: int, grad_scale: float, /,
    ) -> None:  # fmt: skip
        """Apply AdamW's step to p, with moments m and v, flat arrays."""

    def dense(self, matrix: Array) -> Handle:
        """Return a contiguous array (rows, cols), float32 or bf16, as a weight."""


class Backend(Protocol):
    """A device."""

    @property
    def ops(self) -> Operations:
        """Its operations."""

    @property
    def prompts(self) -> Operations:
        """Its operations for many rows, such as a prompt. Those of a device that decodes are for next tokens."""

    def host(self, x: Array, *, write: bool = False) -> AbstractContextManager[NDArray[Any]]:
        """Yield x (contiguous) in the host's memory, for reading.

        With `write` it is to be filled, and x has it at the end.
        """

    def held(self, values: NDArray[Any], *, changing: bool = False) -> AbstractContextManager[Array]:
        """Yield an array of the host as one of the device.

        With `changing`, the host's array has the changes at the end.
        """

    def vector(self, values: NDArray[np.float32]) -> Array:
        """Return a norm's weight or a bias, held by the host, as an array of the device."""

    def gather_rows(self, stored: StoredMatrix, ids: Int32, out: Array) -> None:
        """out (n, D) = rows `ids` of a stored weight, dequantised."""

    def release(self, matrix: Handle, around: int) -> None:
        """Note that a stored weight is no longer in use.

        If it is mapped, it and `around` bytes near it may be unmapped.
        """

    def weights(self, model: Any, mode: str, rows: int, changing: bool) -> Any:
        """Return the device's own source of a model's weights, or None if it reads them in the host's memory.

        `mode`, `rows`, `changing`: as for `methods.memory.resources.source`, which describes a source.
        """

    def arena(self, nbytes: int) -> Scratch:
        """Return scratch memory of `nbytes` bytes."""

    def matrix(self, stored: Any) -> Handle:
        """Return the device's handle of a stored weight (`engine.formats.matrix.Matrix`)."""

    @property
    def operand(self) -> np.dtype[Any]:
        """The type in which products read activations."""

    @property
    def dense_type(self) -> np.dtype[Any]:
        """The smallest type for a dequantised weight that keeps all the precision that products use."""

    def each(self, tiles: Sequence[T]) -> Iterable[T]:
        """Return the tiles for which the body of a loop must run: all of them, on a device that computes.

        All tiles have the same work, except possibly the first and the last one.
        """

    def most(self, found: Callable[[], T], bound: T) -> T:
        """Return `found()`, which depends on computed values, or `bound` on a device that only knows shapes.

        Whatever the values are, `found()` must not need more memory or work than `bound`.
        """


@dataclass(frozen=True)
class Rates:
    """Speeds of a device, per second."""

    products: float  # floating-point operations of products with stored weights, without unpacking
    attention: float  # floating-point operations of attention
    unpacked: float  # stored weights that are unpacked
    moved: float  # bytes of the device's memory that are read or written
    received: float  # bytes that are copied from the host's memory


class Card(Protocol):
    """A device beside the CPU, with memory of its own, as options and plans see it."""

    @property
    def name(self) -> str:
        """What the user calls it."""

    @property
    def limit(self) -> int | None:
        """Bytes of its memory that the user allows this process; None: what is free."""

    @property
    def computes(self) -> Sequence[str]:
        """The number formats in which it computes, the preferred one first."""

    @property
    def memory(self) -> int:
        """Bytes that arrays and operations of this process may take."""

    def open(self, compute: str, rounded: bool, decoding: bool) -> Backend:
        """Return the device that computes. The arguments are those of `backend.of`."""

    def check(self, types: Iterable[TensorType]) -> None:
        """Raise FeatherbackError if weights are stored in a type that the device cannot read."""

    def rates(self, compute: str) -> Rates:
        """Return the fixed rates by which plans are compared. Only their ratios matter."""

    def measured(self, compute: str, rows: int, cols: int, tokens: int) -> float:
        """Time a product of `tokens` rows with a made-up weight (rows, cols): floating-point operations per second."""

    def temporaries(self, rows: int, columns: int) -> int:
        """Return the most bytes that an operation on arrays (rows, columns) takes beside them."""

    def enough(self, nbytes: int) -> int:
        """Return the bytes of memory in which a plan fits that takes `nbytes` now: temporaries may grow with them."""
