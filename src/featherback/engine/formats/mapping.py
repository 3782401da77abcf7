"""A file mapped into memory for reading."""

import contextlib
import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback.core.files import open_regular
from featherback.errors import FeatherbackError

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
    """A whole file as read-only memory. Reading it brings in pages that the system can drop again."""

    def __init__(self, path: Path) -> None:
        """Map `path`. Raises FeatherbackError if it cannot be read or is empty."""
        self.path = path
        try:
            with open_regular(path) as file:
                if not file.read(1):
                    raise FeatherbackError(f"{path} is empty.")
                try:
                    self.buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                except ValueError:  # no length: the system generates the content when it is read
                    raise FeatherbackError(f"{path} has no fixed length, like a file under /proc.") from None
        except OSError as error:
            raise FeatherbackError(f"Cannot read {path}: {error.strerror or error}.") from error
        # In pieces of 2 MB, if the file system has them, a layer is mapped by few accesses.
        if _huge_page() == FOLIO:
            with contextlib.suppress(OSError):
                self.buffer.madvise(mmap.MADV_HUGEPAGE)
        self.size = len(self.buffer)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self.buffer, dtype=np.uint8)

    def view(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return a range of the file as a one-dimensional view."""
        return self._bytes[offset : offset + nbytes]

    def drop_pages(self, end: int) -> None:
        """Free the memory of the pages up to byte `end`. They are read again when they are accessed."""
        if hasattr(self.buffer, "madvise"):
            self.buffer.madvise(mmap.MADV_DONTNEED, 0, end)

    def close(self) -> None:
        """Close the map. Views taken from it stay valid."""
        self._bytes = np.empty(0, np.uint8)
        with contextlib.suppress(BufferError):  # a view still exists: the map is closed with the last one
            self.buffer.close()


def truncated(path: Path, detail: str = "") -> FeatherbackError:
    """Return the error for a file that ends too early."""
    return FeatherbackError(f"{path} is truncated{detail}. Download it again.")


def corrupt(path: Path, found: str) -> FeatherbackError:
    """Return the error for a file whose header is invalid. `found` is a clause that says why."""
    return FeatherbackError(f"{path} is corrupt or not a model file: {found}. Download it again.")
