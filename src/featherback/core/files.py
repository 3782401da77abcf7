"""Files that appear whole or not at all, and files that are nothing else."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from featherback.core import private
from featherback.core.sizes import shown_mb
from featherback.errors import FeatherbackError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

_LEFTOVER = re.compile(rf"\..+\.{private.TEMPORARY}\.tmp")
"""The temporary files of `atomic_file`, of which a killed process leaves one behind."""

MOST_JSON = 4 << 20
"""Bytes of a JSON file that is read: what they become in memory can be twenty times as much."""

_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file for reading. A pipe or a device may have no end, so it is refused with a FeatherbackError.

    OSError, as from `open`, for what cannot be read or is a folder.
    """

    def opened(name: str | os.PathLike[str], flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))  # no waiting, should it have changed

    try:
        _refuse_special(path, os.stat(path))
        file = open(path, "rb", opener=opened)  # noqa: SIM115 - the caller closes it
    except ValueError:
        raise OSError(errno.EINVAL, "its name holds a NUL character", os.fspath(path)) from None
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


def cut_short(*paths: str | os.PathLike[str]) -> FeatherbackError:
    """What is to be said of mapped files, pages of which have gone."""
    return FeatherbackError(
        f"{', '.join(map(str, paths))} was cut short by another program, or its disk failed, while it was being read: "
        f"bring it back and start again."
    )


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Write `path` through a temporary file beside it: flushed to the disk, then renamed.

    A reader, or a power cut, sees the old file or the new one, never a part. A link that has the name is replaced, not
    followed; the file is as private as its folder. FeatherbackError if that fails.
    """
    with _renamed(path) as (folder, temporary), private.create(folder, temporary) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _renamed(path: Path) -> Iterator[tuple[int, str]]:
    """The open folder of `path` and a name in it: what is made there inside takes the name `path` at the end."""
    if not path.name:
        raise FeatherbackError(f"Cannot write {path}: it is a folder.")
    temporary = private.temporary_name(path.name)
    try:
        remove_abandoned(path)
        with private.opened_folder(path.parent) as folder:
            try:
                yield folder, temporary
                os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
            finally:
                with suppress(OSError):  # it was renamed, or could not be made
                    os.unlink(temporary, dir_fd=folder)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> FeatherbackError:
    if error.errno == errno.ELOOP:
        return FeatherbackError(f"Cannot write {path}: it is a link, which is not followed; delete it.")
    return FeatherbackError(f"Cannot write {path}: {error.strerror or error}.")


_FICLONE = 0x40049409
"""Linux' ioctl that lets a file share another's blocks until one of them is written."""


def clone_file(source: Path, path: Path, *, in_place: bool = False) -> None:
    """Copy a file to the disk, sharing its blocks where the file system can; little of it is in memory at once.

    It appears whole or not at all, in a folder that is made if need be; `in_place`: a file of the same length is
    overwritten, and keeps its maps. FeatherbackError if that fails.
    """
    make_folder(path.parent)
    try:
        with open_regular(source) as file:
            if in_place:
                with private.open_to_change(path) as copy:
                    shutil.copyfileobj(file, copy, 1 << 20)
                return
            with atomic_file(path) as copy:
                _fill(copy, file)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _unwritable(path, error) from error
        raise FeatherbackError(f"Cannot copy {source} to {path}: {error.strerror or error}.") from error


def link_file(source: Path, path: Path) -> None:
    """Let `path` be another name of a file that nothing writes again; a copy where the disk knows no such names.

    It appears whole or not at all, in a folder that is made if need be. FeatherbackError if that fails.
    """
    make_folder(path.parent)
    with _renamed(path) as (folder, temporary):
        try:
            os.link(source, temporary, dst_dir_fd=folder, follow_symlinks=False)
        except OSError:  # exFAT, and some network disks
            with open_regular(source) as file, private.create(folder, temporary) as copy:
                _fill(copy, file)
                copy.flush()
                os.fsync(copy.fileno())


def _fill(copy: IO[bytes], file: IO[bytes]) -> None:
    """Let an empty file have the content of another."""
    if not _shared(file.fileno(), copy.fileno()):
        shutil.copyfileobj(file, copy, 1 << 20)


def _shared(source: int, copy: int) -> bool:
    """Whether the copy now has the blocks of the source."""
    if fcntl is None or not sys.platform.startswith("linux"):
        return False
    try:
        fcntl.ioctl(copy, _FICLONE, source)
    except OSError:  # another disk, or a file system that cannot
        return False
    return True


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a small file atomically."""
    with atomic_file(path) as file:
        file.write(content)


def append_bytes(path: Path, content: bytes = b"", *, sync: bool = False) -> None:
    """Add to the end of a file, made if need be; `sync`: bring it to the disk. FeatherbackError if that fails."""
    try:
        with private.open_to_append(path) as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise _unwritable(path, error) from error


def truncate(path: Path, nbytes: int) -> None:
    """Cut a file behind its first `nbytes` bytes. FeatherbackError if that fails."""
    try:
        with private.open_to_change(path) as file:
            file.truncate(nbytes)
    except OSError as error:
        raise _unwritable(path, error) from error


def copy_file(source: Path, path: Path) -> None:
    """Copy a file of any length, of which little is in memory at once, to `path`, whole or not at all."""
    try:
        file = open_regular(source)
    except OSError as error:
        raise FeatherbackError(f"Cannot read {source}: {error.strerror or error}.") from error
    with file, atomic_file(path) as copy:
        shutil.copyfileobj(file, copy, 1 << 20)


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


def checksum(file: IO[bytes], nbytes: int) -> int:
    """The CRC-32 of the next `nbytes` bytes, of which little is in memory at once; EOFError if there are fewer."""
    found, piece = 0, memoryview(bytearray(1 << 18))
    while nbytes:
        count = file.readinto(piece[:nbytes])  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        found, nbytes = zlib.crc32(piece[:count], found), nbytes - count
    return found


def json_checksum(content: Any) -> str:
    """The CRC-32 of what JSON makes of it, in hexadecimal digits."""
    return f"{zlib.crc32(json.dumps(content).encode()):08x}"


def read_json(path: Path, most: int = MOST_JSON) -> Any:
    """The content of a JSON file; FeatherbackError if it is missing, longer than `most` bytes, or not JSON."""
    try:
        return json.loads(read_bytes(path, most))
    except RecursionError:
        raise FeatherbackError(f"{path} is not usable JSON: it is nested too deeply.") from None
    except ValueError as error:
        raise FeatherbackError(f"{path} is not valid JSON: {error}.") from error


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, if it is not there; FeatherbackError if that is not possible."""
    try:
        private.make_folder(path)
    except OSError as error:
        raise FeatherbackError(f"Cannot write to {path}: {error.strerror}.") from error


def check_room(path: Path, nbytes: int) -> None:
    """FeatherbackError if the disk on which `path` is to lie has no room for a file of so many bytes."""
    whole = path.absolute()
    home = next(folder for folder in (*whole.parents, whole) if folder.exists())
    free = shutil.disk_usage(home).free
    if free < nbytes:
        raise FeatherbackError(
            f"The disk of {home} has {shown_mb(free, 1)} free and {path.name} needs {shown_mb(nbytes, 1)}: free "
            f"some, or choose another place."
        )


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to be filled that takes the name `path` at the end, or none if that fails.

    One that is there already is filled in place. FeatherbackError if it cannot be made.
    """
    if path.exists():
        yield path
        return
    temporary = path.with_name(private.temporary_name(path.name))
    try:
        remove_abandoned(path)
        make_folder(path.parent)
        with private.opened_folder(path.parent) as folder:
            private.create_folder(folder, temporary.name)
        yield temporary
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise FeatherbackError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files that killed processes left in `folder`; no process may be writing there."""
    for entry in folder.iterdir():
        if _LEFTOVER.fullmatch(entry.name) and (entry.is_symlink() or not entry.is_dir()):
            entry.unlink(missing_ok=True)


def remove_abandoned(path: Path) -> None:
    """Delete what killed processes had written of the file or folder `path`; a process that runs keeps its own."""
    of_path = re.compile(rf"\.{re.escape(path.name)}\.{private.TEMPORARY}\.tmp")
    with suppress(OSError):  # what cannot be listed or deleted stays
        for entry in path.parent.iterdir():
            if (found := of_path.fullmatch(entry.name)) and not _runs(int(found["process"])):
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    """Whether there is, or may be, a process of this number."""
    if os.name != "posix":  # where signal 0 would end it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return True


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to the disk, where the system knows how."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_place() -> Path:
    """Where the cache is, if there is one: $FEATHERBACK_CACHE, else the platform's place for caches."""
    if configured := os.environ.get("FEATHERBACK_CACHE"):
        return Path(configured)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "featherback"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "featherback"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "featherback"
