"""The command line. `main` is the console script."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that sys.argv names, and exit with its status."""
    try:
        from featherback.cli.app import run
    except KeyboardInterrupt:  # before there is anything to undo
        raise SystemExit(130) from None
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that lacks a character shows "?"
            stream.reconfigure(errors="replace")
    raise SystemExit(run())
