"""Read and write token files: a data set as token ids and a mask, memory-mapped by the training process.

Layout, little-endian, every section starting at a multiple of 64 bytes:

    header      64 bytes: magic, version, n_sequences, n_tokens, n_targets, max_length, metadata bytes, and the
                CRC-32 of everything after the header, then of the header before it
    tokens      int32 (n_tokens,)
    supervised  uint8 (n_tokens,)         1: the loss is taken on predicting this token
    offsets     int64 (n_sequences + 1,)  sequence i is tokens[offsets[i]:offsets[i + 1]]
    metadata    JSON: additional facts from the writer (sequence length, preparation report)

If the metadata have a "form", a sequence is an example with several answers, and `supervised` holds the marks of
`data.pairs`. "longest" is then the most tokens of a prompt with an answer.

A selection of sequences, whole or cut, is a separate file (version 3) that refers to the tokens of another file instead
of copying them. It has the same header, followed by

    spans       int64 (n_sequences, 2)    sequence i is tokens[spans[i, 0]:spans[i, 1]] of the other file
    metadata    JSON: as above, with "of": name of the other file in the same folder, and "checksum": its checksum
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from featherback.core import private
from featherback.core.files import atomic_file, link_file, open_regular
from featherback.core.system import folders
from featherback.data.batch import IGNORE, Batch, FileSequences
from featherback.data.source import PLAIN
from featherback.engine.formats.mapping import MappedFile, check_maps
from featherback.errors import FeatherbackError

MAGIC = b"FBTOKENS"
VERSION, CHOSEN = 2, 3
_OWN = ("of", "checksum")  # metadata of a version 3 file that does not come from its writer
_HEADER = struct.Struct("<8sI4xQQQQQI4x")  # 64 bytes
_COUNTED = 56  # bytes of the header before the checksum
_ALIGN = 64
_WINDOW = 1 << 16  # sequences whose lengths are read together
_BUFFER = 1 << 16  # bytes of write buffer per section
_PIECE = 1 << 18  # bytes read at once when the whole file is checked


def _align(n: int) -> int:
    return -(-n // _ALIGN) * _ALIGN


class TokenFileWriter:
    """Write sequences one by one, without keeping them in memory. The finished file is renamed into place.

    with TokenFileWriter(path) as writer:
        writer.add(tokens, supervised)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.metadata: dict[str, Any] = {}
        self.n_sequences = self.n_tokens = self.n_targets = self.max_length = 0
        self._checksum = 0  # of the tokens so far
        self._temporary: list[str] = []
        self._files: list[IO[bytes]] = []
        self._open = contextlib.ExitStack()
        try:
            self._folder = self._open.enter_context(folders.Folder(self.path.parent))
            for section in ("tokens", "supervised", "offsets"):
                temporary = private.temporary_name(self.path.name, section)
                self._files.append(private.create(self._folder, temporary, _BUFFER))
                self._temporary.append(temporary)
        except OSError as error:
            self._discard()
            raise _unwritable(self.path, error) from error
        self._files[0].write(bytes(_HEADER.size))
        self._files[2].write(np.int64(0).tobytes())

    def add(self, tokens: npt.ArrayLike, supervised: npt.ArrayLike) -> None:
        """Append a sequence: `tokens` int (n,), `supervised` bool or 0/1 (n,)."""
        ids = np.asarray(tokens, dtype="<i4")
        mask = np.asarray(supervised, dtype=bool)
        if ids.ndim != 1 or ids.size == 0 or ids.shape != mask.shape:
            raise ValueError(
                f"tokens {ids.shape} and supervised {mask.shape} must have the same one-dimensional, non-empty shape"
            )
        self._write(ids, mask, np.array([ids.size]))

    def add_text(self, tokens: npt.NDArray[Any], size: int) -> None:
        """Append supervised tokens as sequences of `size` tokens. The last sequence may be shorter."""
        ends = np.minimum(np.arange(size, tokens.size + size, size), tokens.size)
        self._write(tokens.astype("<i4"), np.ones(tokens.size, np.bool_), ends)

    def add_marked(self, tokens: npt.NDArray[Any], marks: npt.NDArray[np.uint8], n_targets: int) -> None:
        """Append an example of several answers. `marks` (n,) are those of `data.pairs`."""
        before = self.n_targets
        self._write(tokens.astype("<i4"), marks, np.array([tokens.size]))
        self.n_targets = before + n_targets

    def _write(self, ids: npt.NDArray[Any], mask: npt.NDArray[Any], ends: npt.NDArray[np.int64]) -> None:
        """Append sequences; `ends` are the indices in `ids` at which they end."""
        starts = np.concatenate([[0], ends[:-1]])
        self.n_sequences += ends.size
        # nothing predicts a sequence's first token
        self.n_targets += int(np.count_nonzero(mask)) - int(np.count_nonzero(mask[starts]))
        self.max_length = max(self.max_length, int((ends - starts).max()))
        offsets = (ends + self.n_tokens).astype("<i8")
        self.n_tokens += ids.size
        try:
            content = ids.tobytes()
            self._checksum = zlib.crc32(content, self._checksum)
            self._files[0].write(content)
            self._files[1].write(mask.tobytes())
            self._files[2].write(offsets.tobytes())
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def close(self) -> None:
        """Join the sections and move the file into place."""
        try:
            self._join()
            self._files[0].close()  # Windows renames no open file
            self._folder.replace(self.path.name, self._temporary[0])
            self._folder.sync()
        except OSError as error:
            raise _unwritable(self.path, error) from error
        finally:
            self._discard()

    def _join(self) -> None:
        main = self._files[0]
        for section in self._files[1:]:
            self._append(bytes(-main.tell() % _ALIGN))
            section.seek(0)
            while piece := section.read(_PIECE):
                self._append(piece)
        self._append(bytes(-main.tell() % _ALIGN))
        metadata = json.dumps(self.metadata).encode()
        self._append(metadata)
        counts = (self.n_sequences, self.n_tokens, self.n_targets, self.max_length, len(metadata))
        main.seek(0)
        main.write(_header(VERSION, counts, self._checksum))
        main.flush()
        os.fsync(main.fileno())

    def _append(self, content: bytes) -> None:
        self._checksum = zlib.crc32(content, self._checksum)
        self._files[0].write(content)

    def _discard(self) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):  # a full disk, which an earlier write has reported
                file.close()
        for name in self._temporary:
            with contextlib.suppress(FileNotFoundError):  # it was renamed
                self._folder.unlink(name)
        self._temporary.clear()
        self._open.close()

    def __enter__(self) -> TokenFileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._discard()


class TokenFile:
    """A memory-mapped token file. Opening it reads only the header, and `seq` returns views.

    `chosen`: whether it may be a selection of another file (version 3).
    """

    def __init__(self, path: str | os.PathLike[str], chosen: bool = True) -> None:
        self.path = Path(path)
        self._file = MappedFile(self.path, large=False)
        self._map, self._size = self._file.buffer, self._file.size
        head = self._map[: _HEADER.size]
        if len(head) < _HEADER.size or head[: len(MAGIC)] != MAGIC:
            raise FeatherbackError(f"{self.path} is not a token file.")
        _, version, *counts = _HEADER.unpack(head)
        if version != VERSION and not (chosen and version == CHOSEN):
            raise FeatherbackError(
                f"{self.path} is a token file of version {version}; this release reads version {VERSION}."
            )
        self._head = head[:_COUNTED]
        self.n_sequences, self.n_tokens, self.n_targets, self.max_length, self._metadata_bytes, self.checksum = (
            int(c) for c in counts
        )
        self.whole: TokenFile | None = None
        """The file that holds the tokens of a selection; None if this file holds them."""
        self.metadata: Mapping[str, Any]
        if version == CHOSEN:
            self._open_chosen()
            return
        mask_at = _align(_HEADER.size + 4 * self.n_tokens)
        offsets_at = _align(mask_at + self.n_tokens)
        self.metadata = self._read_metadata(_align(offsets_at + 8 * (self.n_sequences + 1)))
        self.tokens = np.frombuffer(self._map, "<i4", self.n_tokens, _HEADER.size)  # (n_tokens,)
        self.supervised = np.frombuffer(self._map, np.uint8, self.n_tokens, mask_at)  # (n_tokens,)
        offsets = np.frombuffer(self._map, "<i8", self.n_sequences + 1, offsets_at)
        self.starts, self.ends = offsets[:-1], offsets[1:]  # (n_sequences,), indices into `tokens`

    def _open_chosen(self) -> None:
        metadata = self._read_metadata(_HEADER.size + 16 * self.n_sequences)
        of, checksum = (metadata.pop(name, None) for name in _OWN)
        if not isinstance(of, str) or os.path.basename(of) != of or of in ("", ".", ".."):
            raise self._damaged("the file that its metadata names is not in the same folder")
        self.metadata, self.whole = metadata, TokenFile(self.path.with_name(of), chosen=False)
        if self.whole.checksum != checksum:
            raise self._damaged(f"it was made from another version of {self.whole.path}")
        self.tokens, self.supervised = self.whole.tokens, self.whole.supervised
        spans = np.frombuffer(self._map, "<i8", 2 * self.n_sequences, _HEADER.size).reshape(-1, 2)
        self.starts, self.ends = spans[:, 0], spans[:, 1]

    def _read_metadata(self, at: int) -> dict[str, Any]:
        if self._size != at + self._metadata_bytes:
            raise self._damaged(f"its {self._size} bytes do not match its header")
        try:
            return dict(json.loads(self._map[at : self._size]))
        except (ValueError, TypeError, RecursionError):
            raise self._damaged("its metadata is not a JSON object") from None

    def __len__(self) -> int:
        return self.n_sequences

    @property
    def form(self) -> str:
        """The form of its examples, as `Source.form`."""
        return str((self.whole or self).metadata.get("form", PLAIN))

    @property
    def longest(self) -> int:
        """The most tokens of a sequence, or of a prompt with an answer if an example has several."""
        return int((self.whole or self).metadata.get("longest", self.max_length))

    @property
    def mean_length(self) -> float:
        """The mean number of tokens of a sequence."""
        return self.n_tokens / max(1, self.n_sequences)

    def check(self, vocab_size: int) -> None:
        """Read the whole file once, and the file that it refers to, in pieces.

        Raises FeatherbackError if the checksum does not match, if a token id is not below `vocab_size`, or if no token
        is supervised.
        """
        if self.whole is not None:
            self.whole.check(vocab_size)
        checksum, at = 0, _HEADER.size
        least, most = 0, -1
        tokens_end = _HEADER.size + (4 * self.n_tokens if self.whole is None else 0)
        try:
            with open_regular(self.path) as file:
                file.seek(at)
                while piece := file.read(_PIECE):
                    checksum = zlib.crc32(piece, checksum)
                    count = min(len(piece), tokens_end - at) // 4
                    if count > 0:
                        ids = np.frombuffer(piece, "<i4", count)
                        least, most = min(least, int(ids.min())), max(most, int(ids.max()))
                    at += len(piece)
        except OSError as error:
            raise FeatherbackError(f"Cannot read the token file {self.path}: {error.strerror}.") from error
        if zlib.crc32(self._head, checksum) != self.checksum:
            raise self._damaged("its checksum does not match its content")
        if least < 0 or most >= vocab_size:
            raise FeatherbackError(
                f"{self.path} holds the token id {least if least < 0 else most}; the model's token ids are 0 to "
                f"{vocab_size - 1}. It was probably prepared with another model; prepare the data again with this one."
            )
        if not self.n_targets:
            raise FeatherbackError(f"{self.path} has no supervised tokens: there is nothing to train on or measure.")

    def _damaged(self, how: str) -> FeatherbackError:
        return FeatherbackError(f"The token file {self.path} is damaged: {how}.")

    def seq(self, i: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Return sequence i: tokens int32 (n,) and supervised bool (n,), as read-only views of the file."""
        if not 0 <= i < self.n_sequences:
            raise IndexError(f"sequence {i} of {self.n_sequences}")
        start, end = int(self.starts[i]), int(self.ends[i])
        self._file.check_pages()
        if not 0 <= start < end <= self.tokens.size:
            raise self._damaged(f"sequence {i} extends beyond its tokens")
        return self.tokens[start:end], self._supervised(self.supervised[start:end])

    def _supervised(self, marks: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        return marks.view(np.bool_) if self.form == PLAIN else (marks & 1).view(np.bool_)

    def marks(self, i: int) -> npt.NDArray[np.uint8]:
        """Return the marks of example i (n,), as a view of the file."""
        return self.supervised[int(self.starts[i]) : int(self.ends[i])]

    def n_terms(self, i: int) -> int:
        """Return what sequence i adds to `Batch.n_terms`. Its first token is never predicted."""
        return int(self.seq(i)[1][1:].sum())

    def batch(self, indices: npt.NDArray[np.int64]) -> Batch:
        """Return the given sequences as one batch."""
        sequences, labels = [], []
        for i in indices:
            tokens, supervised = self.seq(int(i))
            sequences.append(tokens)
            labels.append(np.where(supervised, tokens, np.int32(IGNORE)))
        check_maps(self.maps())
        return replace(Batch.from_sequences(sequences, labels), source=self._places(indices))

    def _places(self, indices: npt.NDArray[np.int64]) -> FileSequences:
        return FileSequences(self.checksum, indices)

    def lengths(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each given sequence."""
        return np.asarray(self.ends[indices] - self.starts[indices])

    def all_lengths(self) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Yield (index of the first sequence, lengths) for one window of sequences after another."""
        for start in range(0, self.n_sequences, _WINDOW):
            yield start, self.ends[start : start + _WINDOW] - self.starts[start : start + _WINDOW]
        check_maps(self.maps())

    def maps(self) -> list[MappedFile]:
        """Return the mapped files: this one, and the one that holds the tokens of a selection."""
        return [self._file, *([] if self.whole is None else self.whole.maps())]

    def drop_pages(self) -> None:
        """Release the file's resident pages. They are read from disk again when needed."""
        self._file.drop_pages(self._size)
        if self.whole is not None:
            self.whole.drop_pages()


class SelectionWriter:
    """Writes the selection made by `choosing`, without keeping it in memory. The caller sets `n_targets`."""

    def __init__(self, out: IO[bytes]) -> None:
        self.metadata: dict[str, Any] = {}
        self.n_sequences = self.n_tokens = self.n_targets = self.max_length = 0
        self._out, self._checksum = out, 0
        out.write(bytes(_HEADER.size))

    def add(self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
        """Add sequences to the selection: the indices of their first tokens, and of the tokens after their last."""
        if starts.size:
            self.n_sequences += starts.size
            self.n_tokens += int((ends - starts).sum())
            self.max_length = max(self.max_length, int((ends - starts).max()))
            self._write(np.stack([starts, ends], axis=1).astype("<i8").tobytes())

    def _write(self, content: bytes) -> None:
        self._checksum = zlib.crc32(content, self._checksum)
        self._out.write(content)

    def finish(self) -> None:
        """Write the metadata and the header."""
        metadata = json.dumps(self.metadata).encode()
        self._write(metadata)
        counts = (self.n_sequences, self.n_tokens, self.n_targets, self.max_length, len(metadata))
        self._out.seek(0)
        self._out.write(_header(CHOSEN, counts, self._checksum))


@contextmanager
def selecting(file: TokenFile, path: Path) -> Iterator[SelectionWriter]:
    """Select sequences of `file`, whole or cut, into a new token file `path` in the same folder that refers to it.

    The new file appears when the context ends without an error.
    """
    whole = file.whole or file
    with atomic_file(path) as out:
        writer = SelectionWriter(out)
        yield writer
        writer.metadata.update({"of": whole.path.name, "checksum": whole.checksum})
        writer.finish()


def as_whole_file(file: TokenFile) -> TokenFile:
    """Link a token file as NAME.whole.tokens, so that a selection of it can take the name NAME.tokens."""
    if file.whole is not None:
        return file
    link_file(file.path, whole := file.path.with_name(f"{file.path.stem}.whole{file.path.suffix}"))
    return TokenFile(whole)


def _header(version: int, counts: tuple[int, ...], checksum: int) -> bytes:
    """Pack the header. `checksum` covers everything after the header."""
    header = _HEADER.pack(MAGIC, version, *counts, 0)
    return _HEADER.pack(MAGIC, version, *counts, zlib.crc32(header[:_COUNTED], checksum))


def _unwritable(path: Path, error: OSError) -> FeatherbackError:
    return FeatherbackError(f"Cannot write the token file {path}: {error.strerror}.")
