"""Atomic writes, and reads that accept only regular files."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from featherback.core import private
from featherback.core.sizes import shown_mb
from featherback.core.system import folders, processes
from featherback.errors import FeatherbackError

_LEFTOVER = re.compile(rf"\..+\.{private.TEMPORARY}\.tmp")
"""Matches the temporary files that `atomic_file` leaves behind if the process is killed."""

MOST_JSON = 4 << 20
"""Largest JSON file that is read, in bytes. Parsed, it can take twenty times as much memory."""

_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file for reading.

    Raises FeatherbackError for a pipe or a device, which may never end. Raises OSError, as `open` does, for a folder or
    a file that cannot be read.
    """

    try:
        _refuse_special(path, os.stat(path))
        file = open(path, "rb", opener=folders.open_to_read)  # noqa: SIM115 - the caller closes it
    except ValueError:
        raise OSError(errno.EINVAL, "the name contains a NUL character", os.fspath(path)) from None
    try:
        _refuse_special(path, os.fstat(file.fileno()))
        return file
    except BaseException:
        file.close()
        raise


def _refuse_special(path: str | os.PathLike[str], status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if kind != stat.S_IFREG:
        raise FeatherbackError(f"{path} is {_KINDS.get(kind, 'something else')}, not a file.")


def truncated_file_error(*paths: str | os.PathLike[str]) -> FeatherbackError:
    """Return the error for mapped files whose pages can no longer be read."""
    return FeatherbackError(
        f"{', '.join(map(str, paths))} was truncated by another program, or its disk failed, while Featherback was "
        f"reading it. Restore the file and run the command again."
    )


def changed_file_error(path: str | os.PathLike[str]) -> FeatherbackError:
    """Return the error for a file into which another program has written."""
    return FeatherbackError(
        f"{path} was changed by another program while Featherback was reading it. Restore the file and run the command "
        f"again."
    )


@contextmanager
def atomic_file(path: Path, *, sync: bool = True) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` when the block ends without an error.

    The file is flushed to the disk and then renamed, so a reader or a power cut sees the old file or the new one, never
    a part. Without `sync`, a power cut may leave a part, so the content must be checked when it is read. A link named
    `path` is replaced, not followed. The file gets the permissions of its folder. Raises FeatherbackError if writing
    fails.
    """
    with _replacing(path, sync) as (folder, temporary), private.create(folder, temporary) as file:
        yield file
        file.flush()
        if sync:
            os.fsync(file.fileno())


@contextmanager
def _replacing(path: Path, sync: bool = True) -> Iterator[tuple[folders.Folder, str]]:
    """Yield the open folder of `path` and a temporary name in it.

    The file made there is renamed to `path` at the end.
    """
    if not path.name:
        raise FeatherbackError(f"Cannot write {path}: it is a folder.")
    temporary = private.temporary_name(path.name)
    try:
        remove_abandoned(path)
        with folders.Folder(path.parent) as folder:
            try:
                yield folder, temporary
                folder.replace(path.name, temporary)
                if sync:
                    folder.sync()
            finally:
                with suppress(OSError):  # it was renamed, or could not be made
                    folder.unlink(temporary)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> FeatherbackError:
    if error.errno == errno.ELOOP:
        return FeatherbackError(f"Cannot write {path}: it is a link, and links are not followed. Delete the link.")
    return FeatherbackError(f"Cannot write {path}: {error.strerror or error}.")


def clone_file(source: Path, path: Path, *, in_place: bool = False) -> None:
    """Copy a file, sharing its blocks where the file system supports that. Little of it is in memory at once.

    The copy is atomic, and its folder is created if it is missing. With `in_place`, the existing file `path`, which
    must have the same length, is overwritten and stays mapped. Raises FeatherbackError if copying fails.
    """
    make_folder(path.parent)
    try:
        with open_regular(source) as file:
            if in_place:
                with private.open_to_change(path) as copy:
                    shutil.copyfileobj(file, copy, 1 << 20)
                return
            with atomic_file(path) as copy:
                _copy_content(copy, file)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _unwritable(path, error) from error
        raise FeatherbackError(f"Cannot copy {source} to {path}: {error.strerror or error}.") from error


def link_file(source: Path, path: Path) -> None:
    """Make `path` a hard link to `source`, which must never be written again. Without hard links, copy it.

    Either is atomic, and the folder is created if it is missing. Raises FeatherbackError on failure.
    """
    make_folder(path.parent)
    with _replacing(path) as (folder, temporary):
        try:
            folder.link(source, temporary)
        except OSError:  # exFAT and some network disks have no hard links
            with open_regular(source) as file, private.create(folder, temporary) as copy:
                _copy_content(copy, file)
                copy.flush()
                os.fsync(copy.fileno())


def _copy_content(copy: IO[bytes], file: IO[bytes]) -> None:
    """Copy the content of `file` into the empty file `copy`."""
    if not folders.share_blocks(file.fileno(), copy.fileno()):
        shutil.copyfileobj(file, copy, 1 << 20)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a small file atomically. Raises FeatherbackError on failure."""
    with atomic_file(path) as file:
        file.write(content)


def append_bytes(path: Path, content: bytes = b"", *, sync: bool = False) -> None:
    """Append to a file, which is created if it is missing. `sync` flushes it to the disk.

    Raises FeatherbackError on failure.
    """
    try:
        with private.open_to_append(path) as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise _unwritable(path, error) from error


def copy_file(source: Path, path: Path) -> None:
    """Copy a file of any length atomically. Little of it is in memory at once. Raises FeatherbackError on failure."""
    try:
        file = open_regular(source)
    except OSError as error:
        raise FeatherbackError(f"Cannot read {source}: {error.strerror or error}.") from error
    with file, atomic_file(path) as copy:
        shutil.copyfileobj(file, copy, 1 << 20)


def write_json(path: Path, content: Any) -> None:
    """Replace a JSON file atomically. Raises FeatherbackError on failure."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a small file. Raises FeatherbackError if it is missing or longer than `most` bytes."""
    try:
        with open_regular(path) as file:
            content = file.read(most + 1)
    except OSError as error:
        raise FeatherbackError(f"Cannot read {path}: {error.strerror or error}.") from error
    if len(content) > most:
        raise FeatherbackError(f"{path} has more than {most} bytes, the limit for a file of this kind.")
    return content


def checksum(file: IO[bytes], nbytes: int) -> int:
    """Return the CRC-32 of the next `nbytes` bytes. Raises EOFError if there are fewer. Reads piece by piece."""
    found, piece = 0, memoryview(bytearray(1 << 18))
    while nbytes:
        count = file.readinto(piece[:nbytes])  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        found, nbytes = zlib.crc32(piece[:count], found), nbytes - count
    return found


def json_checksum(content: Any) -> str:
    """Return the CRC-32 of the content's JSON text, in hexadecimal."""
    return f"{zlib.crc32(json.dumps(content).encode()):08x}"


def read_json(path: Path, most: int = MOST_JSON) -> Any:
    """Return the content of a JSON file.

    Raises FeatherbackError if it is missing, longer than `most` bytes or invalid.
    """
    try:
        return json.loads(read_bytes(path, most))
    except RecursionError:
        raise FeatherbackError(f"{path} is not usable JSON: it is nested too deeply.") from None
    except ValueError as error:
        raise FeatherbackError(f"{path} is not valid JSON: {error}.") from error


def make_folder(path: Path) -> None:
    """Create a folder and its parents if they are missing. Raises FeatherbackError on failure."""
    try:
        private.make_folder(path)
    except OSError as error:
        raise FeatherbackError(f"Cannot write to {path}: {error.strerror}.") from error


def check_free_space(path: Path, nbytes: int) -> None:
    """Raise FeatherbackError if the disk that will hold `path` has fewer than `nbytes` bytes free."""
    whole = path.absolute()
    home = next(folder for folder in (*whole.parents, whole) if folder.exists())
    free = shutil.disk_usage(home).free
    if free < nbytes:
        raise FeatherbackError(
            f"The disk of {home} has {shown_mb(free, 1)} free, but {path.name} needs {shown_mb(nbytes, 1)}. Free some "
            f"space, or choose another folder."
        )


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `path` at the end, or deleted if the block fails.

    If `path` exists already, no temporary folder is made: `path` itself is yielded. Raises FeatherbackError if the
    folder cannot be created.
    """
    if path.exists():
        yield path
        return
    temporary = path.with_name(private.temporary_name(path.name))
    try:
        remove_abandoned(path)
        make_folder(path.parent)
        with folders.Folder(path.parent) as folder:
            private.create_folder(folder, temporary.name)
        yield temporary
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise FeatherbackError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files that killed processes left in `folder`. No process may be writing there."""
    for entry in folder.iterdir():
        if _LEFTOVER.fullmatch(entry.name) and (entry.is_symlink() or not entry.is_dir()):
            entry.unlink(missing_ok=True)


def remove_abandoned(path: Path) -> None:
    """Delete the temporary files of `path` that killed processes left behind. Files of running processes stay."""
    _remove_abandoned(path.parent, re.compile(rf"\.{re.escape(path.name)}\.{private.TEMPORARY}\.tmp"))


def remove_abandoned_in(folder: Path) -> None:
    """Delete all temporary files in `folder` that killed processes left behind. Files of running processes stay."""
    _remove_abandoned(folder, _LEFTOVER)


def _remove_abandoned(folder: Path, pattern: re.Pattern[str]) -> None:
    with suppress(OSError):  # files that cannot be listed or deleted stay
        for entry in folder.iterdir():
            if (found := pattern.fullmatch(entry.name)) and not processes.is_running(int(found["process"])):
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to the disk, on systems that can."""
    with folders.Folder(path) as folder:
        folder.sync()


def default_cache_folder() -> Path:
    """Return the cache folder, which may not exist yet: $FEATHERBACK_CACHE, or the platform's folder for caches."""
    if configured := os.environ.get("FEATHERBACK_CACHE"):
        return Path(configured)
    return processes.cache_folder() / "featherback"
