"""
Featherback's native kernels. csrc/core/ops.def documents every operation.
"""

from collections.abc import Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray


class TensorType(enum.IntEnum):
    """A number format Featherback computes with; the value is its ggml id."""

    F32 = 0

    F16 = 1

    Q4_0 = 2

    Q4_1 = 3

    Q5_0 = 6

    Q5_1 = 7

    Q8_0 = 8

    Q2_K = 10

    Q3_K = 11

    Q4_K = 12

    Q5_K = 13

    Q6_K = 14

    IQ2_XXS = 16

    IQ2_XS = 17

    IQ3_XXS = 18

    IQ1_S = 19

    IQ4_NL = 20

    IQ3_S = 21

    IQ2_S = 22

    IQ4_XS = 23

    BF16 = 30

    TQ1_0 = 34

    TQ2_0 = 35

    MXFP4 = 39

    AFFINE8 = 1178730504

    TERNARY = 1178730505

    @property
    def block_size(self) -> int:
        """Weights that share one block (1 for plain floats)."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""

    def row_bytes(self, cols: int) -> int:
        """
        Bytes of a row of `cols` weights; FeatherbackError if they do not fill whole blocks.
        """

    @property
    def scale_field(self) -> tuple[str, int]:
        """(number format, byte) of a block's scale."""

    @property
    def offset_field(self) -> tuple[str, int] | None:
        """(number format, byte) of a block's offset or minimum, if there is one."""

    @property
    def centre(self) -> float:
        """
        With codes drawn evenly, an offset of centre * scale makes the mean of the weights 0.
        """

    @property
    def spread(self) -> float:
        """Their standard deviation is then spread * scale."""

class Matrix:
    """
    A stored weight (rows = out_features, cols = in_features), or a rectangle of one.
    """

    def __init__(self, data: object, type: int, rows: int, cols: int, file: object | None = None) -> None:
        """
        data: the stored bytes. file: the read-only map of a whole file, in which they lie
        """

    def slice(self, rows: tuple[int, int] | None = None, cols: tuple[int, int] | None = None) -> Matrix:
        """The rectangle [rows) x [cols); columns must not cut a block."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def release(self, around: int = 0) -> None:
        """
        Unmap the pages of its rows, whole stored rows, and of `around` bytes before and behind them in the file, until they are touched again. Does nothing to a matrix that was not given its file's map.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of its rows, as whole as they are stored"""

    @property
    def type(self) -> int: ...

def linear(x: Annotated[NDArray, dict(device='cpu', writable=False)], w: Matrix, out: Annotated[NDArray, dict(device='cpu')], bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, h: Annotated[NDArray, dict(device='cpu', writable=False)] | None = None, b: Annotated[NDArray, dict(device='cpu', writable=False)] | None = None, accumulate: bool = False, fixed: bool = False, rounded: bool = False) -> None:
    """
    out (T, N) (+)= x (T, K) W^T + bias (N) + h (T, r) b (r, N); fixed: in fixed point; rounded: if x has few rows and W's levels are bytes, with x in blocks of eight bits
    """

def linear_backward(dy: Annotated[NDArray, dict(device='cpu', writable=False)], w: Matrix, dx: Annotated[NDArray, dict(device='cpu')], dh: Annotated[NDArray, dict(device='cpu', writable=False)] | None = None, a: Annotated[NDArray, dict(device='cpu', writable=False)] | None = None, accumulate: bool = False, fixed: bool = False) -> None:
    """dx (T, K) (+)= dy (T, N) W + dh (T, r) a (r, K); fixed: in fixed point"""

def rounds(type: int, rows: int) -> bool:
    """
    whether `rounded` products of so many rows with a type of weights round x
    """

def lora_in(x: Annotated[NDArray, dict(device='cpu', writable=False)], a: Annotated[NDArray, dict(device='cpu', writable=False)], h: Annotated[NDArray, dict(device='cpu')], scale: float = 1.0, accumulate: bool = False) -> None:
    """h (T, r) (+)= scale * x (T, K) a (r, K)^T"""

def lora_gradient(dh: Annotated[NDArray, dict(device='cpu', writable=False)], x: Annotated[NDArray, dict(device='cpu', writable=False)], da: Annotated[NDArray, dict(device='cpu')], scale: float = 1.0, accumulate: bool = False) -> None:
    """da (r, K) (+)= scale * dh (T, r)^T x (T, K)"""

def lora_in_parts(x: Annotated[NDArray, dict(device='cpu', writable=False)], parts: Sequence[tuple[int, int, Annotated[NDArray, dict(device='cpu', writable=False)], float]], h: Annotated[NDArray, dict(device='cpu')], accumulate: bool = False) -> None:
    """
    lora_in for rows [first, last) of x (T, K) and h (T, R), with factors of their own; parts: (first, last, a (r, K), scale), whose results are the first r columns of h
    """

def lora_out_parts(h: Annotated[NDArray, dict(device='cpu', writable=False)], parts: Sequence[tuple[int, int, Annotated[NDArray, dict(device='cpu', writable=False)]]], out: Annotated[NDArray, dict(device='cpu')]) -> None:
    """
    out (T, N) += h (T, R) b for rows [first, last), with factors of their own; parts: (first, last, b (r, N)), which read the first r columns of h
    """

def linear_cost(tokens: int, inputs: int, outputs: int, rank: int, bf16: bool, type: int = 0, fixed: bool = False, rounded: bool = False) -> tuple[float, int]:
    """
    (floating-point operations, bytes of scratch per thread); type: of the stored weight, which matters up to four tokens
    """

def linear_backward_cost(tokens: int, inputs: int, outputs: int, rank: int, bf16: bool, fixed: bool = False) -> tuple[float, int]:
    """(floating-point operations, bytes of scratch per thread)"""

def lora_in_cost(tokens: int, inputs: int, rank: int) -> tuple[float, int]:
    """(floating-point operations, bytes of scratch per thread)"""

def lora_gradient_cost(tokens: int, inputs: int, rank: int) -> tuple[float, int]:
    """(floating-point operations, bytes of scratch per thread)"""

def gather_rows(w: Matrix, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray, dict(device='cpu')]) -> None:
    """out (n, D) = rows ids of W"""

def dequantize(w: Matrix, out: Annotated[NDArray, dict(device='cpu')]) -> None:
    """out (rows, cols) = W"""

def encode(x: Annotated[NDArray, dict(device='cpu', writable=False)], codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), device='cpu')]) -> None:
    """codes (T, bytes) = x (T, K) in blocks of eight bits, Q8_0's"""

def decode(codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), device='cpu', writable=False)], out: Annotated[NDArray, dict(device='cpu')]) -> None:
    """out (T, K) = what `encode` made codes of, rounded"""

def attention(q: Annotated[NDArray, dict(device='cpu', writable=False)], k: Annotated[NDArray, dict(device='cpu', writable=False)], v: Annotated[NDArray, dict(device='cpu', writable=False)], out: Annotated[NDArray, dict(device='cpu')], lse: Annotated[NDArray, dict(device='cpu')] | None, heads: int, kv_heads: int, cu_q: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], cu_k: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, scale: float | None = None, window: int = 0, p: Annotated[NDArray, dict(device='cpu')] | None = None, softcap: float = 0.0, prefix: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, sinks: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
    """
    out (Tq, H d) = grouped-query attention, causal unless window is -1; lse (H, Tq) or None. scale None: head_dim ** -0.5. p (H Tq, Tk) float32 receives the probabilities. softcap not 0: a score s becomes softcap * tanh(s / softcap). prefix (S,): -1, or the sequence whose keys these queries see as well. sinks (H,) float32: logits that take part in each row's softmax, with the value zero
    """

def attention_backward(dout: Annotated[NDArray, dict(device='cpu', writable=False)], q: Annotated[NDArray, dict(device='cpu', writable=False)], k: Annotated[NDArray, dict(device='cpu', writable=False)], v: Annotated[NDArray, dict(device='cpu', writable=False)], out: Annotated[NDArray, dict(device='cpu', writable=False)], lse: Annotated[NDArray, dict(device='cpu', writable=False)], delta: Annotated[NDArray, dict(device='cpu')], dq: Annotated[NDArray, dict(device='cpu')], dk: Annotated[NDArray, dict(device='cpu')], dv: Annotated[NDArray, dict(device='cpu')], heads: int, kv_heads: int, cu_q: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], cu_k: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, scale: float | None = None, window: int = 0, p: Annotated[NDArray, dict(device='cpu', writable=False)] | None = None, softcap: float = 0.0, accumulate: bool = False, prefix: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
    """
    dq and (+)= dk, dv from dout; delta (H, Tq) = sum(dout * out), out not rounded; p as attention left it
    """

def attention_cost(cu_q: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], cu_k: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], heads: int, kv_heads: int, head_dim: int, window: int = 0, softcap: float = 0.0, backward_follows: bool = True, prefix: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> tuple[float, int]:
    """
    (floating-point operations, bytes of scratch per thread); backward_follows: lse or p is wanted
    """

def attention_backward_cost(cu_q: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], cu_k: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], heads: int, kv_heads: int, head_dim: int, window: int = 0, softcap: float = 0.0, prefix: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> tuple[float, int]:
    """(floating-point operations, bytes of scratch per thread)"""

def delta_rule(q: Annotated[NDArray, dict(device='cpu', writable=False)], k: Annotated[NDArray, dict(device='cpu', writable=False)], v: Annotated[NDArray, dict(device='cpu', writable=False)], decay: Annotated[NDArray, dict(device='cpu', writable=False)], beta: Annotated[NDArray, dict(device='cpu', writable=False)], y: Annotated[NDArray, dict(device='cpu')] | None, k_heads: int, v_heads: int, tiled: bool, cu: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], before: Annotated[NDArray, dict(device='cpu', writable=False)] | None = None, after: Annotated[NDArray, dict(device='cpu')] | None = None) -> None:
    """
    y (T, Hv Dv) = the gated delta rule of q, k (T, Hk Dk), v (T, Hv Dv), decay, beta (T, Hv), from the states before (Hv, Dk Dv) to those after; tiled: V head h reads K head h % Hk, else h // (Hv / Hk)
    """

def delta_rule_backward(dy: Annotated[NDArray, dict(device='cpu', writable=False)], q: Annotated[NDArray, dict(device='cpu', writable=False)], k: Annotated[NDArray, dict(device='cpu', writable=False)], v: Annotated[NDArray, dict(device='cpu', writable=False)], decay: Annotated[NDArray, dict(device='cpu', writable=False)], beta: Annotated[NDArray, dict(device='cpu', writable=False)], dq: Annotated[NDArray, dict(device='cpu')], dk: Annotated[NDArray, dict(device='cpu')], dv: Annotated[NDArray, dict(device='cpu')], ddecay: Annotated[NDArray, dict(device='cpu')], dbeta: Annotated[NDArray, dict(device='cpu')], k_heads: int, v_heads: int, tiled: bool, cu: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], before: Annotated[NDArray, dict(device='cpu', writable=False)] | None = None, dafter: Annotated[NDArray, dict(device='cpu', writable=False)] | None = None, dbefore: Annotated[NDArray, dict(device='cpu')] | None = None) -> None:
    """
    dq, dk, dv, ddecay, dbeta from dy and dafter, the gradient of the states after; dbefore (Hv, Dk Dv) may be dafter
    """

def delta_rule_cost(cu: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], k_heads: int, v_heads: int, k_dim: int, v_dim: int) -> tuple[float, int]:
    """(floating-point operations, bytes of scratch per thread)"""

def delta_rule_backward_cost(cu: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], k_heads: int, v_heads: int, k_dim: int, v_dim: int) -> tuple[float, int]:
    """(floating-point operations, bytes of scratch per thread)"""

SEGMENT: int = 128

def cache_rows(k: Annotated[NDArray, dict(device='cpu', writable=False)], v: Annotated[NDArray, dict(device='cpu', writable=False)], start: int, cache: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], type: int, kv_heads: int, first: int = 0) -> None:
    """
    Store k, v (T, Hk d) float32 of tokens [start, start + T) in a piece of a cache, bytes (n,), whose first segment of SEGMENT tokens begins with token `first`. type: F32, Q8_0 or Q4_0
    """

def cached_attention(q: Annotated[NDArray, dict(device='cpu', writable=False)], cache: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], type: int, out: Annotated[NDArray, dict(device='cpu')], heads: int, kv_heads: int, keys: int, *, scale: float, window: int = 0, softcap: float = 0.0, sinks: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, first: int = 0, last: int | None = None, state: Annotated[NDArray, dict(device='cpu')] | None = None, begins: bool = True, ends: bool = True) -> None:
    """
    out (T, H d), float32 or bf16 = attention of q (T, H d) float32, the last T of `keys` tokens. The cache is the piece for keys [first, last). With several pieces, in order, state (T, H (d + 2)) carries the softmax; `begins` with the first piece that q sees, `ends` with the last one. All divisions give the same bits
    """

def cached_attention_cost(queries: int, type: int, heads: int, kv_heads: int, head_dim: int, keys: int, window: int = 0, softcap: float = 0.0, first: int = 0, last: int | None = None) -> tuple[float, int]:
    """
    (floating-point operations, bytes of scratch per thread) of cached_attention
    """

def hadamard(x: Annotated[NDArray, dict(device='cpu')], size: int) -> None:
    """
    x (T, n size) float32 times the Hadamard matrix of `size`, a power of two, divided by sqrt(size), in place. Twice gives x again
    """

def gate(z: Annotated[NDArray, dict(device='cpu', writable=False)], x: Annotated[NDArray, dict(device='cpu', writable=False)] | None, out: Annotated[NDArray, dict(device='cpu')], form: str) -> None:
    """
    out (T, F) = x * form(z), where form is 'silu' or 'sigmoid' and x None is 1; out may be x or z
    """

def gate_backward(da: Annotated[NDArray, dict(device='cpu', writable=False)], z: Annotated[NDArray, dict(device='cpu', writable=False)], x: Annotated[NDArray, dict(device='cpu', writable=False)] | None, dz: Annotated[NDArray, dict(device='cpu')], dx: Annotated[NDArray, dict(device='cpu')] | None, form: str) -> None:
    """
    dz and dx (T, F) float32 from da, with a = x * form(z); dz or dx may be da
    """

def rms_norm(x: Annotated[NDArray, dict(device='cpu', writable=False)], weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float, out: Annotated[NDArray, dict(device='cpu')], accumulate: bool = False) -> None:
    """
    out (T, D) (+)= x * weight / sqrt(mean(x^2) + eps), for each group of as many columns as weight has; out may be x
    """

def rms_norm_backward(dn: Annotated[NDArray, dict(device='cpu', writable=False)], x: Annotated[NDArray, dict(device='cpu', writable=False)], weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float, dx: Annotated[NDArray, dict(device='cpu')], accumulate: bool = True) -> None:
    """
    dx (T, D) (+)= the gradient of rms_norm's input x, from dn; dx may be dn if it is overwritten
    """

def layer_norm(x: Annotated[NDArray, dict(device='cpu', writable=False)], weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, eps: float, out: Annotated[NDArray, dict(device='cpu')]) -> None:
    """
    out (T, D) = (x - mean) / sqrt(variance + eps) * weight + bias; out may be x
    """

def layer_norm_backward(dn: Annotated[NDArray, dict(device='cpu', writable=False)], x: Annotated[NDArray, dict(device='cpu', writable=False)], weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float, dx: Annotated[NDArray, dict(device='cpu')], accumulate: bool = True) -> None:
    """
    dx (T, D) (+)= the gradient of layer_norm's input x, from dn; dx may be dn if it is overwritten
    """

def rope(x: Annotated[NDArray, dict(device='cpu', writable=False)], cos: Annotated[NDArray, dict(device='cpu', writable=False)], sin: Annotated[NDArray, dict(device='cpu', writable=False)], out: Annotated[NDArray, dict(device='cpu')], head_dim: int, interleaved: bool, inverse: bool = False) -> None:
    """out = x rotated (or rotated back); out may be x"""

def glu(gate: Annotated[NDArray, dict(device='cpu', writable=False)], up: Annotated[NDArray, dict(device='cpu', writable=False)] | None, out: Annotated[NDArray, dict(device='cpu')], activation: str) -> None:
    """
    out (T, F) = activation(gate) * up, or without up; the activation is 'silu', 'gelu', 'gelu_tanh', 'relu2' or 'clipped_silu', which needs up
    """

def glu_backward(da: Annotated[NDArray, dict(device='cpu', writable=False)], gate: Annotated[NDArray, dict(device='cpu', writable=False)], up: Annotated[NDArray, dict(device='cpu', writable=False)] | None, dgate: Annotated[NDArray, dict(device='cpu')], dup: Annotated[NDArray, dict(device='cpu')] | None, activation: str, a: Annotated[NDArray, dict(device='cpu')] | None = None) -> None:
    """
    dgate, dup (T, F) from da, with a = activation(gate) * up, which is computed once more if it is given
    """

def slope_codes(x: Annotated[NDArray, dict(device='cpu', writable=False)], bounds: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), device='cpu')]) -> None:
    """
    codes (T, 16 bytes for 64 columns) = how many of three ascending bounds each x (T, F) exceeds, in two bits
    """

def slope_backward(da: Annotated[NDArray, dict(device='cpu', writable=False)], codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), device='cpu', writable=False)], slopes: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], dz: Annotated[NDArray, dict(device='cpu')]) -> None:
    """dz (T, F) = da times one of four slopes, chosen by such codes"""

def gated_recurrence(i: Annotated[NDArray, dict(device='cpu', writable=False)], f: Annotated[NDArray, dict(device='cpu', writable=False)], bound: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], state: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], h: Annotated[NDArray, dict(device='cpu')]) -> None:
    """
    h_t (T, D) = (1 - k_t) h_{t-1} + silu(i_t) k_t, k_t = (1 - bound) sigmoid(-f_t), from h_{-1} = state (D), which becomes the last row of h
    """

def gated_recurrence_backward(dh: Annotated[NDArray, dict(device='cpu', writable=False)], i: Annotated[NDArray, dict(device='cpu', writable=False)], f: Annotated[NDArray, dict(device='cpu', writable=False)], bound: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], before: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], h: Annotated[NDArray, dict(device='cpu', writable=False)], carry: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], di: Annotated[NDArray, dict(device='cpu')], df: Annotated[NDArray, dict(device='cpu')]) -> None:
    """
    di, df (T, D) from dh, where h = gated_recurrence(i, f) from h_{-1} = before (D); carry (D), the gradient of the last row from behind, becomes that of before
    """

def round_rows(x: Annotated[NDArray, dict(device='cpu', writable=False)], out: Annotated[NDArray, dict(device='cpu')]) -> None:
    """
    out (T, K) = x in 8-bit steps of its row: nearest(x s) / s, s = 127 / max(max |x|, 1e-5); out may be x
    """

def cast(x: Annotated[NDArray, dict(device='cpu', writable=False)], out: Annotated[NDArray, dict(device='cpu')]) -> None:
    """out = x in out's type"""

def scale_columns(x: Annotated[NDArray, dict(device='cpu', writable=False)], factors: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, out: Annotated[NDArray, dict(device='cpu')], bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, accumulate: bool = False) -> None:
    """out (T, N) (+)= x * factors (N) + bias (N); out may be x"""

def column_dots(x: Annotated[NDArray, dict(device='cpu', writable=False)], y: Annotated[NDArray, dict(device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], less: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, over: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
    """
    out (N) += sum over t of x (T, N) (y (T, N) - less (N)) / over (N), nothing where over is 0
    """

def round_at_random(x: Annotated[NDArray, dict(device='cpu', writable=False)], states: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray, dict(device='cpu')]) -> None:
    """
    out (n, cols), bf16 = x (n, cols), up or down at random by the states (n) of its rows, so that the mean stays
    """

def add_drawn(states: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], first: int, table: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], factor: float, out: Annotated[NDArray, dict(device='cpu')]) -> None:
    """
    out (n, cols) += factor * table[16 random bits], which depend on a row's state (n) and the column, counted from `first` on; table (65536)
    """

def sum_squares(x: Annotated[NDArray, dict(device='cpu', writable=False)]) -> float:
    """sum of x^2, in double"""

def take_rows(x: Annotated[NDArray, dict(device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray, dict(device='cpu')]) -> None:
    """out (n, D) = rows (n) of x (T, D), in out's type"""

def add_rows(values: Annotated[NDArray, dict(device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray, dict(device='cpu')]) -> None:
    """
    out[rows[t]] += values[t] for each row of values (n, D), in order; rows that out lacks are skipped
    """

def row_dots(x: Annotated[NDArray, dict(device='cpu', writable=False)], y: Annotated[NDArray, dict(device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], accumulate: bool = False) -> None:
    """out (T) (+)= the sum of x y over each row of x, y (T, D)"""

def cross_entropy_tile(logits: Annotated[NDArray, dict(device='cpu', writable=False)], first: int, targets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], reference: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], sum: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], target_logit: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], p: Annotated[NDArray, dict(device='cpu')] | None = None, dh: Annotated[NDArray, dict(device='cpu')] | None = None, softcap: float = 0.0) -> None:
    """One vocabulary tile of the online softmax; see ops.def"""

def cross_entropy_finish(reference: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], sum: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], target_logit: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], loss: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], target_rows: Annotated[NDArray, dict(device='cpu', writable=False)] | None = None, dh: Annotated[NDArray, dict(device='cpu')] | None = None, scale: float = 1.0, softcap: float = 0.0) -> None:
    """loss (n) in nats and, in place, dh (n, D); see ops.def"""

def adamw(param: Annotated[NDArray, dict(device='cpu')], grad: Annotated[NDArray, dict(device='cpu', writable=False)], m: Annotated[NDArray, dict(device='cpu')], v: Annotated[NDArray, dict(device='cpu')], lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int, grad_scale: float = 1.0) -> None:
    """
    One AdamW step in place (decoupled decay, bias-corrected); step counts from 1
    """

def sgd(param: Annotated[NDArray, dict(device='cpu')], grad: Annotated[NDArray, dict(device='cpu', writable=False)], lr: float, weight_decay: float = 0.0, grad_scale: float = 1.0) -> None:
    """One SGD step in place"""

def available() -> list[str]:
    """Names of the kernel sets this CPU runs, slowest first"""

def use(name: str) -> None: ...

def current() -> str: ...

def threads() -> int: ...

MAX_THREADS: int = 1024

def set_threads(count: int) -> None: ...

def profile(on: bool) -> None:
    """Begin (with an empty table) or end timing every operation"""

def profile_report() -> dict:
    """{operation: (calls, seconds, floating-point operations)}"""

def memory_now() -> tuple[int, int]:
    """(footprint, resident) bytes of this process"""

def meter_start() -> None: ...

def meter_peak() -> tuple[int, int]:
    """(footprint, resident) peaks in bytes since meter_start"""

def meter_stop() -> None: ...

def scratch_peak() -> int:
    """
    Most bytes of scratch that a thread asked for since the last call of this
    """

class MapGuard:
    """
    While it exists, pages of these mapped bytes that are no longer there read as zeros.
    """

    def __init__(self, range: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    @property
    def lost(self) -> int:
        """The number of pages found missing so far"""

    def close(self) -> None:
        """End the guard. The number of lost pages stays"""

class ReadAhead:
    """
    A thread that brings bytes of files into the page cache, once it is asked to.
    """

    def __init__(self) -> None: ...

    def map(self, range: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Have these mapped bytes read"""

    def file(self, file: int, offset: int, bytes: int) -> None:
        """Have this part of an open file read, in large pieces"""

    def close(self) -> None:
        """
        End the thread. What was not begun is forgotten; a later request starts another thread
        """

def drop_pages(range: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """Unmap these read-only mapped bytes' pages until they are touched again"""

class TextEncoder:
    """Plain text to tokens and back: no special tokens, no leading space."""

    @property
    def n_vocab(self) -> int: ...

    def token(self, id: int) -> str:
        """A token as the vocabulary spells it"""

    def encode(self, text: str, parts: Sequence[tuple[int, int, int]], places: bool) -> tuple[Annotated[NDArray[numpy.uint32], dict(shape=(None,))], Annotated[NDArray[numpy.uint32], dict(shape=(None, 2))] | None]:
        """
        Tokens, and with `places` the half-open range of characters that each stands for, (n, 2). `parts` of the text, one after another: (token, begin, end), the token PLAIN for text to encode, SPACED for such with a space before it that is no part of the text. Other threads run meanwhile.
        """

    def token_bytes(self, id: int) -> bytes:
        """The bytes that a token stands for inside a text"""

    def decode(self, ids: Sequence[int]) -> str: ...

PLAIN: int = -1

SPACED: int = -2

def byte_level_encoder(file: object, tokens: tuple[int, int], types: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], merges: tuple[int, int], cuts: Sequence[str], composes: bool, whole_words: bool, merges_file: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> TextEncoder:
    """
    Byte-level BPE over strings as a GGUF file holds them, given as (offset, count) in `file`; the merges may be in another, which is not kept
    """

def sentencepiece_encoder(file: object, tokens: tuple[int, int], types: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], scores: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, merges: tuple[int, int] = (0, 0), strips_space: bool = True, merges_file: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> TextEncoder:
    """
    SentencePiece BPE likewise, by the pieces' scores or, if these are None, by merges. `strips_space`: decoded text loses a leading space
    """

class JsonVocabulary:
    """The vocabulary of a tokenizer.json"""

    @property
    def facts(self) -> bytes:
        """The file's JSON with null in place of its tables of tokens and merges"""

    @property
    def size(self) -> int:
        """One more than the highest number of a token"""

    @property
    def n_merges(self) -> int: ...

    def add(self, id: int, text: str) -> None:
        """Give a number its text"""

    def find(self, texts: Sequence[str]) -> list[int]:
        """The number of each text, -1 if there is none"""

    @property
    def tokens(self) -> bytes:
        """
        Tokens by number, as GGUF files hold strings; one that is missing is empty
        """

    @property
    def merges(self) -> bytes:
        """Merges by rank, likewise"""

def read_vocabulary(descriptor: int) -> JsonVocabulary:
    """
    Read a tokenizer.json; ValueError if it is not JSON or not a vocabulary
    """

def find_strings(file: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], strings: tuple[int, int], wanted: Sequence[str]) -> list:
    """
    (number, text) of each of the strings, (offset, count) in `file`, that is one of `wanted`
    """

def cut_text(text: str, cuts: Sequence[str]) -> list[str]:
    """
    The pieces into which regular expressions cut a text, one after another; ValueError for an unsupported one
    """

class NameFinder:
    """Finds names in text, in time that their number does not change."""

    def __init__(self, names: Sequence[str]) -> None: ...

    def find(self, text: str) -> list[tuple[int, int, int]]:
        """
        (name, start, end) of the longest name at each character where one begins; they may overlap
        """
