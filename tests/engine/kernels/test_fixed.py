"""Fixed-point products equal core/fixed.h's definition, computed in NumPy, and are bit-identical on every set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.kernels.native import REFERENCE, VECTOR_SETS, kernel, stored
from tests.support.sweep import sweep

from featherback.engine import kernels
from featherback.engine.formats.types import TensorType

Array = NDArray[Any]

GROUP, CHUNK, TAIL = 256, 32, 64
ROW_NORM, COLUMN_NORM, PEAK, FLOOR = (np.float32(v) for v in (32740, 65500, 32740, 2.0**-62))
WIDEST = 2**31 - 1

# T, K (in), N (out), rank, type: partial chunks and groups, LoRA's factor after the last group or in its own.
SHAPES = [
    (5, 1, 3, 0, "F32"),
    (7, 96, 33, 8, "Q4_0"),
    (33, 288, 70, 64, "Q8_0"),
    (9, 256, 131, 65, "Q4_1"),
    (6, 512, 17, 3, "Q6_K"),
    (13, 257, 40, 300, "F32"),
    (65, 2080, 24, 1, "Q5_0"),
    (270, 704, 600, 8, "Q4_0"),
]
shapes = pytest.mark.parametrize("shape", SHAPES, ids="T{0[0]}-K{0[1]}-N{0[2]}-r{0[3]}-{0[4]}".format)
isas = pytest.mark.parametrize("isa", VECTOR_SETS)
ways = pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])


def uneven(rng: np.random.Generator, rows: int, cols: int) -> Array:
    """Numbers of very different sizes in one row, zeros, and a few that are far larger than the rest."""
    x = rng.standard_normal((rows, cols)) * 2.0 ** -(3 * (np.arange(cols) // 40 % 5))
    x *= np.where(rng.random(x.shape) < 0.01, 1000, 1) * (rng.random(x.shape) < 0.9)
    return x.astype(np.float32)


def inputs(rng: np.random.Generator, shape: Any, backward: bool) -> tuple[Any, dict[str, Array], Array, Array]:
    """The operation's stored weight and arrays; the two operands whose reduction runs along their rows."""
    T, K, N, r, type = shape
    w = stored(rng, type, N, K)
    values = w.values.astype(np.float32)
    names = ("dy", "dh", "a") if backward else ("x", "h", "b")
    x, h = uneven(rng, T, N if backward else K), uneven(rng, T, r)
    b = uneven(rng, r, K if backward else N)
    arrays = {names[0]: x} | ({names[1]: h, names[2]: b} if r else {})
    return w, arrays, values.T if backward else values, b


def run(isa: str, w: Any, arrays: dict[str, Array], backward: bool, columns: int, **more: Any) -> Array:
    rows = len(next(iter(arrays.values())))
    out = more.pop("start", np.full((rows, columns), np.nan, np.float32)).copy()
    name, result = ("linear_backward", "dx") if backward else ("linear", "out")
    kernel(isa, name, w=w.matrix, fixed=True)(**arrays, **{result: out}, **more)
    return out


def quantise(v: Array, column: bool) -> tuple[Array, Array, Array]:
    """(q (rows, groups, chunks, 32), scales (rows, groups), shares (rows, groups, chunks)) of v (rows, K)."""
    rows, length = v.shape
    groups = -(-length // GROUP)
    padded = np.zeros((rows, groups * GROUP), np.float32)
    padded[:, :length] = v
    cells = padded.reshape(rows, groups, GROUP // CHUNK, CHUNK)
    t = np.maximum((cells.view(np.uint32) & np.uint32(0x7FFFF000)).view(np.float32), FLOOR)
    # Chunks beyond the end do not exist; the others count completely.
    there = np.arange(groups * GROUP // CHUNK).reshape(groups, -1) * CHUNK < length
    squares = t * t
    parts = np.zeros((*cells.shape[:3], 8), np.float32)
    for turn in range(4):
        parts += squares[..., 8 * turn : 8 * turn + 8]
    sums = parts.copy()
    for half in (4, 2, 1):
        sums = sums[..., :half] + sums[..., half : 2 * half]
    chunks = np.where(there, sums[..., 0], np.float32(0))
    most = chunks.max(axis=2)
    inverse = (COLUMN_NORM if column else ROW_NORM) / np.sqrt(most)
    shares = np.ones_like(chunks)
    if column:
        inverse = np.minimum(inverse, PEAK / np.sqrt((parts * there[..., None]).max(axis=(2, 3))))
    else:
        with np.errstate(divide="ignore", over="ignore"):
            ratio = most[..., None] / chunks
        exponent = np.minimum(np.frexp(np.where(np.isfinite(ratio), ratio, 2.0**100))[1] - 1, 60) // 2
        shares = np.exp2(-exponent).astype(np.float32)
    q = np.rint(cells * (inverse[..., None] / shares)[..., None])
    return q.astype(np.int64), np.float32(1) / inverse, shares


def half_steps(v: Array, column: bool) -> Array:
    """Return the largest rounding error of each number of v (rows, K)."""
    _, scales, shares = quantise(v, column)
    steps = np.repeat(scales[..., None] * shares.astype(np.float64), CHUNK, axis=2).reshape(len(v), -1)
    half: Array = steps[:, : v.shape[1]] * (0.5 + 2.0**-7)  # the scale's own rounding, of numbers up to 2^15
    return half


def group_sums(x: Array, columns: Array) -> tuple[Array, int]:
    """The sums of x (T, K) columns (N, K)^T group by group (groups, T, N), and the largest sum of a chunk."""
    q, scales, shares = quantise(x, False)
    p, widths, _ = quantise(columns, True)
    assert max(abs(q).max(), abs(p).max()) <= 32767
    totals, largest = [], 0
    for g in range(q.shape[1]):
        total = np.zeros((len(x), len(columns)), np.float32)
        for c in range(GROUP // CHUNK):
            sums = q[:, g, c] @ p[:, g, c].T
            largest = max(largest, int(abs(sums).max()))
            total += sums.astype(np.float32) * shares[:, g, c, None]
        totals.append(total * (scales[:, g, None] * widths[None, :, g]))
    return np.array(totals), largest


def expected(parts: list[tuple[Array, Array]]) -> Array:
    """Return the product of all parts (rows, columns), as core/fixed.h defines it."""
    out = None
    waiting: Any = None
    for x, columns in parts:
        sums, largest = group_sums(x, columns)
        assert largest <= WIDEST
        for index, value in enumerate(sums):
            if waiting is not None and (index or x.shape[1] > TAIL):
                out = waiting if out is None else out + waiting
                waiting = None
            waiting = value if waiting is None else waiting + value
    return waiting if out is None else out + waiting


@sweep(ways, shapes)
def test_reference(rng: np.random.Generator, shape: Any, backward: bool) -> None:
    w, arrays, columns, b = inputs(rng, shape, backward)
    x, *h = list(arrays.values())[:2]
    parts = [(x, columns)] + ([(h[0], np.ascontiguousarray(b.T))] if h else [])
    found = run(REFERENCE, w, arrays, backward, len(columns))
    np.testing.assert_array_equal(found, expected(parts))
    exact, allowed = np.zeros(found.shape), np.zeros(found.shape)
    for x, c in parts:
        exact += x.astype(np.float64) @ c.T
        (dx, dc), (size, width) = (half_steps(x, False), half_steps(c, True)), (abs(x), abs(c))
        allowed += dx @ (width + dc).T + size @ dc.T + len(x.T) * 2.0**-24 * (size @ width.T)  # float32's own
    assert (abs(found - exact) <= allowed).all()


@isas
@sweep(ways, shapes)
def test_same_bits(rng: np.random.Generator, isa: str, shape: Any, backward: bool) -> None:
    w, arrays, columns, _ = inputs(rng, shape, backward)
    start = rng.standard_normal((shape[0], len(columns))).astype(np.float32)
    more: Any = {"start": start, "accumulate": True}
    if not backward:
        more["bias"] = rng.standard_normal(len(columns)).astype(np.float32)
    alone: Any = {}
    for options in (alone, more):
        ours, reference = (run(name, w, arrays, backward, len(columns), **options) for name in (isa, REFERENCE))
        np.testing.assert_array_equal(ours, reference)


@isas
@pytest.mark.parametrize("live", [32, 16, 4])
def test_every_sum_at_its_bound(rng: np.random.Generator, isa: str, live: int) -> None:
    """Rows and columns of one direction: no int32 sum can be larger, and 3 % more would not fit.

    With `live` numbers of a chunk: of four alone, a column's numbers are at int16's end before its norm is.
    """
    z = rng.uniform(0.5, 1, (1, 544)) * np.sign(rng.standard_normal((1, 544))) * (np.arange(544) % 32 < live)
    z /= np.sqrt((z.reshape(1, -1, 32) ** 2).sum(-1)).repeat(32, -1)  # every chunk as long as the longest
    z = z.astype(np.float32)
    signs = np.array([[3], [-3], [0.25], [-1], [7], [2]], np.float32)
    x, columns = signs * z, (signs * z)[:5]
    _, largest = group_sums(x, columns)
    assert largest <= WIDEST
    if live > 4:
        assert largest * 1.03 > WIDEST
    w = kernels.Matrix(columns.reshape(-1).view(np.uint8), int(TensorType.F32), *columns.shape)
    out = np.empty((6, 5), np.float32)
    kernel(isa, "linear", w=w, fixed=True)(x=x, out=out)
    np.testing.assert_array_equal(out, expected([(x, columns)]))


@pytest.mark.parametrize("isa", [REFERENCE, *VECTOR_SETS])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(rng: np.random.Generator, isa: str, value: float) -> None:
    w, x = stored(rng, "Q4_0", 20, 320), uneven(rng, 9, 320)
    clean = run(isa, w, {"x": x}, False, 20)
    x[4, 300] = value
    found = run(isa, w, {"x": x}, False, 20)
    assert not np.isfinite(found[4]).any()
    np.testing.assert_array_equal(np.delete(found, 4, 0), np.delete(clean, 4, 0))


def test_float32_alone(rng: np.random.Generator) -> None:
    w = stored(rng, "Q4_0", 20, 32)
    with pytest.raises(ValueError, match="x must be float32"):
        kernels.linear(np.zeros((9, 32), np.uint16), w.matrix, np.empty((9, 20), np.float32), fixed=True)
