"""A file mapped into memory for reading."""

import contextlib
import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback.core.files import open_regular
from featherback.errors import FeatherbackError

FOLIO = 2 << 20
"""Bytes: the largest piece of the page cache that Linux maps at one touch, as far as we ask it to."""


def most_mapped(nbytes: int) -> int:
    """Bytes of a file that may be mapped while `nbytes` in a row are in use: every FOLIO that they touch."""
    return (nbytes // FOLIO + 2) * FOLIO


def _huge_page() -> int:
    """Bytes of a huge page; 0 where there are none. On some ARM machines they have 32 MB, too much for a touch."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text())
    return 0


class MappedFile:
    """A whole file as read-only memory; reading it brings in pages that the system can drop again."""

    def __init__(self, path: Path) -> None:
        """Map `path`; FeatherbackError if it cannot be read or is empty."""
        self.path = path
        try:
            with open_regular(path) as file:
                if not file.read(1):
                    raise FeatherbackError(f"{path} is empty.")
                try:
                    self.buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                except ValueError:  # no length: the system makes its content when it is read
                    raise FeatherbackError(f"{path} has no length of its own, as a file under /proc.") from None
        except OSError as error:
            raise FeatherbackError(f"Cannot read {path}: {error.strerror or error}.") from error
        # In pieces of 2 MB, where the file system has them, a layer takes few touches to map.
        if _huge_page() == FOLIO:
            with contextlib.suppress(OSError):
                self.buffer.madvise(mmap.MADV_HUGEPAGE)
        self.size = len(self.buffer)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self.buffer, dtype=np.uint8)

    def view(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """A range of the file, one-dimensional, without a copy."""
        return self._bytes[offset : offset + nbytes]

    def drop_pages(self, end: int) -> None:
        """Give back the memory of the pages up to byte `end`; they are read anew if touched again."""
        if hasattr(self.buffer, "madvise"):
            self.buffer.madvise(mmap.MADV_DONTNEED, 0, end)

    def close(self) -> None:
        """Close the map; views taken from it stay valid."""
        self._bytes = np.empty(0, np.uint8)
        with contextlib.suppress(BufferError):  # a view is alive: the map goes with the last of them
            self.buffer.close()


def truncated(path: Path, detail: str = "") -> FeatherbackError:
    """The error of a file that ends too early."""
    return FeatherbackError(f"{path} is truncated{detail}; download it again.")


def corrupt(path: Path, found: str) -> FeatherbackError:
    """The error of a file whose header cannot be right."""
    return FeatherbackError(f"{path} is corrupt or not a model file: it holds {found}.")
