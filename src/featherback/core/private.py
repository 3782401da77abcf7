"""Create files and folders safely: never through a link, under unpredictable names, as private as their folder.

A run directory holds private text and may come from someone else. So only its owner can enter it, everything created in
it is private too, whatever the umask, and links that lead out of it are never followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import IO

from featherback.core.system import folders
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

_DEEPEST = 32
"""Deepest nesting of folders accepted in a run directory. Featherback itself uses two levels."""


def temporary_name(name: str, end: str = "tmp") -> str:
    """Return an unpredictable hidden name for a file beside `name`: .NAME.PROCESS-RANDOM.END"""
    return f".{name}.{os.getpid()}-{os.urandom(8).hex()}.{end}"


def create(folder: folders.Folder, name: str, buffering: int = -1) -> IO[bytes]:
    """Create a file in an open folder and open it for reading and writing. Raises OSError if the name is taken."""
    return os.fdopen(_require_regular(folder.create(name), name), "w+b", buffering)


def create_anew(path: Path) -> IO[bytes]:
    """Create the file `path`, replacing any file of that name. Raises OSError if it is a folder."""
    with folders.Folder(path.parent) as folder:
        with suppress(FileNotFoundError):
            folder.unlink(path.name)
        return create(folder, path.name)


def open_to_append(path: Path) -> IO[bytes]:
    """Open the file `path` for appending, creating it if it is missing. Raises OSError for a symbolic or hard link."""
    with folders.Folder(path.parent) as folder:
        file = _require_regular(folder.append(path.name), path.name)
    return os.fdopen(_require_one_name(file, path.name), "ab")


def open_to_change(path: Path) -> IO[bytes]:
    """Open the existing file `path` for reading and overwriting. Raises OSError for a symbolic or hard link."""
    with folders.Folder(path.parent) as folder:
        file = folder.change(path.name)
    return os.fdopen(_require_one_name(_require_regular(file, path.name), path.name), "r+b")


def make_folder(path: Path) -> None:
    """Create a folder and its parents if they are missing, each as private as its parent. Raises OSError on failure."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with folders.Folder(path.parent) as folder, suppress(FileExistsError):
        create_folder(folder, path.name)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path))


def create_folder(folder: folders.Folder, name: str, private: bool = False) -> None:
    """Create a folder in an open folder. It is private if its parent is, or if `private`.

    Raises OSError if it exists.
    """
    folder.make_folder(name, private or folder.is_private)


def make_private_folder(path: Path) -> None:
    """Create a folder that only its owner can enter, from its first moment, or make an existing folder private.

    Parents are created as usual. Raises OSError on failure.
    """
    make_folder(path.parent)
    if not path.is_dir():
        with suppress(FileExistsError), folders.Folder(path.parent) as folder:
            create_folder(folder, path.name, private=True)
    with folders.Folder(path) as folder:
        folder.make_private()


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
        blobs = _blob_folders(path) if folders.is_link(record) else []
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


def _is_in(path: str, homes: list[str]) -> bool:
    return any(path == home or path.startswith(os.path.join(home, "")) for home in homes)


def _check(root: Path, homes: list[str], tighten: bool) -> None:
    try:
        with folders.Folder(root) as folder:
            if tighten:
                folder.make_private()
            _check_entries(folder, root, homes, Counter() if tighten else None, 1)
    except OSError as error:
        raise FeatherbackError(f"Cannot read {error.filename or root}: {error.strerror}.") from error


def _check_entries(
    folder: folders.Folder, path: Path, homes: list[str], names: Counter[tuple[int, int]] | None, depth: int
) -> None:
    """Check a folder's entries. `names` counts each file's names found so far; None: files are not made private."""
    if depth > _DEEPEST:
        raise FeatherbackError(f"{path} is nested too deeply for a run directory.")
    for entry in folder.entries():
        place, status = path / entry.name, entry.stat(follow_symlinks=False)
        mode = status.st_mode
        if folders.is_link(status):
            if (target := _target_outside(place, homes)) is not None:
                raise FeatherbackError(
                    f"{place} is a link to {target}, outside the run directory, and is not followed. Replace the link "
                    f"by the file it points to, or delete it."
                )
        elif stat.S_ISDIR(mode):
            if depth == 2 and path.name == LOGS:
                continue
            with folders.Folder(Path(entry.name), folder) as below:
                if names is not None:
                    below.make_private()
                _check_entries(below, place, homes, names, depth + 1)
        elif not stat.S_ISREG(mode):
            raise FeatherbackError(f"{place} is not a file or a folder and cannot stay in a run directory. Delete it.")
        elif names is not None and folders.is_open_to_others(status):
            file = (status.st_dev, status.st_ino)
            names[file] += 1
            if names[file] == status.st_nlink:  # all its names are in the run directory
                folder.make_file_private(entry.name)


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
