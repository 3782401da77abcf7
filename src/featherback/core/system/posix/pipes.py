"""Talk to a process in both directions at once."""

from __future__ import annotations

import os
import select
import subprocess
from contextlib import suppress

PIECE = 1 << 16  # bytes read from the process at once


class Talk:
    """The pipes to and from a process. What it has not read yet is kept and sent while `receive` waits."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        self._unsent = bytearray()

    def send(self, data: bytes) -> None:
        """Send bytes, or keep them if the pipe is full."""
        self._unsent += data
        self._write()

    def receive(self) -> bytes:
        """Wait for bytes from the process and return them; nothing if it has ended."""
        while True:
            waiting = select.poll()  # unlike select, works with any number of open files
            waiting.register(self._stdout, select.POLLIN)
            if self._unsent:
                waiting.register(self._stdin, select.POLLOUT)
            ready = {file for file, _ in waiting.poll()}
            if self._stdin in ready:
                self._write()
            if self._stdout in ready:
                return os.read(self._stdout, PIECE)

    def _write(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # the pipe is full, or the process ended (see receive)
            while self._unsent:
                del self._unsent[: os.write(self._stdin, self._unsent)]
