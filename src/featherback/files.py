"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from featherback.errors import FeatherbackError

_LEFTOVER = re.compile(r"\..+\.\d+\.tmp")
"""The temporary files of `atomic_file`, of which a killed process leaves one behind."""


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Write `path` through a temporary file beside it: flushed to the disk, then renamed.

    A reader, or a power cut, sees the old file or the new one, never a part. FeatherbackError if that fails.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise FeatherbackError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):  # it was renamed, or could not be made
            temporary.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a small file atomically."""
    with atomic_file(path) as file:
        file.write(content)


def write_json(path: Path, content: Any) -> None:
    """Replace a JSON file atomically."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The content of a JSON file; FeatherbackError if it is missing or not JSON."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise FeatherbackError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise FeatherbackError(f"{path} is not valid JSON: {error}.") from error


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files that killed processes left in `folder`; no process may be writing there."""
    for entry in folder.iterdir():
        if _LEFTOVER.fullmatch(entry.name) and entry.is_file():
            entry.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to the disk, where the system knows how."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
