"""A device that computes nothing and counts everything: arrays are shapes, memory is a sum, operations are costs.

The same layers and methods run on it as on a real one, so what they will hold and how long they will take is not
described a second time anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from featherback.engine import backend, kernels
from featherback.engine.backend.arena import aligned
from featherback.engine.formats.mapping import most_mapped
from featherback.engine.formats.matrix import Matrix as StoredMatrix
from featherback.engine.formats.types import TensorType

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Blank:
    """An array of which only shape and type are known."""

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
        """Bytes."""
        return self.size * self.dtype.itemsize

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Blank:
        keys = key if isinstance(key, tuple) else (key,)
        cut = tuple(len(range(n)[k]) for n, k in zip(self.shape, keys, strict=False))
        return Blank(cut + self.shape[len(cut) :], self.dtype)

    def reshape(self, *shape: int) -> Blank:
        """The same elements in another shape."""
        return Blank(shape, self.dtype)


@dataclass
class Entry:
    """One array of the ledger: its shape, type, and the moments of its birth and death."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    born: int
    dies: int = -1

    @property
    def nbytes(self) -> int:
        """Bytes that it occupies in the arena."""
        return aligned(self.shape, self.dtype)


class Ledger:
    """An arena without memory: every array taken from it is written down, with the moments of its birth and death."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.high_water = 0
        self._live: list[Entry] = []
        self._held = 0
        self._now = 0
        self._fullest = 0

    def take(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Blank:
        """An array is born; it dies with the frame that it was taken in."""
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
        """What is taken inside dies at the end."""
        depth = len(self._live)
        yield
        self._now += 1
        for entry in self._live[depth:]:
            entry.dies = self._now
            self._held -= entry.nbytes
        del self._live[depth:]

    def live_at_peak(self) -> list[Entry]:
        """The arrays alive when most bytes were."""
        return [e for e in self.entries if e.born <= self._fullest and (e.dies > self._fullest or e.dies < 0)]

    @property
    def peak_moment(self) -> int:
        """When most bytes were alive."""
        return self._fullest


@dataclass(frozen=True, slots=True)
class BlankMatrix:
    """A stored weight of which only shape and row size are known, or a rectangle of one."""

    shape: tuple[int, int]
    row_bytes: int
    name: str = ""
    """Of a matrix that lies in a file; "" in memory."""
    type: int = int(TensorType.F32)
    """A `TensorType`."""

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def cols(self) -> int:
        return self.shape[1]

    def slice(self, rows: tuple[int, int] | None = None, cols: tuple[int, int] | None = None) -> BlankMatrix:
        """The rectangle [rows) x [cols); whole rows are what a file has mapped."""
        height, width = (last - first for first, last in (rows or (0, self.shape[0]), cols or (0, self.shape[1])))
        return BlankMatrix((height, width), self.row_bytes, self.name, self.type)

    @property
    def nbytes(self) -> int:
        """Bytes of its rows."""
        return self.shape[0] * self.row_bytes


@dataclass
class Work:
    """What a pass computes."""

    products: float = 0.0  # floating-point operations of matrix products with stored weights
    lora: float = 0.0  # of an adapter's skinny products: lora_in, lora_gradient
    attention: float = 0.0
    moved: float = 0.0  # bytes read and written by operations that compute little
    calls: float = 0
    unpacked: float = 0.0  # stored weights that products unpack
    thread_scratch: int = 0  # most bytes of a thread's own buffers

    def plus(self, other: Work, times: float = 1) -> Work:
        """The sum of this and `times` the other."""
        return Work(
            self.products + times * other.products,
            self.lora + times * other.lora,
            self.attention + times * other.attention,
            self.moved + times * other.moved,
            self.calls + times * other.calls,
            self.unpacked + times * other.unpacked,
            max(self.thread_scratch, other.thread_scratch),
        )


@dataclass
class CountingOperations:
    """Operations that add to `work`."""

    compute: str
    work: Work = field(default_factory=Work)
    mapped: dict[str, int] = field(default_factory=dict)  # stored bytes in use, by matrix
    most_mapped: int = 0

    def release(self, matrix: BlankMatrix) -> None:
        """A stored weight, or rows of it, has been used."""
        self.mapped.pop(matrix.name, None)

    def _use(self, matrix: BlankMatrix | kernels.Matrix) -> None:
        self.work.unpacked += matrix.shape[0] * matrix.shape[1]
        if isinstance(matrix, BlankMatrix) and matrix.name:  # the decoder counts with its real weights
            self.mapped[matrix.name] = most_mapped(matrix.nbytes)
            self.most_mapped = max(self.most_mapped, sum(self.mapped.values()))

    @cached_property
    def _kind(self) -> dict[str, bool]:
        """Of the products, as their costs ask for it."""
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
        self._count("products", kernels.linear_cost(len(x), inputs, outputs, rank, type=w.type, **self._kind))

    def linear_backward(
        self, dy: Blank, w: BlankMatrix, dx: Blank, *, dh: Blank | None = None, accumulate: bool = False, **_: Any
    ) -> None:
        self._use(w)
        self.work.moved += 2 * dx.nbytes * accumulate
        rank = 0 if dh is None else dh.shape[1]
        outputs, inputs = w.shape
        self._count("products", kernels.linear_backward_cost(len(dy), inputs, outputs, rank, **self._kind))

    def lora_in(self, x: Blank, a: Blank, h: Blank, scale: float, **_: Any) -> None:
        self._count("lora", kernels.lora_in_cost(len(x), x.shape[1], len(a)))

    def lora_gradient(self, dh: Blank, x: Blank, da: Blank, scale: float = 1.0, **_: Any) -> None:
        self._count("lora", kernels.lora_gradient_cost(len(x), x.shape[1], len(da)))

    def attention(
        self, q: Blank, k: Blank, v: Blank, out: Blank, lse: Any, heads: int, kv_heads: int,
        cu_q: Any, cu_k: Any, *, window: int, softcap: float, prefix: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        head_dim, follows = q.shape[1] // heads, lse is not None
        self._count(
            "attention", kernels.attention_cost(cu_q, cu_k, heads, kv_heads, head_dim, window, softcap, follows, prefix)
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

    def to_host(self, x: Blank) -> NDArray[np.float64]:
        return np.zeros(x.shape)

    def total(self, x: Blank) -> float:
        return 0.0

    def sum_squares(self, x: Blank) -> float:
        self.work.moved += x.nbytes
        return 0.0

    def smallest(self, x: Blank, count: int) -> float:
        """Once in many steps: not counted."""
        return 0.0

    def rotary_table(self, frequencies: Any, positions: Any, cos: Blank, sin: Blank) -> None:
        """Its calls do not count: where a sequence's length decides on its rotation, their number depends on how chunks
        cut sequences, and each takes a few microseconds."""
        self.work.moved += cos.nbytes + sin.nbytes

    def negatives(self, x: Blank) -> tuple[float, int]:
        self.work.moved += x.nbytes
        return 0.0, 0

    def dot(self, x: Blank, y: Blank) -> float:
        self.work.moved += x.nbytes + y.nbytes
        return 0.0

    def _elementwise(self, *arrays: Any) -> None:
        """NumPy's own loops, over pieces that the caches hold: no thread is woken."""
        self.work.moved += sum(a.nbytes for a in arrays if isinstance(a, Blank))

    add = subtract = multiply = divide = sqrt = sign = clip = matmul = replace_negatives = _elementwise
    row_means = column_sums = row_squares = column_squares = _elementwise

    def encode(self, x: Blank, codes: Blank) -> None:
        """It computes more than it moves: as long as five passes."""
        self.work.moved += 5 * (x.nbytes + codes.nbytes)
        self.work.calls += 1

    def decode(self, codes: Blank, out: Blank) -> None:
        """As long as two."""
        self.work.moved += 2 * (codes.nbytes + out.nbytes)
        self.work.calls += 1

    def dense(self, matrix: Blank) -> BlankMatrix:
        height, width = matrix.shape
        return BlankMatrix((height, width), width * matrix.dtype.itemsize)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Any other operation: a pass over its arrays."""
        if name.startswith("_"):
            raise AttributeError(name)

        def pass_over(*arguments: Any, **options: Any) -> None:
            arrays = [a for a in (*arguments, *options.values()) if isinstance(a, Blank)]
            self.work.moved += sum(a.nbytes for a in arrays)
            self.work.calls += 1

        return pass_over


class Counting:
    """The device's types and the CPU's costs, without arithmetic."""

    def __init__(self, compute: str) -> None:
        self.ops = CountingOperations(compute)
        counted = backend.of(compute)
        self.operand, self.dense_type = counted.operand, counted.dense_type

    @staticmethod
    def host(x: Blank, *, write: bool = False) -> AbstractContextManager[Any]:
        return nullcontext(x)

    @staticmethod
    def held(values: Any, *, changing: bool = False) -> AbstractContextManager[Any]:
        return nullcontext(values)

    @staticmethod
    def vector(values: Any) -> Any:
        return values

    def gather_rows(self, stored: Any, ids: Any, out: Blank) -> None:
        """There is nothing to gather."""

    def release(self, matrix: BlankMatrix, around: int) -> None:
        """Nothing is mapped."""

    @staticmethod
    def arena(nbytes: int) -> Ledger:
        """A ledger, however large."""
        return Ledger()

    @staticmethod
    def matrix(stored: StoredMatrix | BlankMatrix) -> BlankMatrix:
        if isinstance(stored, BlankMatrix):
            return stored
        return BlankMatrix(stored.shape, stored.row_bytes, type=int(stored.type))

    def each(self, tiles: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """The first and the last, and one of those between, which are alike: its work counts for all of them."""
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
