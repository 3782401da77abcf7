"""How a Featherback process reports an error and which exit status it ends with."""

from __future__ import annotations

import errno
import os

from featherback.core.terminal import clean, print_error
from featherback.errors import FeatherbackError

_LONGEST = 2000  # characters of a message that are shown
_BUG_ERRNOS = (errno.EBADF, errno.EFAULT, errno.EINVAL, errno.ENOTTY)  # system errors that only a bug can cause


def report(error: BaseException, debug: bool) -> int:
    """Print the error in one line on standard error and return the exit status. `debug` prints the traceback first.

    The status is 2 for a FeatherbackError or a system error that the user can fix, and 1 for anything else, which is a
    bug. A closed pipe is also 1, and prints nothing because nobody is reading.
    """
    if debug:
        import traceback

        print_error("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    if isinstance(error, BrokenPipeError):
        return 1
    if (said := sentence(error)) is not None:
        print_error(f"error: {_line(said)}")
        return 2
    print_error(
        f"error: unexpected {_line(f'{type(error).__name__}: {error}')}. This is a bug in Featherback; "
        "run the command again with --debug and report what it prints."
    )
    return 1


def sentence(error: BaseException) -> str | None:
    """Return the message for an error that the user can fix, or None for any other error."""
    if isinstance(error, FeatherbackError):
        return str(error)
    if isinstance(error, MemoryError):
        return "Not enough memory. Close other programs, or use a smaller batch size or sequence length."
    if isinstance(error, FileNotFoundError) and not error.filename and _lacks_working_directory():
        return "The working directory no longer exists. Change to another one, or use absolute paths."
    if isinstance(error, OSError) and error.strerror and error.errno not in _BUG_ERRNOS:
        return f"{error.strerror}: {error.filename}." if error.filename else f"{error.strerror}."
    return None


def _lacks_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _line(text: str) -> str:
    shown = clean(" ".join(text.split("\n")), one_line=True)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]} ..."
