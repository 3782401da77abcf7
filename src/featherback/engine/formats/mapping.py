"""A file mapped into memory for reading, under a guard. No other module maps a file: a test says so.

Another program may truncate the file or write into it meanwhile. A page that has vanished then reads as zeros instead
of ending the process, and `MappedFile.check` raises an error that names the file. It notices any change that moves the
file's end or its time of modification. It misses a write within the clock's tick in which the file was opened, and one
after which the time was set back. A file that was replaced or deleted stays unchanged for those who have mapped it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from featherback._native import MapGuard
from featherback.core.files import changed_file_error, open_regular, truncated_file_error
from featherback.core.placeholders import HEAD, placeholder
from featherback.core.system import positioned
from featherback.errors import FeatherbackError

T = TypeVar("T", bound="Guarded")

FOLIO = 2 << 20
"""The largest piece of the page cache, in bytes, that Linux maps on one access, given the advice we give it."""


def most_mapped(nbytes: int) -> int:
    """Return how many bytes of a file may be mapped while `nbytes` in a row are in use: every FOLIO that they touch."""
    return (nbytes // FOLIO + 2) * FOLIO


def _huge_page() -> int:
    """Return the bytes of a huge page, or 0 if there are none.

    On some ARM machines it is 32 MB, too much to map on one access.
    """
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text())
    return 0


class MappedFile:
    """A whole file as read-only memory. Reading it brings in pages that the system can drop again.

    `ours`: this process writes into the file, so only an earlier end of it is a change.
    """

    def __init__(self, path: Path, large: bool = True) -> None:
        """Map `path`. Raises FeatherbackError if it cannot be read or is empty. `large`: in pieces of 2 MB."""
        self.path, self.ours = path, False
        try:
            with open_regular(path) as file:
                self._known = os.fstat(file.fileno())
                if not (head := file.read(HEAD)):
                    raise FeatherbackError(f"{path} is empty.")
                if said := placeholder(head):
                    raise FeatherbackError(f"{path} {said}")
                try:
                    self.buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                except ValueError:  # no length: the system generates the content when it is read
                    raise FeatherbackError(f"{path} has no fixed length, like a file under /proc.") from None
        except OSError as error:
            raise FeatherbackError(f"Cannot read {path}: {error.strerror or error}.") from error
        # In pieces of 2 MB, if the file system has them, a layer is mapped by few accesses.
        if large and _huge_page() == FOLIO:
            positioned.in_large_pieces(self.buffer)
        self.size = len(self.buffer)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self.buffer, dtype=np.uint8)
        self._guard = MapGuard(self._bytes)
        weakref.finalize(self.buffer, self._guard.close).atexit = False  # views may outlive this object

    def check(self) -> None:
        """Raise FeatherbackError if another program has changed the file. What was read from it must be discarded."""
        try:
            now = os.stat(self.path)
        except OSError:  # it was deleted
            now = self._known
        same = (now.st_dev, now.st_ino) == (self._known.st_dev, self._known.st_ino)
        self.check_pages()
        if same and now.st_size < self.size:
            raise truncated_file_error(self.path)
        if same and not self.ours and now.st_mtime_ns != self._known.st_mtime_ns:
            raise changed_file_error(self.path)

    def check_pages(self) -> None:
        """Raise FeatherbackError if a page has vanished. This is cheaper than `check`, and finds only that."""
        if self._guard.lost:
            raise truncated_file_error(self.path)

    def view(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return a range of the file as a one-dimensional view."""
        return self._bytes[offset : offset + nbytes]

    def drop_pages(self, end: int) -> None:
        """Free the memory of the pages up to byte `end`. They are read again when they are accessed."""
        positioned.drop_pages(self.buffer, end)

    def close(self) -> None:
        """Close the map. Views taken from it stay valid."""
        self._bytes = np.empty(0, np.uint8)
        with contextlib.suppress(BufferError):  # a view still exists: the map is closed with the last one
            self.buffer.close()


class Guarded(Protocol):
    """What reads mapped files."""

    def maps(self) -> list[MappedFile]:
        """Return the mapped files."""

    def close(self) -> None:
        """Close them."""


@contextlib.contextmanager
def reading(opened: T) -> Iterator[T]:
    """Close what was opened when the block ends. If a file has changed meanwhile, raise the error that says so.

    That error takes the place of one that the block raises, because it may be a consequence.
    """
    try:
        yield opened
    except Exception:
        check_maps(opened.maps())
        raise
    else:
        check_maps(opened.maps())
    finally:
        opened.close()


@contextlib.contextmanager
def opening(file: MappedFile) -> Iterator[None]:
    """Check a file after the block, which reads its header. If anything fails, close the file."""
    try:
        try:
            yield
        except Exception:
            file.check()
            raise
        file.check()
    except BaseException:
        file.close()
        raise


def check_maps(maps: Iterable[MappedFile]) -> None:
    """Raise FeatherbackError if another program has changed one of the files."""
    for each in maps:
        each.check()


def truncated(path: Path, detail: str = "") -> FeatherbackError:
    """Return the error for a file that ends too early."""
    return FeatherbackError(f"{path} is truncated{detail}. Download it again.")


def corrupt(path: Path, found: str) -> FeatherbackError:
    """Return the error for a file whose header is invalid. `found` is a clause that says why."""
    return FeatherbackError(f"{path} is corrupt or not a model file: {found}. Download it again.")
