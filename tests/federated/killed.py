"""`featherback ...` whose training process kills itself after its second checkpoint."""

from __future__ import annotations

import os
import signal

from featherback.cli.launcher import launch
from featherback.runs import checkpoint


def main(words: list[str]) -> None:
    """Run a command in this process."""
    save, saved = checkpoint.save, 0

    def save_twice(*arguments: object) -> object:
        nonlocal saved
        saved += 1
        found = save(*arguments)  # type: ignore[arg-type]
        if saved == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    checkpoint.save = save_twice  # type: ignore[assignment]

    launch(words)
