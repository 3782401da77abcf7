"""Unpack and decode a data file while it is read, so that every format sees plain UTF-8.

Compressed files are recognised by their first bytes, and so is UTF-16, which Excel and PowerShell write.
"""

from __future__ import annotations

import codecs
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import IO, NamedTuple, cast

from featherback.core.terminal import quoted
from featherback.data.record_size import Expansion
from featherback.errors import FeatherbackError, excerpt

COMPRESSED = (".gz", ".zst", ".zip")
"""Suffixes of compressed files."""
_PIECE = 1 << 16  # bytes read at once
_ZSTD_WINDOW = 8 << 20  # bytes of memory for unpacking, which all usual levels of compression keep to
_ZSTD_PIECE = 512  # bytes read at once: every four of them may stand for 128 KB
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
"""Byte order marks. UTF-32's begins with UTF-16's, so it is looked for first."""
_MOST_LISTED = 1 << 20  # bytes of the list of files in a ZIP archive; in memory, it takes ten times as many
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compressions of ZIP archives that are unpacked in pieces of limited size."""
_BINARY = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"PAR1", b"ARROW1")
_CHATS = ("conversations.json", "_chat.txt")
"""Files of an archive that hold the chats that a program exports, whatever stands beside them."""
_TEXTS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".tab", ".txt", ".md", ".mbox", ".eml", ".srt", ".vtt")
"""Endings of data files. If an archive contains one of them beside pictures and the like, it is read."""
_OFFICE = ("[Content_Types].xml", "mimetype")
_DOCUMENTS = (".docx", ".odt", ".epub", ".xlsx")
"""Members of the ZIP archives of office programs, and endings of these archives, which are files of their own kind."""


class Unpacked(NamedTuple):
    """The content of a file."""

    file: IO[bytes]
    name: str
    """The name of the content: "a.csv" for "a.csv.gz"."""
    others: int = 0
    """How many other files the archive contains."""
    is_packed: bool = True


def unpacked(file: IO[bytes], name: str, size: int) -> Unpacked:
    """Return a reader of a file's content.

    `size`: the file's bytes. A file that is not compressed is returned as it is. Raises FeatherbackError if it cannot
    be unpacked.
    """
    head = file.read(4)
    file.seek(0)
    kind = next((kind for sign, kind in _PACKED.items() if head.startswith(sign)), None)
    if kind is None or (found := kind(file, name)) is None:
        return Unpacked(file, name, is_packed=False)
    pieces, inner, others = found
    return Unpacked(io.BufferedReader(_Pieces(file, pieces, name, size), _PIECE), inner, others)


def is_binary(head: bytes) -> bool:
    """Whether the first bytes are those of a spreadsheet, a document or a table, which is no text in any encoding."""
    return head.startswith(_BINARY)


def encoding_of(head: bytes) -> str | None:
    """Return the encoding that the first bytes of a text show; None for UTF-8 and for what they do not show."""
    found = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    if found is None and len(head) >= 4 and head.count(0) * 3 > len(head):  # no mark, but half of the bytes are zero
        found = "utf-16-le" if head[1::2].count(0) > head[::2].count(0) else "utf-16-be"
    return None if found == "utf-8" else found


def decoded(file: IO[bytes], encoding: str, name: str) -> IO[bytes]:
    """Return a reader of a text in another encoding as UTF-8."""

    def pieces() -> Iterator[bytes]:
        decoder = codecs.getincrementaldecoder(encoding)()
        while piece := file.read(_PIECE):
            yield decoder.decode(piece).removeprefix("\ufeff").encode()
        yield decoder.decode(b"", True).encode()

    return io.BufferedReader(_Pieces(file, pieces(), name, None, f"it is not text in {encoding}"), _PIECE)


def bytes_taken(file: IO[bytes]) -> int | None:
    """Return how many bytes of the underlying file were read; None if `file` is that file."""
    raw = getattr(file, "raw", None)
    return raw.taken if isinstance(raw, _Pieces) else None


def plain_name(name: str) -> str:
    """Return a file's name without the suffix of a compression: "a.csv" for "a.csv.gz"."""
    return next((name[: -len(end)] for end in COMPRESSED if name.lower().endswith(end)), name)


class _Pieces(io.RawIOBase):
    """Reads the pieces of an iterator as a file.

    `size`: the bytes of the file that they are unpacked from, or None if they are not unpacked.
    """

    def __init__(
        self, file: IO[bytes], pieces: Iterator[bytes], name: str, size: int | None, wrong: str = "it is damaged"
    ) -> None:
        self._file, self._pieces, self._name, self._wrong = file, pieces, name, wrong
        self._expansion = None if size is None else Expansion(name, size)
        self._held = b""

    @property
    def taken(self) -> int:
        inner = bytes_taken(self._file)
        return self._file.tell() if inner is None else inner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        try:
            while not self._held and (piece := next(self._pieces, None)) is not None:
                self._held = piece
        except FeatherbackError:
            raise
        except Exception as error:  # each library has its own
            raise FeatherbackError(f"Cannot read {self._name}: {self._wrong} ({excerpt(str(error))}).") from error
        part, self._held = self._held[: len(buffer)], self._held[len(buffer) :]
        buffer[: len(part)] = part
        if self._expansion is not None:
            self._expansion.add(len(part))
        return len(part)

    def close(self) -> None:
        self._file.close()
        super().close()


class _ShortReads:
    """A file of a ZIP archive, of which no long part can be read at once."""

    def __init__(self, file: IO[bytes]) -> None:
        self.seek, self.tell, self.seekable, self._read = file.seek, file.tell, file.seekable, file.read

    def read(self, size: int = _MOST_LISTED) -> bytes:
        if size > _MOST_LISTED:
            raise ValueError("it lists too many files")
        return self._read(size)


_Found = tuple[Iterator[bytes], str, int]
"""The content of a compressed file, its name, and the number of other files in the archive."""


def _gzip(file: IO[bytes], name: str) -> _Found:
    def pieces() -> Iterator[bytes]:
        rest = b""
        while rest or (rest := file.read(_PIECE)):  # several may follow each other
            unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
            while not unpacker.eof:
                rest = unpacker.unconsumed_tail or rest or file.read(_PIECE)
                if not rest:
                    raise EOFError("it ends too early")
                yield unpacker.decompress(rest, _PIECE)
                rest = b""
                while unpacker.unconsumed_tail and not unpacker.eof:
                    yield unpacker.decompress(unpacker.unconsumed_tail, _PIECE)
            rest = unpacker.unused_data.lstrip(b"\0")

    return pieces(), plain_name(name), 0


def _zstd(file: IO[bytes], name: str) -> _Found:
    if find_spec("zstandard") is None:
        raise FeatherbackError(
            f"{name} is compressed with Zstandard. To read it, install zstandard: pip install 'featherback[zstd]'. Or "
            "unpack it: zstd -d FILE."
        )
    from zstandard import ZstdDecompressor

    unpacker = ZstdDecompressor(max_window_size=_ZSTD_WINDOW)

    def pieces() -> Iterator[bytes]:
        rest = b""
        while rest or (rest := file.read(_ZSTD_PIECE)):  # several frames may follow each other
            frame = unpacker.decompressobj()
            while not frame.eof:
                if not (rest := rest or file.read(_ZSTD_PIECE)):
                    raise EOFError("it ends too early")
                yield frame.decompress(rest)
                rest = frame.unused_data if frame.eof else b""

    return pieces(), plain_name(name), 0


def archive_of(file: IO[bytes], name: str) -> zipfile.ZipFile:
    """Open a ZIP archive. Raises FeatherbackError if it is damaged or lists too many files."""
    try:
        return zipfile.ZipFile(cast("IO[bytes]", _ShortReads(file)))
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise FeatherbackError(f"Cannot read {name}: {error}.") from error


def pieces_of(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Iterator[bytes]:
    """Return the content of one file of an archive in pieces. Raises FeatherbackError if it cannot be unpacked."""
    if member.flag_bits & 1:
        raise FeatherbackError(f"{name} is encrypted. Unpack it, and pass the data file.")
    if member.compress_type not in _METHODS:
        raise FeatherbackError(
            f"{name} is a ZIP archive with another compression than Deflate. Unpack it, and pass the data file."
        )
    reader = archive.open(member)
    return iter(lambda: reader.read(_PIECE), b"")


def _zip(file: IO[bytes], name: str) -> _Found | None:
    """Open the only data file of an archive. An archive of an office program is left as it is."""
    archive = archive_of(file, name)
    members = [each for each in archive.infolist() if not each.is_dir() and not each.filename.startswith("__MACOSX/")]
    if name.lower().endswith(_DOCUMENTS) or any(each.filename in _OFFICE for each in members):
        file.seek(0)
        return None
    chats = [each for each in members if PurePosixPath(each.filename).name in _CHATS]
    texts = [each for each in members if each.filename.lower().endswith(_TEXTS)]
    found = next((each[0] for each in (members, chats, texts) if len(each) == 1), None)
    if found is None:
        listed = ", ".join(excerpt(each.filename) for each in members[:3])
        unpack = quoted("unzip", name, "-d", "FOLDER")
        raise FeatherbackError(
            f"{name} contains {len(members)} files ({listed}{', ...' * (len(members) > 3)}). Unpack it with {unpack}, "
            "and pass the data files."
        )
    return pieces_of(archive, found, name), found.filename, len(members) - 1


_Open = Callable[[IO[bytes], str], "_Found | None"]
_PACKED: dict[bytes, _Open] = {b"\x1f\x8b": _gzip, b"\x28\xb5\x2f\xfd": _zstd, b"PK\x03\x04": _zip}
