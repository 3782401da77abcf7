"""Files and folders, by name in an open folder. Nothing here follows a link."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

_NONBLOCK = os.O_NONBLOCK  # opening a pipe does not wait
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_FICLONE = 0x40049409
"""The Linux ioctl that makes a file share another file's blocks until one of them is written."""


class Folder:
    """An open folder. What is done in it stays in it, even if another folder takes its name meanwhile.

    All methods raise OSError.
    """

    def __init__(self, path: Path, within: Folder | None = None) -> None:
        """Open `path`; with `within`, a name in that folder, which must not be a link."""
        flags = _FOLDER if within is None else _FOLDER | os.O_NOFOLLOW
        self._file: int = os.open(path, flags, dir_fd=None if within is None else within._file)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    @property
    def is_private(self) -> bool:
        """Whether only its owner can enter it."""
        return not os.fstat(self._file).st_mode & 0o077

    def make_private(self) -> None:
        """Let only the owner enter it, if it belongs to this user and its disk has permissions."""
        _tighten(self._file, 0o700)

    def create(self, name: str) -> int:
        """Create a file for reading and writing and return its descriptor. It is private if the folder is."""
        return self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def append(self, name: str) -> int:
        """Open a file for appending, created if it is missing, and return its descriptor."""
        return self._open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NONBLOCK)

    def change(self, name: str) -> int:
        """Open an existing file for reading and writing and return its descriptor."""
        return os.open(name, os.O_RDWR | os.O_NOFOLLOW | _NONBLOCK, dir_fd=self._file)

    def _open(self, name: str, flags: int) -> int:
        private = self.is_private
        file = os.open(name, flags | os.O_NOFOLLOW, 0o600 if private else 0o666, dir_fd=self._file)
        if private and stat.S_ISREG(os.fstat(file).st_mode):
            _tighten(file, 0o600)  # the umask may have removed the owner's permissions
        return file

    def make_folder(self, name: str, private: bool) -> None:
        """Create a folder in this one."""
        os.mkdir(name, 0o700 if private else 0o777, dir_fd=self._file)
        if private:  # the umask may have removed the owner's permissions
            with suppress(OSError):  # exFAT has no permissions
                os.chmod(name, 0o700, dir_fd=self._file)

    def entries(self) -> list[os.DirEntry[str]]:
        """Return what is in it."""
        with os.scandir(self._file) as entries:
            return list(entries)

    def make_file_private(self, name: str) -> None:
        """Let only the owner read a file, if its disk has permissions."""
        with suppress(OSError):  # another user's file, or exFAT, which has no permissions
            os.chmod(name, 0o600, dir_fd=self._file)

    def replace(self, name: str, by: str) -> None:
        """Rename `by` to `name`, which is replaced."""
        os.replace(by, name, src_dir_fd=self._file, dst_dir_fd=self._file)

    def link(self, source: Path, name: str) -> None:
        """Make `name` a hard link to a file, which is not followed if it is a link."""
        os.link(source, name, dst_dir_fd=self._file, follow_symlinks=False)

    def unlink(self, name: str) -> None:
        """Delete a file."""
        os.unlink(name, dir_fd=self._file)

    def sync(self) -> None:
        """Flush its entries to the disk."""
        os.fsync(self._file)


def is_link(status: os.stat_result) -> bool:
    """Whether what `os.lstat` describes is a link."""
    return stat.S_ISLNK(status.st_mode)


def is_open_to_others(status: os.stat_result) -> bool:
    """Whether others than its owner may read what `os.lstat` describes."""
    return bool(status.st_mode & 0o077)


def is_owned(status: os.stat_result) -> bool:
    """Whether what `os.lstat` describes belongs to this user."""
    return status.st_uid == os.getuid()


def remove_open(path: Path) -> None:
    """Delete a file that stays open, so that its folder can be deleted now."""
    path.unlink()


def disk_bytes(status: os.stat_result) -> int:
    """Return the bytes that a file takes on its disk."""
    return status.st_blocks * 512


def open_to_read(name: str | os.PathLike[str], flags: int) -> int:
    """Open a file, as an `opener` of `open`. It does not wait if the file has become a pipe meanwhile."""
    return os.open(name, flags | _NONBLOCK)


def share_blocks(source: int, copy: int) -> bool:
    """Make the open file `copy` share the blocks of `source`, and return whether that worked."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        fcntl.ioctl(copy, _FICLONE, source)
    except OSError:  # on another disk, or the file system cannot share blocks
        return False
    return True


def _tighten(file: int, mode: int) -> None:
    """Set the mode of an open file or folder, if it belongs to this user and its disk has permissions."""
    if stat.S_IMODE(os.fstat(file).st_mode) != mode:
        with suppress(OSError):
            os.fchmod(file, mode)
