"""Start the process that decodes binary tables as a fork of this process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from featherback.data.decoders import process


class Forked:
    """A process as `subprocess.Popen` shows one."""

    def __init__(self, number: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self._number, self.stdin, self.stdout = number, stdin, stdout

    def wait(self) -> int:
        _, status = os.waitpid(self._number, 0)
        return os.waitstatus_to_exitcode(status)


@contextmanager
def forked(decoder: str, file: int, start: int, alone: bool, sheet: str = "") -> Iterator[Forked]:
    """As `decoded.started`."""
    (given, gives), (reads, written) = os.pipe(), os.pipe()
    number = os.fork()
    if not number:
        status = 1
        try:
            signal.alarm(0)
            for descriptor, place in ((given, 0), (written, 1)):
                os.dup2(descriptor, place)
            os.close(gives)
            os.close(2)
            sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
            process.main(decoder, str(start), str(int(alone)), "1", sheet, str(file))
            status = 0
        finally:
            os._exit(status)
    os.close(given)
    os.close(written)
    with os.fdopen(gives, "wb") as stdin, os.fdopen(reads, "rb") as stdout:
        try:
            yield Forked(number, stdin, stdout)  # type: ignore[misc]
        finally:
            with suppress(OSError, ChildProcessError):
                os.kill(number, signal.SIGKILL)
                os.waitpid(number, 0)
            with suppress(OSError):
                stdin.close()
