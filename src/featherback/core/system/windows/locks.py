"""Locks on folders, between processes. A lock ends with the last process that has its descriptor open.

It is a hidden file beside the folder, `.NAME.lock`, that nobody else can open meanwhile. The system deletes it when it
is closed, also if the process is killed.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path

from featherback.core.system.windows import api

assert sys.platform == "win32"


_PAUSE = 0.05  # seconds between attempts


def hold(folder: Path, wait: bool = True) -> int:
    """Lock a folder and return the descriptor that holds the lock.

    Raises BlockingIOError if another process holds it, unless `wait`, and OSError if the folder cannot be locked.
    """
    while True:
        try:
            return _open(folder, api.OPEN_ALWAYS)
        except BlockingIOError:
            if not wait:
                raise
            time.sleep(_PAUSE)


def is_held(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder."""
    try:
        os.close(_open(folder, api.OPEN_EXISTING))
    except BlockingIOError:
        return True
    except OSError:  # nobody has made the file, or the folder cannot be read
        return False
    return False


def _open(folder: Path, creation: int) -> int:
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(folder))
    whole = os.path.realpath(folder)
    path = os.path.join(os.path.dirname(whole), f".{os.path.basename(whole)}.lock")
    flags = api.DELETE_ON_CLOSE | api.HIDDEN | api.NOT_LINKS
    try:
        handle = api.open_file(path, api.READ | api.WRITE | api.DELETE, 0, creation, flags)
    except OSError as error:
        if error.winerror == api.SHARING_VIOLATION:
            raise BlockingIOError(*error.args) from None
        raise
    return api.descriptor(handle, os.O_RDWR)
