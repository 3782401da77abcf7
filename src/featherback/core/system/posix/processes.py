"""Starting processes, and finding out about others."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from featherback.core.system.posix import signals

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from pathlib import Path


APART: dict[str, Any] = {"start_new_session": True}
"""Options for processes that Ctrl-C in our terminal does not reach, and that `kill_all` and `interrupt` do."""


def restart() -> NoReturn:
    """Start this program anew in this process, with the environment as it is now."""
    signals.block()  # until the program can handle them
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def start(words: Sequence[str], passed: int, **options: Any) -> subprocess.Popen[bytes]:
    """Start a program that gets the open file `passed`. Its last argument is a word for `received`."""
    import subprocess

    return subprocess.Popen([*words, str(passed)], pass_fds=[passed], **options)


def received(word: str) -> int:
    """Return the descriptor of the file that the parent has passed under this word (`start`)."""
    return int(word)


def is_running(process: int) -> bool:
    """Return whether a process with this number runs, or may run."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's process
        pass
    return True


def kill_all(leader: int) -> None:
    """Kill a process that was started APART, with the processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def interrupt(process: int) -> None:
    """Ask a process that was started APART to end, as Ctrl-C does."""
    os.kill(process, signal.SIGINT)


def cache_folder() -> Path:
    """Return the user's folder for caches."""
    from pathlib import Path

    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def name(text: str) -> None:
    """Name this process in lists of processes (Linux), and so for `process_tree.tree`."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(text[:15])  # the system keeps so many characters


def need_forks(what: str) -> None:
    """Raise FeatherbackError if this system lacks the forks and the passed sockets that `what` is made of."""


def has_screen() -> bool:
    """Whether a browser with windows can be opened. Browsers for the terminal would take it over."""
    return sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
