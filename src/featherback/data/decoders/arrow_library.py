"""The library `pyarrow`. Only the modules of this folder import it, in a process with limits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from featherback.data.decoders import BrokenTableError
from featherback.data.record_size import MOST_COLUMNS


def import_arrow() -> None:
    """Import pyarrow with as few threads as it allows, and without NumPy, which would take 15 MB."""
    sys.modules["numpy"] = None  # type: ignore[assignment]
    try:
        import pyarrow
    except ImportError:  # an older version needs NumPy
        del sys.modules["numpy"]
        import pyarrow
    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)


@contextmanager
def arrow_errors() -> Iterator[None]:
    """Turn the library's errors into BrokenTableError or MemoryError."""
    import pyarrow

    try:
        yield
    except MemoryError:  # also an error of pyarrow
        raise
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise BrokenTableError(str(error)) from error


def check_columns(count: int) -> None:
    """Raise BrokenTableError if a table has too many columns."""
    if count > MOST_COLUMNS:
        raise BrokenTableError(f"it has {count} columns, and at most {MOST_COLUMNS} are read")
