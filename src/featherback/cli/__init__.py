"""The command line. `main` is the console script."""

from __future__ import annotations


def main() -> None:
    """Run the command that sys.argv names, and exit with its status."""
    try:
        from featherback.cli.app import run
    except KeyboardInterrupt:  # before there is anything to undo
        raise SystemExit(130) from None
    from featherback.terminal import open_streams

    open_streams()
    raise SystemExit(run())
