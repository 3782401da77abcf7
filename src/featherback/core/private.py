"""How files and folders are made: through no link, under no name that can be guessed, as private as their folder.

A run directory holds private text, and may come from a stranger. So it is made for its owner alone, what is made in it
takes that over whatever the umask, and what is in it is never reached through a link that leads out of it.
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

TEMPORARY = r"(?P<process>\d+)(-[0-9a-f]{16})?"
"""A regular expression for the middle of a temporary name: the process that made it. Earlier versions had no more."""

RUN_FILE = "run.json"
"""By which a directory is known as a run's."""

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # a pipe is not waited for
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_DEEPEST = 32
"""Folders inside each other in a run directory; the deepest that is made is two below it."""


def temporary_name(name: str, end: str = "tmp") -> str:
    """A hidden name beside `name` that nobody can foresee: .NAME.PROCESS-RANDOM.END"""
    return f".{name}.{os.getpid()}-{os.urandom(8).hex()}.{end}"


@contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """A descriptor of the folder `path`: what is made, renamed or deleted by it stays in this folder, should another
    take its name meanwhile. OSError if there is none."""
    folder = os.open(path, _FOLDER)
    try:
        yield folder
    finally:
        os.close(folder)


def create(folder: int, name: str, buffering: int = -1) -> IO[bytes]:
    """A new file in an open folder, to be written and read. OSError if the name is taken, by whatever."""
    return os.fdopen(_made(folder, name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NOFOLLOW), "w+b", buffering)


def create_anew(path: Path) -> IO[bytes]:
    """A new file `path` in place of what had the name. OSError if that is a folder."""
    with opened_folder(path.parent) as folder:
        with suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=folder)
        return create(folder, path.name)


def open_to_append(path: Path) -> IO[bytes]:
    """The file `path`, made if need be, to be written at its end. OSError for a link, symbolic or hard."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NOFOLLOW | _NONBLOCK
    with opened_folder(path.parent) as folder:
        return os.fdopen(_single(_made(folder, path.name, flags), path.name), "ab")


def open_to_change(path: Path) -> IO[bytes]:
    """The file `path`, which must be there, to be read and overwritten. OSError for a link, symbolic or hard."""
    with opened_folder(path.parent) as folder:
        file = os.open(path.name, os.O_RDWR | _NOFOLLOW | _NONBLOCK, dir_fd=folder)
    return os.fdopen(_single(_regular(file, path.name), path.name), "r+b")


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, as private as the one that it is made in; nothing if it is there. OSError if
    that is not possible."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with opened_folder(path.parent) as folder, suppress(FileExistsError):
        create_folder(folder, path.name)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path))


def create_folder(folder: int, name: str, private: bool = False) -> None:
    """Make a folder in an open folder, for its owner alone if that is, or if it is to be `private`. OSError if the
    name is taken."""
    above = stat.S_IMODE(os.fstat(folder).st_mode)
    private = private or not above & 0o077
    os.mkdir(name, 0o700 if private else 0o777, dir_fd=folder)
    if private:  # a umask may have taken more away
        with suppress(OSError):  # exFAT, which knows no permissions
            os.chmod(name, 0o700, dir_fd=folder)


def make_private_folder(path: Path) -> None:
    """Make a folder that its owner alone can enter, from its first moment, or let one that is there become so; those
    above it are made as usual. OSError if that is not possible."""
    make_folder(path.parent)
    if not path.is_dir():
        with suppress(FileExistsError), opened_folder(path.parent) as folder:
            create_folder(folder, path.name, private=True)
    with opened_folder(path) as folder:
        _tighten(folder, 0o700)


def check_links(root: Path, tighten: bool = False) -> None:
    """FeatherbackError if a run directory has a link that leads out of it, or something that is no file or folder.

    `root` may itself be a link: the user named it. `tighten`: nobody but their owner may read its files from now on; a
    file that has another name outside, as a hard link, keeps its permissions.
    """
    _check(root, _names_of(root), tighten)


def check_run(path: Path) -> None:
    """`check_links` for what may be a run directory, if it has a run.json, whatever that is. In Hugging Face's cache,
    where every file is a link, links may lead to the repository's folder of files."""
    with suppress(OSError, ValueError):  # a name that no file can have
        record = os.lstat(path / RUN_FILE)
        blobs = _blobs(path) if stat.S_ISLNK(record.st_mode) else []
        _check(path, [*_names_of(path), *blobs], tighten=False)


def check_link(path: Path) -> None:
    """FeatherbackError if `path` is a link out of its folder; one in Hugging Face's cache may lead to the repository's
    folder of files."""
    if path.is_symlink() and (target := _outside(path, [*_names_of(path.parent), *_blobs(path.parent)])):
        raise FeatherbackError(
            f"{path} is a link to {target}, outside its folder, and is not copied: put what it leads to in its place, "
            f"or delete it."
        )


def _names_of(folder: Path) -> list[str]:
    """The absolute paths by which a link may name a folder."""
    return [os.path.realpath(folder), os.path.abspath(folder)]


def _blobs(snapshot: Path) -> list[str]:
    """Where Hugging Face's cache has the files to which the links of a snapshot lead; nothing if it is not one."""
    snapshots, _ = os.path.split(os.path.realpath(snapshot))
    repository, name = os.path.split(snapshots)
    blobs = os.path.join(repository, "blobs")
    return [blobs] if name == "snapshots" and os.path.isdir(blobs) and not os.path.islink(blobs) else []


def _outside(link: Path, homes: list[str]) -> str | None:
    """Where a link leads that is in none of the folders `homes`; None if it stays in one. Its text is judged as well:
    through /proc it may lead anywhere, and to another place each time."""
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
    """`names`: how many names each file was found to have, if files are to be made private."""
    if depth > _DEEPEST:
        raise FeatherbackError(f"{path} is nested too deeply for a run directory.")
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        place, status = path / entry.name, entry.stat(follow_symlinks=False)
        mode = status.st_mode
        if stat.S_ISLNK(mode):
            if (target := _outside(place, homes)) is not None:
                raise FeatherbackError(
                    f"{place} is a link to {target}, outside the run directory, and is not followed: put what it "
                    f"leads to in its place, or delete it."
                )
        elif stat.S_ISDIR(mode):
            below = os.open(entry.name, _FOLDER | _NOFOLLOW, dir_fd=folder)
            try:
                if names is not None:
                    _tighten(below, 0o700)
                _check_entries(below, place, homes, names, depth + 1)
            finally:
                os.close(below)
        elif not stat.S_ISREG(mode):
            raise FeatherbackError(f"{place} is not a file, as all in a run directory must be: delete it.")
        elif names is not None and mode & 0o077:
            file = (status.st_dev, status.st_ino)
            names[file] += 1
            if names[file] == status.st_nlink:  # all of its names are in the run
                with suppress(OSError):  # another user's, or exFAT, which knows no permissions
                    os.chmod(entry.name, 0o600, dir_fd=folder)


def _tighten(file: int, mode: int) -> None:
    """Let nobody but its owner have a file or folder, if it is ours and its disk knows permissions."""
    if stat.S_IMODE(os.fstat(file).st_mode) != mode:
        with suppress(OSError):
            os.fchmod(file, mode)


def _made(folder: int, name: str, flags: int) -> int:
    """The descriptor of a file in a folder: if it is made, for its owner alone if the folder is."""
    above = stat.S_IMODE(os.fstat(folder).st_mode)
    private = not above & 0o077
    file = _regular(os.open(name, flags, 0o600 if private else 0o666, dir_fd=folder), name)
    if private:
        _tighten(file, 0o600)  # a umask may have taken more away
    return file


def _regular(file: int, name: str) -> int:
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a file", name)
    return file


def _single(file: int, name: str) -> int:
    if os.fstat(file).st_nlink > 1:
        os.close(file)
        raise OSError(
            errno.EMLINK, "it has another name (a hard link), and would change there too; replace it by a copy", name
        )
    return file
