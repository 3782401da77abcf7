"""How a process of Featherback ends when something went wrong."""

from __future__ import annotations

import sys

from featherback.errors import FeatherbackError


def report(error: Exception, debug: bool) -> int:
    """Tell the user in one line on standard error (after the traceback if `debug`); the exit status.

    2: a FeatherbackError, which the user can put right. 1: anything else, which is a bug.
    """
    if debug:
        import traceback

        traceback.print_exception(type(error), error, error.__traceback__)
    if isinstance(error, FeatherbackError):
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(
        f"error: unexpected {type(error).__name__}: {error}. This is a bug in Featherback; "
        "run the command again with --debug and report what it prints.",
        file=sys.stderr,
    )
    return 1
