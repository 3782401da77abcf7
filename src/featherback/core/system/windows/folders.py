"""Files and folders, by name in an open folder. Nothing here follows a link (a reparse point that names another place).

Windows has no operations relative to an open folder that Python can call. But a folder cannot be renamed or deleted
while a handle is open that does not share this, and neither can the folders above it. So its path stays its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

from featherback.core.system.windows import access, api

assert sys.platform == "win32"


_SURROGATE = 0x20000000  # of a reparse tag: it names another place. OneDrive's files have tags without it.
_REPLACE, _WRITE_THROUGH = 1, 8


class Folder:
    """An open folder. What is done in it stays in it: it keeps its name while it is open. All methods raise OSError."""

    def __init__(self, path: Path, within: Folder | None = None) -> None:
        """Open `path`; with `within`, a name in that folder, which must not be a link."""
        self._path: str = os.path.abspath(path) if within is None else os.path.join(within._path, path)
        try:
            status = os.stat(self._path) if within is None else os.lstat(self._path)
        except OSError as error:
            raise api.failure(self._path, error.winerror) from None
        if is_link(status):
            raise OSError(errno.ELOOP, "it is a link", self._path)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._path)
        share = api.SHARE_READ | api.SHARE_WRITE
        self._handle = api.open_file(self._path, api.READ_CONTROL, share, api.OPEN_EXISTING, api.FOLDERS)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        api.close(self._handle)

    @property
    def is_private(self) -> bool:
        """Whether only its owner can enter it."""
        return access.is_private(self._path)

    def make_private(self) -> None:
        """Let only the owner enter it, if its disk has permissions."""
        with suppress(OSError):
            if not self.is_private:
                access.make_private(self._path)

    def create(self, name: str) -> int:
        """Create a file for reading and writing and return its descriptor. It inherits the folder's access list."""
        return self._open(name, api.READ | api.WRITE, api.CREATE_NEW, os.O_RDWR)

    def append(self, name: str) -> int:
        """Open a file for appending, created if it is missing, and return its descriptor."""
        return self._open(name, api.READ | api.APPEND, api.OPEN_ALWAYS, os.O_WRONLY | os.O_APPEND)

    def change(self, name: str) -> int:
        """Open an existing file for reading and writing and return its descriptor."""
        return self._open(name, api.READ | api.WRITE, api.OPEN_EXISTING, os.O_RDWR)

    def _open(self, name: str, wanted: int, creation: int, flags: int) -> int:
        path = self._at(name)
        file = api.descriptor(api.open_file(path, wanted, api.SHARE, creation, api.NOT_LINKS | 0x80), flags)
        try:
            if is_link(os.lstat(path)):
                raise OSError(errno.ELOOP, "it is a link", path)
        except BaseException:
            os.close(file)
            raise
        return file

    def make_folder(self, name: str, private: bool) -> None:
        """Create a folder in this one."""
        attributes = ctypes.byref(access.private()) if private else None
        worked = api.kernel32.CreateDirectoryW(api.long(self._at(name)), attributes)
        if not worked and private and ctypes.get_last_error() not in (183, 3):  # it exists, or a parent does not
            worked = api.kernel32.CreateDirectoryW(api.long(self._at(name)), None)  # exFAT has no access lists
        api.check(worked, self._at(name))

    def entries(self) -> list[os.DirEntry[str]]:
        """Return what is in it."""
        with os.scandir(self._path) as entries:
            return list(entries)

    def make_file_private(self, name: str) -> None:
        """Let only the owner read a file. It has inherited that from its folder."""

    def replace(self, name: str, by: str) -> None:
        """Rename `by` to `name`, which is replaced, and flush that to the disk."""
        source, target = api.long(self._at(by)), api.long(self._at(name))
        api.check(api.kernel32.MoveFileExW(source, target, _REPLACE | _WRITE_THROUGH), self._at(name))

    def link(self, source: Path, name: str) -> None:
        """Make `name` a hard link to a file, which is not followed if it is a link."""
        if is_link(os.lstat(source)):
            raise OSError(errno.ELOOP, "it is a link", os.fspath(source))
        os.link(source, self._at(name))

    def unlink(self, name: str) -> None:
        """Delete a file."""
        os.unlink(self._at(name))

    def sync(self) -> None:
        """Do nothing: `replace` flushes what it does, and Windows flushes no folders."""

    def _at(self, name: str) -> str:
        return os.path.join(self._path, name)


def is_link(status: os.stat_result) -> bool:
    """Whether what `os.lstat` describes is a link: a symbolic link, a junction, a mount point."""
    return stat.S_ISLNK(status.st_mode) or bool(getattr(status, "st_reparse_tag", 0) & _SURROGATE)


def is_open_to_others(status: os.stat_result) -> bool:
    """False: a file's access list is its folder's, and `Folder` looks after that."""
    return False


def is_owned(status: os.stat_result) -> bool:
    """True: a folder in which this user could set the access list is this user's."""
    return True


def remove_open(path: Path) -> None:
    """Delete a file that stays open, so that its folder can be deleted now.

    Where Windows keeps the name until the file is closed, it is a hidden name in the folder above.
    """
    beside = path.parent.parent / f".{path.name}.{os.getpid()}-{os.urandom(8).hex()}.tmp"
    os.rename(path, beside)
    os.unlink(beside)


def disk_bytes(status: os.stat_result) -> int:
    """Return the bytes that a file takes on its disk: `positioned.allocate` takes all at once."""
    return status.st_size


def open_to_read(name: str | os.PathLike[str], flags: int) -> int:
    """Open a file, as an `opener` of `open`. Others may rename or delete the file meanwhile, as on other systems."""
    path = os.fspath(name)
    return api.descriptor(api.open_file(path, api.READ, api.SHARE, api.OPEN_EXISTING, 0x80), flags)


def share_blocks(source: int, copy: int) -> bool:
    """Return False: NTFS files do not share blocks."""
    return False
