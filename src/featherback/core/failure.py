"""How a process of Featherback ends when something went wrong."""

from __future__ import annotations

import errno
import os

from featherback.core.terminal import clean, complain
from featherback.errors import FeatherbackError

_MOST = 2000  # characters of a sentence
_OUR_FAULT = (errno.EBADF, errno.EFAULT, errno.EINVAL, errno.ENOTTY)  # a system's error that nobody else can cause


def report(error: BaseException, debug: bool) -> int:
    """Tell the user in one line on standard error (after the traceback if `debug`); the exit status.

    2: a FeatherbackError, or the system's refusal, which the user can put right. 1: anything else, which is a bug; or
    a closed pipe, of which nothing is said, as nobody is there who would read it.
    """
    if debug:
        import traceback

        complain("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    if isinstance(error, BrokenPipeError):
        return 1
    if (said := sentence(error)) is not None:
        complain(f"error: {_line(said)}")
        return 2
    complain(
        f"error: unexpected {_line(f'{type(error).__name__}: {error}')}. This is a bug in Featherback; "
        "run the command again with --debug and report what it prints."
    )
    return 1


def sentence(error: BaseException) -> str | None:
    """What the user can put right; None if that is nothing."""
    if isinstance(error, FeatherbackError):
        return str(error)
    if isinstance(error, MemoryError):
        return "There is not enough memory for this: close other programs, or ask for less."
    if isinstance(error, FileNotFoundError) and not error.filename and _nowhere():
        return "The working directory is gone: change to another one, or name whole paths."
    if isinstance(error, OSError) and error.strerror and error.errno not in _OUR_FAULT:
        return f"{error.strerror}: {error.filename}." if error.filename else f"{error.strerror}."
    return None


def _nowhere() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _line(text: str) -> str:
    shown = clean(" ".join(text.split("\n")), one_line=True)
    return shown if len(shown) <= _MOST else f"{shown[:_MOST]} ..."
