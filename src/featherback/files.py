"""Files that appear whole or not at all, and files that are nothing else."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from featherback.errors import FeatherbackError

_LEFTOVER = re.compile(r"\..+\.\d+\.tmp")
"""The temporary files of `atomic_file`, of which a killed process leaves one behind."""

MOST_JSON = 4 << 20
"""Bytes of a JSON file that is read: what they become in memory can be twenty times as much."""

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file for reading. A pipe or a device may have no end, so it is refused with a FeatherbackError.

    OSError, as from `open`, for what cannot be read or is a folder.
    """
    try:
        _refuse_special(path, os.stat(path))
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # no waiting, should it have changed
    except ValueError:
        raise OSError(errno.EINVAL, "its name holds a NUL character", os.fspath(path)) from None
    try:
        _refuse_special(path, os.fstat(file))
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise


def _refuse_special(path: str | os.PathLike[str], status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if kind != stat.S_IFREG:
        raise FeatherbackError(f"{path} is {_KINDS.get(kind, 'something else')}, not a file.")


def cut_short(*paths: str | os.PathLike[str]) -> FeatherbackError:
    """What is to be said of mapped files, pages of which have gone."""
    return FeatherbackError(
        f"{', '.join(map(str, paths))} was cut short by another program, or its disk failed, while it was being read: "
        f"bring it back and start again."
    )


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


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a small file; FeatherbackError if it is missing, or longer than `most` bytes."""
    try:
        with open_regular(path) as file:
            content = file.read(most + 1)
    except OSError as error:
        raise FeatherbackError(f"Cannot read {path}: {error.strerror or error}.") from error
    if len(content) > most:
        raise FeatherbackError(f"{path} is longer than the {most} bytes that are read of such a file.")
    return content


def read_json(path: Path, most: int = MOST_JSON) -> Any:
    """The content of a JSON file; FeatherbackError if it is missing, longer than `most` bytes, or not JSON."""
    try:
        return json.loads(read_bytes(path, most))
    except RecursionError:
        raise FeatherbackError(f"{path} is not usable JSON: it is nested too deeply.") from None
    except ValueError as error:
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
