"""The keys and values of one sequence in one layer, stored in segments: in memory, or in a file.

A decoder appends rows and attends to all rows so far. Attention visits the segments in order and carries the state of
its softmax from one piece to the next, so that a cache of any length passes through two pieces of memory. The kernel
forms all sums segment by segment, so results have the same bits wherever the cache is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from featherback.core.naming import argument_is
from featherback.engine import kernels
from featherback.engine.backend.protocol import Array, Backend
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError, expected
from featherback.nn.attention import ProductArrays, Scores
from featherback.nn.branch import KeyHeads
from featherback.nn.context import Context
from featherback.nn.span import Span, pieces

SEGMENT = kernels.SEGMENT
"""Tokens of a segment."""
PIECE = 1 << 20
"""Bytes that are read from a file at once, at least a segment."""
BYTE = np.dtype(np.uint8)
EXACT = "f32"
KINDS = {EXACT: TensorType.F32, "q8_0": TensorType.Q8_0, "q4_0": TensorType.Q4_0}
"""Name of a type of keys and values -> its number format."""


@dataclass(frozen=True)
class KeyForm:
    """How the keys and values of a layer are stored: `heads` heads of `size` numbers of `type` for each token."""

    heads: int
    size: int
    type: TensorType

    @classmethod
    def of(cls, heads: KeyHeads, kind: str) -> KeyForm:
        """Return the form of a kind. Raises FeatherbackError if there is no such kind, or heads do not fill blocks."""
        if kind not in KINDS:
            raise FeatherbackError(f"{argument_is('kv', kind)}; {expected(kind, KINDS)}")
        block = KINDS[kind].block_size
        if heads.size % block:
            raise FeatherbackError(
                f"{argument_is('kv', kind)}, but it stores blocks of {block} numbers, and this model's heads have "
                f"{heads.size}. Use {EXACT}."
            )
        return cls(*heads, KINDS[kind])

    @property
    def rotation(self) -> int:
        """Size of the Hadamard matrices that turn q, k and v before k and v are quantised; 0: none.

        They spread large numbers over a head, so that blocks lose less. The largest power of two that divides a head.
        """
        return 0 if self.type is TensorType.F32 else self.size & -self.size

    @property
    def segment_bytes(self) -> int:
        """Bytes of a segment: keys and values of SEGMENT tokens."""
        return self.heads * 2 * SEGMENT * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of a token's key in one head, or of its value."""
        return self.type.row_bytes(self.size)

    @property
    def piece(self) -> int:
        """Tokens of a piece, in whole segments."""
        return max(1, PIECE // self.segment_bytes) * SEGMENT

    def new_rows(self, ctx: Context) -> tuple[Array, Array]:
        """Allocate k and v (T, K), float32, of the tokens of a pass in the current frame."""
        width = self.heads * self.size
        return ctx.floats("k", ctx.tokens, width), ctx.floats("v", ctx.tokens, width)

    def nbytes(self, tokens: int) -> int:
        """Return the bytes of the segments that hold so many tokens."""
        return -(-tokens // SEGMENT) * self.segment_bytes


class Piece(NamedTuple):
    """A part of a cache in memory: bytes (n,) of the segments of keys [first, last)."""

    data: Array
    first: int
    last: int


def most_touched(tokens: int) -> int:
    """Return the most tokens in the segments that so many tokens in a row touch, wherever they begin."""
    return tokens + SEGMENT - 1


class LayerKeys(ABC):
    """The keys and values of one sequence in one layer. How many of its rows are valid, its user knows.

    To forget the last tokens, append others in their place.
    """

    def __init__(self, form: KeyForm) -> None:
        self.form = form

    def attend(
        self, ctx: Context, past: int, q: Array, k: Array, v: Array, out: Array, scores: Scores
    ) -> None:  # fmt: skip
        """Append k, v (T, K) behind the first `past` tokens; out (T, Q), an operand = attention of q (T, Q) to all.

        q, k and v are float32. They are overwritten.
        """
        form, stop = self.form, past + len(q)
        if form.rotation:
            for x in (q, k, v):
                ctx.ops.hadamard(x, form.rotation)
        self.append(ctx, k, v, past)
        visible = max(0, past + 1 - scores.window) if scores.window else 0
        with ctx.frame():
            result = ctx.floats("rotated output", *q.shape) if form.rotation else out
            self._visit(ctx, q, result, visible // SEGMENT * SEGMENT, stop, scores)
            if form.rotation:
                ctx.ops.hadamard(result, form.rotation)
                ctx.ops.cast(result, out)

    @abstractmethod
    def append(self, ctx: Context, k: Array, v: Array, start: int) -> None:
        """Store k, v (T, K), float32, as the rows of tokens [start, start + T)."""

    @abstractmethod
    def pieces(self, ctx: Context, first: int, stop: int, most: int) -> Iterator[Piece]:
        """Yield the keys [first, stop) in order, piece by piece. `first` is the start of a segment.

        `most`: how many they are at most. The scratch memory depends on this number only.
        """

    @abstractmethod
    def count(self, first: int, stop: int) -> int:
        """Return the number of pieces of [first, stop)."""

    @abstractmethod
    def stored(self, backend: Backend, first: int, stop: int, room: Array) -> Iterator[NDArray[np.uint8]]:
        """Yield the stored bytes [first, stop) in order, each part valid until the next. `room` (n,): memory to use."""

    @abstractmethod
    def store(self, backend: Backend, offset: int, values: NDArray[np.uint8]) -> None:
        """Replace the stored bytes from `offset` on."""

    def _visit(self, ctx: Context, q: Array, out: Array, first: int, stop: int, scores: Scores) -> None:
        most = min(stop, most_touched(len(q) + scores.window - 1)) if scores.window else stop - first
        state = None
        if self.count(0, most) > 1:
            state = ctx.floats("softmax so far", len(q), scores.heads * (self.form.size + 2))
        if self.count(first, stop) == 1:
            state = None
        for piece in self.pieces(ctx, first, stop, most):
            ctx.ops.cached_attention(
                q, piece.data, int(self.form.type), out, scores.heads, scores.kv_heads, stop, scale=scores.scale,
                window=scores.window, softcap=scores.softcap, sinks=scores.sinks, first=piece.first, last=piece.last,
                state=state, begins=piece.first == first, ends=piece.last == stop,
            )  # fmt: skip


class KeysInMemory(LayerKeys):
    """Keys and values in memory: bytes (n,) for `form.nbytes(capacity)`."""

    def __init__(self, form: KeyForm, data: Array) -> None:
        super().__init__(form)
        self.data = data

    def append(self, ctx: Context, k: Array, v: Array, start: int) -> None:
        ctx.ops.cache_rows(k, v, start, self.data, int(self.form.type), self.form.heads)

    def pieces(self, ctx: Context, first: int, stop: int, most: int) -> Iterator[Piece]:
        yield Piece(self.data[self.form.nbytes(first) :], first, stop)

    def count(self, first: int, stop: int) -> int:
        return 1

    def stored(self, backend: Backend, first: int, stop: int, room: Array) -> Iterator[NDArray[np.uint8]]:
        with backend.host(self.data[first:stop]) as values:
            yield values

    def store(self, backend: Backend, offset: int, values: NDArray[np.uint8]) -> None:
        with backend.host(self.data[offset : offset + len(values)], write=True) as out:
            np.copyto(out, values)


class Handle(Protocol):
    """A read that was started."""

    def result(self) -> None:
        """Wait for it, and raise its error."""


class File(Protocol):
    """The part of `PieceFile` that is used here."""

    def write(self, values: NDArray[Any], offset: int) -> None: ...
    def read(self, out: NDArray[Any], offset: int) -> None: ...
    def start(self, read: Any) -> Handle: ...


class KeysInFile(LayerKeys):
    """Keys and values in a file, from byte `offset` on. Two pieces are in memory at a time."""

    def __init__(self, form: KeyForm, file: File, offset: int) -> None:
        super().__init__(form)
        self._file, self._offset = file, offset

    def append(self, ctx: Context, k: Array, v: Array, start: int) -> None:
        form, stop = self.form, start + len(k)
        first = start // SEGMENT * SEGMENT
        with ctx.frame():
            room = ctx.scratch.take("new segments", (form.nbytes(most_touched(len(k))),), BYTE)
            data = room[: form.nbytes(stop) - form.nbytes(first)]
            ctx.ops.cache_rows(k, v, start, data, int(form.type), form.heads, first)
            with ctx.backend.host(data) as values:
                for at, upto in pieces(stop, SEGMENT, first):
                    self._write(values, first, max(at, start), upto)

    def _write(self, values: NDArray[np.uint8], base: int, start: int, stop: int) -> None:
        """Write tokens [start, stop) of one segment. `values` begins with token `base`."""
        form, segment = self.form, start // SEGMENT * SEGMENT
        at, size = form.nbytes(segment - base), form.segment_bytes
        if stop - start == SEGMENT:
            self._file.write(values[at : at + size], self._offset + form.nbytes(segment))
            return
        for block in range(2 * form.heads):  # the segment's other rows are in the file already, or come later
            first = (block * SEGMENT + start - segment) * form.row_bytes
            part = values[at + first : at + first + (stop - start) * form.row_bytes]
            self._file.write(part, self._offset + form.nbytes(segment) + first)

    def count(self, first: int, stop: int) -> int:
        return len(self._parts(first, stop))

    def stored(self, backend: Backend, first: int, stop: int, room: Array) -> Iterator[NDArray[np.uint8]]:
        with backend.host(room, write=True) as values:
            for at, upto in pieces(stop, len(room), first):
                self._file.read(values[: upto - at], self._offset + at)
                yield values[: upto - at]

    def store(self, backend: Backend, offset: int, values: NDArray[np.uint8]) -> None:
        self._file.write(values, self._offset + offset)

    def pieces(self, ctx: Context, first: int, stop: int, most: int) -> Iterator[Piece]:
        form, parts = self.form, list(ctx.each(self._parts(first, stop)))
        size = min(form.nbytes(form.piece), form.nbytes(most))
        rooms = [ctx.scratch.take("piece of the cache", (size,), BYTE) for _ in self._parts(0, most)[:2]]
        waiting: list[Handle] = []
        try:
            for index, (start, end) in enumerate(parts):
                if not waiting:
                    waiting.append(self._start(ctx, rooms[0], start, end))
                if index + 1 < len(parts):
                    waiting.append(self._start(ctx, rooms[(index + 1) % 2], *parts[index + 1]))
                waiting.pop(0).result()
                yield Piece(rooms[index % 2], start, end)
        finally:
            for handle in waiting:  # it writes to memory that is freed next
                handle.result()

    def _parts(self, first: int, stop: int) -> list[tuple[int, int]]:
        return pieces(stop, self.form.piece, first)

    def _start(self, ctx: Context, room: Array, start: int, stop: int) -> Handle:
        form = self.form

        def read() -> None:
            with ctx.backend.host(room[: form.nbytes(stop - start)], write=True) as values:
                self._file.read(values, self._offset + form.nbytes(start))

        return self._file.start(read)


class JoinedRows:
    """The carry of attention in a span of several sequences: their stored keys and values, and arrays for the span's.

    `parts`: the context of each sequence's own span, and its keys, in order. k, v (T, K), float32, belong to the
    caller's frame.
    """

    def __init__(self, parts: Sequence[tuple[Context, LayerKeys]], k: Array, v: Array) -> None:
        self._parts, self._k, self._v = parts, k, v

    def places(self, span: Span) -> ProductArrays:
        """See `AttentionCarry`."""
        return {"k": (self._k, self._k), "v": (self._v, self._v)}

    def attend(
        self, ctx: Context, q: Array, out: Array, lse: Array | None, probabilities: Array | None, scores: Scores
    ) -> None:
        """See `AttentionCarry`. Each sequence sees only its own keys. q is overwritten."""
        first = 0
        for own, keys in self._parts:
            rows = slice(first, first := first + own.tokens)
            keys.attend(own, own.span.start, q[rows], self._k[rows], self._v[rows], out[rows], scores)


class OwnRows:
    """The carry of attention in a decoder: a sequence's stored keys and values, and arrays for those of its next span.

    k, v (T, K), float32, belong to the caller's frame.
    """

    def __init__(self, keys: LayerKeys, k: Array, v: Array) -> None:
        self._keys, self._k, self._v = keys, k, v

    def places(self, span: Span) -> ProductArrays:
        """See `AttentionCarry`."""
        return {"k": (self._k, self._k), "v": (self._v, self._v)}

    def attend(
        self, ctx: Context, q: Array, out: Array, lse: Array | None, probabilities: Array | None, scores: Scores
    ) -> None:
        """See `AttentionCarry`. q is overwritten."""
        self._keys.attend(ctx, ctx.span.start, q, self._k, self._v, out, scores)
