"""The command line. `main` is the console script."""

from __future__ import annotations

from featherback import signals


def main() -> None:
    """Run the command that sys.argv names, and exit with its status."""
    signals.block()  # until there is someone to take them
    from featherback.host.interrupt import exit_with

    exit_with(_run)


def _run() -> int:
    signals.unblock()
    from featherback.cli.app import run
    from featherback.terminal import open_streams

    open_streams()
    return run()
