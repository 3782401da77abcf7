"""Create files and folders safely: never through a link, under unpredictable names, as private as their folder.

A run directory holds private text and may come from someone else. So only its owner can enter it, everything created in
it is private too, whatever the umask, and links that lead out of it are never followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from featherback.errors import FeatherbackError

TEMPORARY = r"(?P<process>\d+)-[0-9a-f]{16}"
"""Matches the middle of a temporary name: its process, and a random part."""

RUN_FILE = "run.json"
"""The file that marks a folder as a run directory."""

LOGS = "logs"
"""The folder of a run directory in which other programs (`--log-to`) have a folder each.

Featherback creates these folders and reads nothing in them, so their contents are not checked. W&B, for example, links
its logs into its cache.
"""

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # opening a pipe does not wait
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_DEEPEST = 32
"""Deepest nesting of folders accepted in a run directory. Featherback itself uses two levels."""


def temporary_name(name: str, end: str = "tmp") -> str:
    """Return an unpredictable hidden name for a file beside `name`: .NAME.PROCESS-RANDOM.END"""
    return f".{name}.{os.getpid()}-{os.urandom(8).hex()}.{end}"


@contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """Open the folder `path` and yield its descriptor. Raises OSError if there is none.

    Operations through the descriptor stay in this folder even if another takes its name meanwhile.
    """
    folder = os.open(path, _FOLDER)
    try:
        yield folder
    finally:
        os.close(folder)


def create(folder: int, name: str, buffering: int = -1) -> IO[bytes]:
    """Create a file in an open folder and open it for reading and writing. Raises OSError if the name is taken."""
    return os.fdopen(_open_in(folder, name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NOFOLLOW), "w+b", buffering)


def create_anew(path: Path) -> IO[bytes]:
    """Create the file `path`, replacing any file of that name. Raises OSError if it is a folder."""
    with opened_folder(path.parent) as folder:
        with suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=folder)
        return create(folder, path.name)


def open_to_append(path: Path) -> IO[bytes]:
    """Open the file `path` for appending, creating it if it is missing. Raises OSError for a symbolic or hard link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NOFOLLOW | _NONBLOCK
    with opened_folder(path.parent) as folder:
        return os.fdopen(_require_one_name(_open_in(folder, path.name, flags), path.name), "ab")


def open_to_change(path: Path) -> IO[bytes]:
    """Open the existing file `path` for reading and overwriting. Raises OSError for a symbolic or hard link."""
    with opened_folder(path.parent) as folder:
        file = os.open(path.name, os.O_RDWR | _NOFOLLOW | _NONBLOCK, dir_fd=folder)
    return os.fdopen(_require_one_name(_require_regular(file, path.name), path.name), "r+b")


def make_folder(path: Path) -> None:
    """Create a folder and its parents if they are missing, each as private as its parent. Raises OSError on failure."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with opened_folder(path.parent) as folder, suppress(FileExistsError):
        create_folder(folder, path.name)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path))


def create_folder(folder: int, name: str, private: bool = False) -> None:
    """Create a folder in an open folder. It is private if its parent is, or if `private`.

    Raises OSError if it exists.
    """
    above = stat.S_IMODE(os.fstat(folder).st_mode)
    private = private or not above & 0o077
    os.mkdir(name, 0o700 if private else 0o777, dir_fd=folder)
    if private:  # the umask may have removed the owner's permissions
        with suppress(OSError):  # exFAT has no permissions
            os.chmod(name, 0o700, dir_fd=folder)


def make_private_folder(path: Path) -> None:
    """Create a folder that only its owner can enter, from its first moment, or make an existing folder private.

    Parents are created as usual. Raises OSError on failure.
    """
    make_folder(path.parent)
    if not path.is_dir():
        with suppress(FileExistsError), opened_folder(path.parent) as folder:
            create_folder(folder, path.name, private=True)
    with opened_folder(path) as folder:
        _tighten(folder, 0o700)


def check_links(root: Path, tighten: bool = False) -> None:
    """Raise FeatherbackError if a run directory has a link that leads out of it, or anything but files and folders.

    What the folders in `LOGS` contain is not checked. `root` itself may be a link, because the user named it. `tighten`
    makes its files private to their owner. A file with a hard link outside the directory keeps its permissions.
    """
    _check(root, _paths_of(root), tighten)


def check_run(path: Path) -> None:
    """Apply `check_links` to a folder that has a run.json, of whatever content.

    In Hugging Face's cache every file is a link, so links may lead to the repository's folder of files.
    """
    with suppress(OSError, ValueError):  # ValueError: a name that no file can have
        record = os.lstat(path / RUN_FILE)
        blobs = _blob_folders(path) if stat.S_ISLNK(record.st_mode) else []
        _check(path, [*_paths_of(path), *blobs], tighten=False)


def check_link(path: Path) -> None:
    """Raise FeatherbackError if `path` is a link that leads out of its folder.

    In Hugging Face's cache it may lead to the repository's folder of files.
    """
    if path.is_symlink() and (target := _target_outside(path, [*_paths_of(path.parent), *_blob_folders(path.parent)])):
        raise FeatherbackError(
            f"{path} is a link to {target}, outside its folder, and is not copied. Replace the link by the file it "
            f"points to, or delete it."
        )


def check_link_inside(path: Path, folder: Path) -> None:
    """Raise FeatherbackError if `path`, which is in `folder` or below, is a link that leads out of `folder`.

    In Hugging Face's cache it may lead to the repository's folder of files.
    """
    if path.is_symlink() and (target := _target_outside(path, [*_paths_of(folder), *_blob_folders(folder)])):
        raise FeatherbackError(
            f"{path} is a link to {target}, outside the folder {folder}, and is not followed. Replace the link by a "
            f"copy, or delete it."
        )


def _paths_of(folder: Path) -> list[str]:
    """Return the absolute paths by which a link may refer to a folder."""
    return [os.path.realpath(folder), os.path.abspath(folder)]


def _blob_folders(snapshot: Path) -> list[str]:
    """Return the folder that a Hugging Face snapshot's links lead to, in a list.

    The list is empty if `snapshot` is not a snapshot of Hugging Face.
    """
    snapshots, _ = os.path.split(os.path.realpath(snapshot))
    repository, name = os.path.split(snapshots)
    blobs = os.path.join(repository, "blobs")
    return [blobs] if name == "snapshots" and os.path.isdir(blobs) and not os.path.islink(blobs) else []


def _target_outside(link: Path, homes: list[str]) -> str | None:
    """Return where a link leads if that is outside all of `homes`, or None if it stays inside one.

    The link's text is checked too: through /proc a link may lead anywhere, and elsewhere each time.
    """
    text = os.readlink(link)
    steps = Path(text).parts
    up = next((i for i, step in enumerate(steps) if step != os.pardir), len(steps))
    named = os.path.normpath(os.path.join(os.path.realpath(link.parent), text))
    if os.pardir in steps[up:] or not _is_in(named, homes):
        return named
    target = os.path.realpath(link)
    return None if _is_in(target, homes) else target


def _is_in(path: str, folders: list[str]) -> bool:
    return any(os.path.commonpath([folder, path]) == folder for folder in folders)


def _check(root: Path, homes: list[str], tighten: bool) -> None:
    try:
        with opened_folder(root) as folder:
            if tighten:
                _tighten(folder, 0o700)
            _check_entries(folder, root, homes, Counter() if tighten else None, 1)
    except OSError as error:
        raise FeatherbackError(f"Cannot read {error.filename or root}: {error.strerror}.") from error


def _check_entries(
    folder: int, path: Path, homes: list[str], names: Counter[tuple[int, int]] | None, depth: int
) -> None:
    """Check a folder's entries. `names` counts each file's names found so far; None: files are not made private."""
    if depth > _DEEPEST:
        raise FeatherbackError(f"{path} is nested too deeply for a run directory.")
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        place, status = path / entry.name, entry.stat(follow_symlinks=False)
        mode = status.st_mode
        if stat.S_ISLNK(mode):
            if (target := _target_outside(place, homes)) is not None:
                raise FeatherbackError(
                    f"{place} is a link to {target}, outside the run directory, and is not followed. Replace the link "
                    f"by the file it points to, or delete it."
                )
        elif stat.S_ISDIR(mode):
            if depth == 2 and path.name == LOGS:
                continue
            below = os.open(entry.name, _FOLDER | _NOFOLLOW, dir_fd=folder)
            try:
                if names is not None:
                    _tighten(below, 0o700)
                _check_entries(below, place, homes, names, depth + 1)
            finally:
                os.close(below)
        elif not stat.S_ISREG(mode):
            raise FeatherbackError(f"{place} is not a file or a folder and cannot stay in a run directory. Delete it.")
        elif names is not None and mode & 0o077:
            file = (status.st_dev, status.st_ino)
            names[file] += 1
            if names[file] == status.st_nlink:  # all its names are in the run directory
                with suppress(OSError):  # another user's file, or exFAT, which has no permissions
                    os.chmod(entry.name, 0o600, dir_fd=folder)


def _tighten(file: int, mode: int) -> None:
    """Set the mode of an open file or folder, if it belongs to this user and its disk has permissions."""
    if stat.S_IMODE(os.fstat(file).st_mode) != mode:
        with suppress(OSError):
            os.fchmod(file, mode)


def _open_in(folder: int, name: str, flags: int) -> int:
    """Open a file in a folder and return its descriptor. A new file in a private folder is private."""
    above = stat.S_IMODE(os.fstat(folder).st_mode)
    private = not above & 0o077
    file = _require_regular(os.open(name, flags, 0o600 if private else 0o666, dir_fd=folder), name)
    if private:
        _tighten(file, 0o600)  # the umask may have removed the owner's permissions
    return file


def _require_regular(file: int, name: str) -> int:
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file", name)
    return file


def _require_one_name(file: int, name: str) -> int:
    if os.fstat(file).st_nlink > 1:
        os.close(file)
        raise OSError(
            errno.EMLINK, "it has another name (a hard link), which would change too; replace it by a copy", name
        )
    return file
