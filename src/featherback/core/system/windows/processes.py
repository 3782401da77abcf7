"""Starting processes, and finding out about others."""

from __future__ import annotations

import ctypes
import msvcrt
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from ctypes import wintypes
from pathlib import Path
from typing import Any

from featherback.core.system.windows import api
from featherback.errors import FeatherbackError

assert sys.platform == "win32"


_STILL_ACTIVE, _QUERY, _ACCESS_DENIED = 259, 0x1000, 5
APART: dict[str, Any] = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
"""Options for processes that Ctrl-C in our console does not reach, and that `kill_all` and `interrupt` do."""


def restart() -> None:
    """Do nothing: what the environment says is read when libraries are loaded, which is still to come."""


def start(words: Sequence[str], passed: int, **options: Any) -> subprocess.Popen[bytes]:
    """Start a program that gets the open file `passed`. Its last argument is a word for `received`."""
    with api.inherited([passed]) as (about, [handle]):
        return subprocess.Popen([*words, str(handle)], startupinfo=about, **options)


def received(word: str) -> int:
    """Return the descriptor of the file that the parent has passed under this word (`start`)."""
    return msvcrt.open_osfhandle(int(word), os.O_BINARY | os.O_NOINHERIT)


def is_running(process: int) -> bool:
    """Return whether a process with this number runs, or may run."""
    if not 0 < process < 1 << 32:
        return False
    handle = api.kernel32.OpenProcess(_QUERY, False, process)
    if not handle:
        return ctypes.get_last_error() == _ACCESS_DENIED
    try:
        code = wintypes.DWORD()
        return bool(api.kernel32.GetExitCodeProcess(handle, ctypes.byref(code))) and code.value == _STILL_ACTIVE
    finally:
        api.close(handle)


def kill_all(leader: int) -> None:
    """Kill a process that was started APART. The processes that it started end with it (`children`, closed pipes)."""
    with suppress(OSError):  # it has ended
        os.kill(leader, signal.SIGTERM)


def interrupt(process: int) -> None:
    """Ask a process that was started APART, from this console, to end, as Ctrl-Break does."""
    os.kill(process, signal.CTRL_BREAK_EVENT)


def cache_folder() -> Path:
    """Return the user's folder for caches."""
    return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")


def name(text: str) -> None:
    """Do nothing: Windows' processes have no names of their own."""


def need_forks(what: str) -> None:
    """Raise FeatherbackError: `what` is made of forks and passed sockets, which Windows lacks."""
    raise FeatherbackError(f"{what} is not available on Windows yet. Use it in WSL2 (docs/windows.md).")


def has_screen() -> bool:
    """Whether a browser with windows can be opened."""
    return True
