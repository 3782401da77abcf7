"""A real browser for the studio: an installed Chromium that playwright drives, and a studio to open in it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 120_000  # milliseconds
STEPS = ("model", "data", "settings", "training", "answers", "compare", "chat", "export")
SHOWN = {
    "model": ".option input",
    "data": ".example",
    "settings": ".forecast .figure",
    "training": ".chart:visible",
    "answers": ".exchange",
    "compare": ".chart:visible",
    "chat": "form.ask",
    "export": "fieldset",
}
"""Step -> what is seen once it is complete."""


def chromium() -> str | None:
    """The program of an installed Chromium; None if there is none."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium that is closed at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def studio(folder: Path, *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`featherback studio` of a folder: the address that it prints, and its process. It is ended by a signal."""
    command = [
        sys.executable,
        "-m",
        "featherback",
        "studio",
        *words,
        "--folder",
        str(folder),
        "--no-browser",
        "--port",
        "0",
    ]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().rpartition(" ")[2].strip(), process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
