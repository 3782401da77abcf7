"""The token file: a data set as token ids and a mask, memory-mapped by the training process.

Layout, little-endian, every section starting at a multiple of 64 bytes:

    header      64 bytes: magic, version, n_sequences, n_tokens, n_targets, max_length, metadata bytes, and the
                CRC-32 of everything after the header, then of the header before it
    tokens      int32 (n_tokens,)
    supervised  uint8 (n_tokens,)         1: the loss is taken on predicting this token
    offsets     int64 (n_sequences + 1,)  sequence i is tokens[offsets[i]:offsets[i + 1]]
    metadata    JSON: what the writer wants to travel along (sequence length, preparation report)

Sequences that were chosen from a token file, or cut, are a file of their own (version 3) that refers to its tokens
instead of repeating them. It has the same header, then

    spans       int64 (n_sequences, 2)    sequence i is tokens[spans[i, 0]:spans[i, 1]] of the file referred to
    metadata    JSON: as above, and "of": name of that file, which lies beside it, and "checksum": that file's
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from featherback.core import private
from featherback.core.files import atomic_file, link_file, open_regular
from featherback.errors import FeatherbackError

MAGIC = b"FBTOKENS"
VERSION, CHOSEN = 2, 3
_OWN = ("of", "checksum")  # metadata of a file of chosen sequences that are not its writer's
_HEADER = struct.Struct("<8sI4xQQQQQI4x")  # 64 bytes
_COUNTED = 56  # bytes of the header before its checksum
_ALIGN = 64
_WINDOW = 1 << 16  # sequences whose lengths are looked at together
_BUFFER = 1 << 16  # bytes of each section that wait to be written
_PIECE = 1 << 18  # bytes read at once where the whole file is read


def _align(n: int) -> int:
    return -(-n // _ALIGN) * _ALIGN


class TokenFileWriter:
    """Write sequences one by one; nothing is kept in memory. The file appears whole (renamed) or not at all.

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
            self._folder = self._open.enter_context(private.opened_folder(self.path.parent))
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
                f"tokens {ids.shape} and supervised {mask.shape} must be equal, one-dimensional, not empty"
            )
        self._write(ids, mask, np.array([ids.size]))

    def add_text(self, tokens: npt.NDArray[Any], size: int) -> None:
        """Append sequences of `size` tokens, the last perhaps shorter, all of them supervised."""
        ends = np.minimum(np.arange(size, tokens.size + size, size), tokens.size)
        self._write(tokens.astype("<i4"), np.ones(tokens.size, np.bool_), ends)

    def _write(self, ids: npt.NDArray[Any], mask: npt.NDArray[np.bool_], ends: npt.NDArray[np.int64]) -> None:
        """Append the sequences that end at `ends` of `ids`."""
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
            os.replace(self._temporary[0], self.path.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            os.fsync(self._folder)
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
            with contextlib.suppress(OSError):  # a full disk, already reported by the write that met it
                file.close()
        for name in self._temporary:
            with contextlib.suppress(FileNotFoundError):  # it was renamed
                os.unlink(name, dir_fd=self._folder)
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
    """A token file, memory-mapped: opening reads the header only, `seq` returns views.

    `chosen`: whether it may be one of chosen sequences.
    """

    def __init__(self, path: str | os.PathLike[str], chosen: bool = True) -> None:
        self.path = Path(path)
        try:
            with open_regular(self.path) as file:
                head = file.read(_HEADER.size)
                self._size = os.fstat(file.fileno()).st_size
                if len(head) < _HEADER.size or head[: len(MAGIC)] != MAGIC:
                    raise FeatherbackError(f"{self.path} is not a token file.")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise FeatherbackError(f"Cannot read the token file {self.path}: {error.strerror}.") from error
        _, version, *counts = _HEADER.unpack(head)
        if version != VERSION and not (chosen and version == CHOSEN):
            raise FeatherbackError(f"{self.path} is a token file of version {version}; this program reads {VERSION}.")
        self._head = head[:_COUNTED]
        self.n_sequences, self.n_tokens, self.n_targets, self.max_length, self._metadata_bytes, self.checksum = (
            int(c) for c in counts
        )
        self.whole: TokenFile | None = None
        """The file whose tokens are referred to; None: they are in this one."""
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
        self.starts, self.ends = offsets[:-1], offsets[1:]  # (n_sequences,), of `tokens`

    def _open_chosen(self) -> None:
        metadata = self._read_metadata(_HEADER.size + 16 * self.n_sequences)
        of, checksum = (metadata.pop(name, None) for name in _OWN)
        if not isinstance(of, str) or os.path.basename(of) != of or of in ("", ".", ".."):
            raise self._damaged("it refers to no file beside it")
        self.metadata, self.whole = metadata, TokenFile(self.path.with_name(of), chosen=False)
        if self.whole.checksum != checksum:
            raise self._damaged(f"{self.whole.path} is not the file that it refers to")
        self.tokens, self.supervised = self.whole.tokens, self.whole.supervised
        spans = np.frombuffer(self._map, "<i8", 2 * self.n_sequences, _HEADER.size).reshape(-1, 2)
        self.starts, self.ends = spans[:, 0], spans[:, 1]

    def _read_metadata(self, at: int) -> dict[str, Any]:
        if self._size != at + self._metadata_bytes:
            raise self._damaged(f"its {self._size} bytes do not match its header")
        try:
            return dict(json.loads(self._map[at : self._size]))
        except (ValueError, TypeError, RecursionError):
            raise self._damaged("its metadata are no JSON object") from None

    def __len__(self) -> int:
        return self.n_sequences

    @property
    def mean_length(self) -> float:
        """Tokens of a sequence, on average."""
        return self.n_tokens / max(1, self.n_sequences)

    def check(self, vocab_size: int) -> None:
        """Read the whole file once, and the one that it refers to, in pieces that never stay in memory.

        FeatherbackError if a byte is not what was written, a token is unknown to a model of `vocab_size` tokens, or
        none is supervised.
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
                f"{self.path} holds the token id {least if least < 0 else most}; the model's embedding has 0 to "
                f"{vocab_size - 1}. Was the data prepared with another model's tokenizer?"
            )
        if not self.n_targets:
            raise FeatherbackError(f"{self.path} has no supervised token: there is nothing to train or measure.")

    def _damaged(self, how: str) -> FeatherbackError:
        return FeatherbackError(f"The token file {self.path} is damaged: {how}.")

    def seq(self, i: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Sequence i: tokens int32 (n,) and supervised bool (n,), read-only views of the file."""
        if not 0 <= i < self.n_sequences:
            raise IndexError(f"sequence {i} of {self.n_sequences}")
        start, end = int(self.starts[i]), int(self.ends[i])
        if not 0 <= start < end <= self.tokens.size:
            raise self._damaged(f"sequence {i} lies outside")
        return self.tokens[start:end], self.supervised[start:end].view(np.bool_)

    def lengths(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Number of tokens of each of the sequences named."""
        return np.asarray(self.ends[indices] - self.starts[indices])

    def all_lengths(self) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """(first sequence, lengths of it and those after it), a window of sequences at a time."""
        for start in range(0, self.n_sequences, _WINDOW):
            yield start, self.ends[start : start + _WINDOW] - self.starts[start : start + _WINDOW]

    def drop_pages(self) -> None:
        """Give the file's resident pages back to the system (they come back from disk when touched)."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
        if self.whole is not None:
            self.whole.drop_pages()


class ChosenWriter:
    """The sequences that `choosing` takes; nothing is kept in memory. `n_targets` is for the caller to set."""

    def __init__(self, out: IO[bytes]) -> None:
        self.metadata: dict[str, Any] = {}
        self.n_sequences = self.n_tokens = self.n_targets = self.max_length = 0
        self._out, self._checksum = out, 0
        out.write(bytes(_HEADER.size))

    def add(self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
        """Take sequences, by their first tokens and those after their last."""
        if starts.size:
            self.n_sequences += starts.size
            self.n_tokens += int((ends - starts).sum())
            self.max_length = max(self.max_length, int((ends - starts).max()))
            self._write(np.stack([starts, ends], axis=1).astype("<i8").tobytes())

    def _write(self, content: bytes) -> None:
        self._checksum = zlib.crc32(content, self._checksum)
        self._out.write(content)

    def finish(self) -> None:
        """Write what is known at the end."""
        metadata = json.dumps(self.metadata).encode()
        self._write(metadata)
        counts = (self.n_sequences, self.n_tokens, self.n_targets, self.max_length, len(metadata))
        self._out.seek(0)
        self._out.write(_header(CHOSEN, counts, self._checksum))


@contextmanager
def choosing(file: TokenFile, path: Path) -> Iterator[ChosenWriter]:
    """Inside, sequences of `file` are taken, whole or in part, into a token file `path` beside it, which refers to it.
    It appears whole or not at all."""
    whole = file.whole or file
    with atomic_file(path) as out:
        writer = ChosenWriter(out)
        yield writer
        writer.metadata.update({"of": whole.path.name, "checksum": whole.checksum})
        writer.finish()


def aside(file: TokenFile) -> TokenFile:
    """A token file whose tokens have a name of their own, NAME.whole.tokens, so that chosen sequences can take its."""
    if file.whole is not None:
        return file
    link_file(file.path, whole := file.path.with_name(f"{file.path.stem}.whole{file.path.suffix}"))
    return TokenFile(whole)


def _header(version: int, counts: tuple[int, ...], checksum: int) -> bytes:
    """`checksum`: of what comes after it."""
    header = _HEADER.pack(MAGIC, version, *counts, 0)
    return _HEADER.pack(MAGIC, version, *counts, zlib.crc32(header[:_COUNTED], checksum))


def _unwritable(path: Path, error: OSError) -> FeatherbackError:
    return FeatherbackError(f"Cannot write the token file {path}: {error.strerror}.")
