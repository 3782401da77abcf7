"""A device that computes nothing and counts everything: arrays are shapes, memory is a sum, operations are costs.

The same layers and methods run on it as on a real device. So there is no second description of what they hold and how
long they take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from featherback.core.naming import argument
from featherback.engine import backend, kernels
from featherback.engine.backend.arena import aligned
from featherback.engine.backend.cpu import FEW, SEVERAL
from featherback.engine.backend.protocol import Operations
from featherback.engine.formats.mapping import most_mapped
from featherback.engine.formats.matrix import Matrix as StoredMatrix
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError

T = TypeVar("T")
OPERATIONS = frozenset(name for name in vars(Operations) if not name.startswith("_"))


@dataclass(frozen=True, slots=True)
class Blank:
    """An array of which only the shape and the type are known."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Blank:
        keys = key if isinstance(key, tuple) else (key,)
        cut = tuple(len(range(n)[k]) for n, k in zip(self.shape, keys, strict=False))
        return Blank(cut + self.shape[len(cut) :], self.dtype)

    def reshape(self, *shape: int) -> Blank:
        """Return the same elements in another shape."""
        return Blank(shape, self.dtype)


@dataclass
class Entry:
    """One array of the ledger: its shape and type, and the moments at which it is allocated and freed."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    born: int
    dies: int = -1

    @property
    def nbytes(self) -> int:
        """Number of bytes that it occupies in the arena."""
        return aligned(self.shape, self.dtype)


class Ledger:
    """An arena without memory. It records every array with the moments at which it is allocated and freed."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.high_water = 0
        self._live: list[Entry] = []
        self._held = 0
        self._now = 0
        self._fullest = 0

    def take(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Blank:
        """Record an array. It is freed with the frame in which it was allocated."""
        self._now += 1
        entry = Entry(name, tuple(shape), np.dtype(dtype), self._now)
        self.entries.append(entry)
        self._live.append(entry)
        self._held += entry.nbytes
        if self._held > self.high_water:
            self.high_water, self._fullest = self._held, self._now
        return Blank(entry.shape, entry.dtype)

    @contextmanager
    def frame(self) -> Iterator[None]:
        """Record, at the end of the context, that all arrays allocated inside are freed."""
        depth = len(self._live)
        yield
        self._now += 1
        for entry in self._live[depth:]:
            entry.dies = self._now
            self._held -= entry.nbytes
        del self._live[depth:]

    def release(self) -> None:
        """Do nothing."""

    def live_at_peak(self) -> list[Entry]:
        """Return the arrays that are allocated at the peak."""
        return [e for e in self.entries if e.born <= self._fullest and (e.dies > self._fullest or e.dies < 0)]

    @property
    def peak_moment(self) -> int:
        """The moment at which most bytes are allocated."""
        return self._fullest


@dataclass(frozen=True, slots=True)
class BlankMatrix:
    """A stored weight of which only shape, type and row size are known, or a rectangle of one."""

    shape: tuple[int, int]
    row_bytes: int
    name: str = ""
    """The matrix's name in its file; "" for a matrix in memory."""
    type: int = int(TensorType.F32)
    """A `TensorType`."""

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def cols(self) -> int:
        return self.shape[1]

    def slice(self, rows: tuple[int, int] | None = None, cols: tuple[int, int] | None = None) -> BlankMatrix:
        """Return the rectangle [rows) x [cols). Whole rows of a file count as mapped."""
        height, width = (last - first for first, last in (rows or (0, self.shape[0]), cols or (0, self.shape[1])))
        return BlankMatrix((height, width), self.row_bytes, self.name, self.type)

    @property
    def nbytes(self) -> int:
        """Bytes of its rows."""
        return self.shape[0] * self.row_bytes


@dataclass
class Work:
    """The work of a pass, in operations and bytes."""

    products: float = 0.0  # floating-point operations of matrix products with stored weights
    lora: float = (
        0.0  # floating-point operations of small products: an adapter's lora_in and lora_gradient, the delta rule
    )
    attention: float = 0.0  # floating-point operations of attention
    moved: float = 0.0  # bytes read and written by operations that compute little
    calls: float = 0  # number of operations
    unpacked: float = 0.0  # stored weights that products unpack
    read: float = 0.0  # bytes of experts that are read from their file, or from the page cache
    thread_scratch: int = 0  # most bytes of a thread's own buffers

    def plus(self, other: Work, times: float = 1) -> Work:
        """Return the sum of this work and `times` the other."""
        return Work(
            self.products + times * other.products,
            self.lora + times * other.lora,
            self.attention + times * other.attention,
            self.moved + times * other.moved,
            self.calls + times * other.calls,
            self.unpacked + times * other.unpacked,
            self.read + times * other.read,
            max(self.thread_scratch, other.thread_scratch),
        )


@dataclass
class CountingOperations:
    """Operations that add their cost to `work`."""

    compute: str
    rounded: bool = False
    decoding: bool = False
    work: Work = field(default_factory=Work)
    mapped: dict[str, int] = field(default_factory=dict)  # stored bytes in use, by matrix
    most_mapped: int = 0

    def release(self, matrix: BlankMatrix) -> None:
        """Note that a stored weight, or rows of it, is no longer in use."""
        self.mapped.pop(matrix.name, None)

    def _use(self, matrix: BlankMatrix | kernels.Matrix) -> None:
        self.work.unpacked += matrix.shape[0] * matrix.shape[1]
        if isinstance(matrix, BlankMatrix) and matrix.name:  # the decoder is counted with the real Matrix
            self.mapped[matrix.name] = most_mapped(matrix.nbytes)
            self.most_mapped = max(self.most_mapped, sum(self.mapped.values()))

    @cached_property
    def _kind(self) -> dict[str, bool]:
        """Keyword arguments that select the kind of product in the kernels' cost functions."""
        return {"bf16": self.compute == "bf16", "fixed": self.compute == "int16"}

    def _count(self, kind: str, cost: tuple[float, int]) -> None:
        flops, scratch = cost
        setattr(self.work, kind, getattr(self.work, kind) + flops)
        self.work.calls += 1
        self.work.thread_scratch = max(self.work.thread_scratch, scratch)

    def linear(
        self, x: Blank, w: BlankMatrix, out: Blank, *, h: Blank | None = None, accumulate: bool = False, **_: Any
    ) -> None:
        self._use(w)
        self.work.moved += 2 * out.nbytes * accumulate
        rank = 0 if h is None else h.shape[1]
        outputs, inputs = w.shape

        def cost(rows: int, rounded: bool = False) -> tuple[float, int]:
            return kernels.linear_cost(rows, inputs, outputs, rank, type=w.type, rounded=rounded, **self._kind)

        flops, scratch = cost(len(x))
        if self.decoding:  # for next tokens or for a prompt: both are counted
            parts = cost(min(len(x), FEW)), cost(min(len(x), SEVERAL), self.rounded), cost(max(len(x), FEW + 1))
            scratch = max(each for _, each in parts)
        self._count("products", (flops, scratch))

    def linear_backward(
        self, dy: Blank, w: BlankMatrix, dx: Blank, *, dh: Blank | None = None, accumulate: bool = False, **_: Any
    ) -> None:
        self._use(w)
        self.work.moved += 2 * dx.nbytes * accumulate
        rank = 0 if dh is None else dh.shape[1]
        outputs, inputs = w.shape
        self._count("products", kernels.linear_backward_cost(len(dy), inputs, outputs, rank, **self._kind))

    def dequantize(self, w: BlankMatrix, out: Blank) -> None:
        """Counts a pass over the output, and the stored weight as mapped until it is released."""
        self._use(w)
        self.work.moved += out.nbytes
        self.work.calls += 1

    def lora_in(self, x: Blank, a: Blank, h: Blank, scale: float, **_: Any) -> None:
        self._count("lora", kernels.lora_in_cost(len(x), x.shape[1], len(a)))

    def lora_gradient(self, dh: Blank, x: Blank, da: Blank, scale: float = 1.0, **_: Any) -> None:
        self._count("lora", kernels.lora_gradient_cost(len(x), x.shape[1], len(da)))

    def lora_in_parts(self, x: Blank, parts: Sequence[tuple[int, int, Blank, float]], h: Blank, **_: Any) -> None:
        costs = [kernels.lora_in_cost(last - first, x.shape[1], len(a)) for first, last, a, _ in parts]
        self._count("lora", (sum(flops for flops, _ in costs), max(scratch for _, scratch in costs)))

    def lora_out_parts(self, h: Blank, parts: Sequence[tuple[int, int, Blank]], out: Blank) -> None:
        rows = [(len(b), kernels.lora_gradient_cost(len(b), out.shape[1], 1), last - first) for first, last, b in parts]
        self._count("lora", (sum(n * flops for _, (flops, _), n in rows), max(each[1][1] for each in rows)))

    def attention(
        self, q: Blank, k: Blank, v: Blank, out: Blank, lse: Any, heads: int, kv_heads: int,
        cu_q: Any, cu_k: Any, *, window: int, softcap: float, prefix: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        head_dim, follows = q.shape[1] // heads, lse is not None
        self._count(
            "attention", kernels.attention_cost(cu_q, cu_k, heads, kv_heads, head_dim, window, softcap, follows, prefix)
        )

    def cached_attention(
        self, q: Blank, cache: Blank, type: int, out: Any, heads: int, kv_heads: int, keys: int, *, window: int = 0,
        softcap: float = 0.0, first: int = 0, last: int | None = None, **_: Any,
    ) -> None:  # fmt: skip
        head_dim = q.shape[1] // heads
        self._count(
            "attention",
            kernels.cached_attention_cost(
                len(q), type, heads, kv_heads, head_dim, keys, window, softcap, first=first, last=last
            ),
        )

    def attention_backward(
        self, dout: Blank, q: Blank, k: Blank, v: Blank, out: Blank, lse: Any, delta: Any, dq: Any, dk: Any,
        dv: Any, heads: int, kv_heads: int, cu_q: Any, cu_k: Any, *, window: int, softcap: float,
        prefix: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        head_dim = q.shape[1] // heads
        self._count(
            "attention", kernels.attention_backward_cost(cu_q, cu_k, heads, kv_heads, head_dim, window, softcap, prefix)
        )

    def delta_rule(
        self, q: Blank, k: Blank, v: Blank, decay: Blank, beta: Blank, y: Any, k_heads: int, v_heads: int,
        tiled: bool, cu: Any, **_: Any,
    ) -> None:  # fmt: skip
        dims = q.shape[1] // k_heads, v.shape[1] // v_heads
        self._count("lora", kernels.delta_rule_cost(cu, k_heads, v_heads, *dims))

    def delta_rule_backward(
        self, dy: Blank, q: Blank, k: Blank, v: Blank, decay: Any, beta: Any, dq: Any, dk: Any, dv: Any, ddecay: Any,
        dbeta: Any, k_heads: int, v_heads: int, tiled: bool, cu: Any, **_: Any,
    ) -> None:  # fmt: skip
        dims = q.shape[1] // k_heads, v.shape[1] // v_heads
        self._count("lora", kernels.delta_rule_backward_cost(cu, k_heads, v_heads, *dims))

    def total(self, x: Blank) -> float:
        return 0.0

    def sum_squares(self, x: Blank) -> float:
        self.work.moved += x.nbytes
        return 0.0

    def smallest(self, x: Blank, count: int) -> float:
        """Not counted, because it runs once in many steps."""
        return 0.0

    def rotary_table(self, frequencies: Any, positions: Any, cos: Blank, sin: Blank) -> None:
        """Count the bytes, but not the calls.

        Where a sequence's length decides on its rotation, the number of calls depends on how chunks cut sequences. A
        call takes only a few microseconds.
        """
        self.work.moved += cos.nbytes + sin.nbytes

    def negatives(self, x: Blank) -> tuple[float, int]:
        self.work.moved += x.nbytes
        return 0.0, 0

    def dot(self, x: Blank, y: Blank) -> float:
        self.work.moved += x.nbytes + y.nbytes
        return 0.0

    def _elementwise(self, *arrays: Any) -> None:
        """Count bytes only: NumPy's loops over pieces that fit in the caches wake no thread."""
        self.work.moved += sum(a.nbytes for a in arrays if isinstance(a, Blank))

    add = subtract = multiply = divide = sqrt = sign = clip = matmul = replace_negatives = _elementwise
    row_means = column_sums = row_squares = column_squares = _elementwise

    def encode(self, x: Blank, codes: Blank) -> None:
        """Counted as five passes, because it computes more than it moves."""
        self.work.moved += 5 * (x.nbytes + codes.nbytes)
        self.work.calls += 1

    def decode(self, codes: Blank, out: Blank) -> None:
        """Counted as two passes."""
        self.work.moved += 2 * (codes.nbytes + out.nbytes)
        self.work.calls += 1

    def dense(self, matrix: Blank) -> BlankMatrix:
        height, width = matrix.shape
        return BlankMatrix((height, width), width * matrix.dtype.itemsize)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return any other operation: it counts as one pass over its arrays."""
        if name.startswith("_"):
            raise AttributeError(name)

        def pass_over(*arguments: Any, **options: Any) -> None:
            arrays = [a for a in (*arguments, *options.values()) if isinstance(a, Blank)]
            self.work.moved += sum(a.nbytes for a in arrays)
            self.work.calls += 1

        return pass_over


def _refused(name: str, device: str) -> Callable[..., None]:
    """Return an operation that raises FeatherbackError, because the device does not have it."""

    def refuse(*_: Any, **options: Any) -> None:
        raise FeatherbackError(
            f"{argument('device', device)} does not have the operation `{name}`, which this model, method or adapter "
            f"needs. Remove {argument('device')}."
        )

    return refuse


class Counting:
    """A device with the CPU's types and costs, but without arithmetic."""

    def __init__(self, compute: str, rounded: bool = False, decoding: bool = False) -> None:
        counted = backend.of(compute)
        self.ops = self.prompts = CountingOperations(compute, rounded, decoding)
        if (card := backend.card()) is not None:
            for name in OPERATIONS:
                if not hasattr(counted.ops, name):
                    setattr(self.ops, name, _refused(name, card.name))
        self.operand, self.dense_type = counted.operand, counted.dense_type

    @staticmethod
    def host(x: Blank, *, write: bool = False) -> AbstractContextManager[Any]:
        return nullcontext(np.zeros(x.shape, x.dtype))

    @staticmethod
    def held(values: Any, *, changing: bool = False) -> AbstractContextManager[Any]:
        return nullcontext(values)

    @staticmethod
    def vector(values: Any) -> Any:
        return values

    def gather_rows(self, stored: Any, ids: Any, out: Blank) -> None:
        """Do nothing: there are no rows to gather."""

    def release(self, matrix: BlankMatrix, around: int) -> None:
        """Do nothing: nothing is mapped."""

    @staticmethod
    def weights(model: Any, mode: str, rows: int, changing: bool) -> None:
        """Return None: a dry run has a source of its own."""

    @staticmethod
    def arena(nbytes: int) -> Ledger:
        """Return a ledger, which has no limit."""
        return Ledger()

    @staticmethod
    def matrix(stored: StoredMatrix | BlankMatrix) -> BlankMatrix:
        if isinstance(stored, BlankMatrix):
            return stored
        return BlankMatrix(stored.shape, stored.row_bytes, type=int(stored.type))

    def each(self, tiles: Sequence[T]) -> Iterator[T]:
        """Yield the first tile, one tile between, and the last. The work of the middle tile counts for all tiles
        between.
        """
        if len(tiles) < 3:
            yield from tiles
            return
        yield tiles[0]
        before = replace(self.ops.work)
        yield tiles[1]
        after = self.ops.work
        self.ops.work = after.plus(after.plus(before, -1), len(tiles) - 3)
        yield tiles[-1]

    @staticmethod
    def most(found: Callable[[], T], bound: T) -> T:
        return bound
