"""Locks on folders, between processes. A lock ends with the last process that has its descriptor open."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def hold(folder: Path, wait: bool = True) -> int:
    """Lock a folder and return the descriptor that holds the lock.

    Raises BlockingIOError if another process holds it, unless `wait`, and OSError if the folder cannot be locked.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_held(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)  # which releases the lock
    return False
