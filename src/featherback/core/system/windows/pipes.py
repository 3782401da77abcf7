"""Talk to a process in both directions at once: a thread writes, because Windows' pipes have no `poll`."""

from __future__ import annotations

import os
import subprocess
import sys
from queue import SimpleQueue
from threading import Thread

assert sys.platform == "win32"


PIECE = 1 << 16  # bytes read from the process at once


class Talk:
    """The pipes to and from a process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdout = process.stdout.fileno()
        self._waiting: SimpleQueue[bytes] = SimpleQueue()
        Thread(target=_write, args=(process, self._waiting), daemon=True).start()

    def send(self, data: bytes) -> None:
        """Send bytes, or keep them if the pipe is full."""
        self._waiting.put(data)

    def receive(self) -> bytes:
        """Wait for bytes from the process and return them; nothing if it has ended."""
        try:
            return os.read(self._stdout, PIECE)
        except BrokenPipeError:
            return b""


def _write(process: subprocess.Popen[bytes], waiting: SimpleQueue[bytes]) -> None:
    assert process.stdin is not None
    try:
        while True:
            left = memoryview(waiting.get())
            while left:
                left = left[os.write(process.stdin.fileno(), left) :]
    except (OSError, ValueError):  # the process has ended, or was stopped
        pass
