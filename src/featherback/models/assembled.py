"""Folders whose weights are rearranged or quantised: tensors made of rows of others, and matrices of a smaller type."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from math import prod

from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.store import matrix
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.engine.formats.writer import OutTensor
from featherback.errors import FeatherbackError
from featherback.models.converted import NONE, QUANTIZE
from featherback.models.source import Made, Piece, RowSource
from featherback.models.streams import floats_of, picked, quantized_rows

FLOATS = (TensorType.F32, TensorType.F16, TensorType.BF16)


class Assembled:
    """The tensors of `source`, those of `made` in place of what they are made of.

    `shapes`: of all tensors that the model needs. `exact`: tensors that must be floats: they are not quantised, and
    dequantised if they are. `quantize`: other matrices of floats become this type, if their rows fill whole blocks.

    Raises FeatherbackError if a tensor of `made` cannot be made.
    """

    def __init__(
        self,
        source: RowSource,
        shapes: Mapping[str, tuple[int, ...]],
        made: Made,
        exact: Collection[str] = (),
        quantize: str = NONE,
    ) -> None:
        self.path, self.store = source.path, source.store
        self.label = source.label if quantize == NONE else quantize
        self._source, self._made, self._exact = source, made, exact
        self._quantized = QUANTIZE.get(quantize)
        used = {piece.name for pieces in made.values() for piece in pieces}
        found = {name: info for name, info in source.tensors.items() if name not in used}
        offset = 0
        for name, pieces in made.items():
            kind = self._check(name, shapes[name], pieces)
            nbytes = prod(shapes[name][:-1]) * kind.row_bytes(shapes[name][-1])
            found[name] = TensorInfo(name, kind, shapes[name], offset, nbytes)
            offset += nbytes
        self.tensors: Mapping[str, TensorInfo] = found

    def output(self, name: str) -> OutTensor:
        """The tensor as the cache's file will store it."""
        info = self.tensors[name]
        kind = self._kind(name, info.shape)
        return OutTensor(name, kind, info.shape, partial(self._chunks, name, kind))

    def close(self) -> None:
        """Close the files."""
        self._source.close()

    def _pieces(self, name: str) -> tuple[Piece, ...]:
        return self._made.get(name, (Piece(name),))

    def _kind(self, name: str, shape: tuple[int, ...]) -> TensorType:
        own = self._source.kind(self._pieces(name)[0].name)
        if name in self._exact:
            return own if own in FLOATS else TensorType.F32
        wanted = self._quantized
        if wanted is None or own not in FLOATS or len(shape) < 2 or shape[-1] % wanted.block_size:
            return own
        return wanted

    def _chunks(self, name: str, kind: TensorType) -> Iterator[memoryview]:
        """Yield the bytes of a tensor."""
        for piece in self._pieces(name):
            for rows in self._rows(piece):
                if rows.type is kind:
                    yield rows.data.data
                elif name in self._exact:
                    yield floats_of(rows).reshape(-1).view("u1").data
                else:
                    yield quantized_rows(rows, kind, name)

    def _rows(self, piece: Piece) -> Iterator[Matrix]:
        info = self._source.tensors[piece.name]
        if piece.columns:
            whole = matrix(self.store, piece.name)
            column = Matrix(whole.data, whole.type, whole.rows * whole.cols, 1, whole.file, whole.offset)
            return picked(column, range(column.rows)[piece.rows])
        return self._source.rows(piece.name, range(prod(info.shape[:-1]))[piece.rows])

    def _check(self, name: str, shape: tuple[int, ...], pieces: tuple[Piece, ...]) -> TensorType:
        """Return the type of the pieces of a tensor. Raises FeatherbackError if they are not what it needs."""
        kinds, values = set(), 0
        for piece in pieces:
            info = self._source.tensors.get(piece.name)
            if info is None:
                raise FeatherbackError(
                    f"{self.path} has no tensor {piece.name}, which its configuration needs; the folder is incomplete. "
                    f"Download it again."
                )
            width = 1 if piece.columns else info.shape[-1]
            rows = range(prod(info.shape) // max(1, width))[piece.rows]
            if (not piece.columns and width != shape[-1]) or len(rows) * width > prod(shape):
                raise FeatherbackError(
                    f"Tensor {piece.name} of {self.path} has shape {info.shape}; a part of {name} {shape} cannot have "
                    f"that shape."
                )
            kinds.add(info.type)
            values += len(rows) * width
        if values != prod(shape) or len(kinds) > 1:
            said = "types" if len(kinds) > 1 else "sizes"
            ends = (f"{piece.name} {self._source.tensors[piece.name].shape}" for piece in (pieces[0], pieces[-1]))
            raise FeatherbackError(
                f"The tensors of {self.path} from {' to '.join(dict.fromkeys(ends))} have {said} that do not fit "
                f"{name} {shape}, which consists of their rows."
            )
        return kinds.pop()
