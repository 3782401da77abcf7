"""Processes that each follow a socket, and begin with what was prepared: Windows cannot fork, so each prepares it.

Each is a fresh Python of a module that calls `serve`. One more than are needed waits, prepared, for the next socket.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock
from typing import NoReturn, TypeVar

from featherback.core.messages import receive, send
from featherback.core.system.windows import api, limits, signals

assert sys.platform == "win32"


T = TypeVar("T")
_PAUSE = 0.01  # seconds between looks at a socket: not every event loop of Windows waits for one


class Branches:
    """The processes that a module makes of some data. Used in any thread.

    `each`: the bytes that a process takes for itself of what was prepared. `OSError`: the process that waited has
    ended.
    """

    def __init__(self, module: str, data: bytes, environment: Mapping[str, str]) -> None:
        """Return when the data is prepared. `environment`: variables besides those of this process."""
        self._module, self._data, self._environment, self._lock = module, data, environment, Lock()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._is_ready = False
        self._spare = self._started()
        process, _ = self._prepared()
        self.each = int(api.memory_of(int(process._handle)).pagefile)  # type: ignore[attr-defined]

    def begin(self) -> tuple[int, socket.socket]:
        """Start a process; return its number and our end of its socket. Raises OSError."""
        with self._lock:
            process, stream = self._prepared()
            self._running[process.pid] = process
            self._is_ready, self._spare = False, self._started()
        return process.pid, stream

    def end(self, number: int) -> int:
        """Kill a process that was begun, unless it has ended; return its exit status. Raises OSError."""
        process = self._running.pop(number)
        with suppress(OSError):  # it has ended
            process.kill()
        return process.wait()

    def close(self) -> None:
        """End all processes."""
        process, stream = self._spare
        stream.close()
        for each in (process, *self._running.values()):
            with suppress(OSError):
                each.kill()
            each.wait()

    def _started(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        python, environment = api.python({**os.environ, **self._environment})
        process = subprocess.Popen([python, "-m", self._module], stdin=pipe, stdout=none, env=environment)
        assert process.stdin is not None
        with theirs, suppress(OSError), process.stdin as stdin:  # it ended, as `_prepared` finds
            pickle.dump((theirs.share(process.pid), self._data), stdin)
        return process, ours

    def _prepared(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Return the process that waits, when it has prepared the data, and our end of its socket."""
        if not self._is_ready:
            try:
                receive(self._spare[1])
            except EOFError:
                raise ConnectionResetError from None
            self._is_ready = True
        return self._spare


def serve(
    name: str, prepare: Callable[[bytes], T], follow: Callable[[socket.socket, T, int | None], object]
) -> NoReturn:
    """Be a process of a module: prepare the data, and call `follow` with the socket. `name`: on other systems.

    `follow` also gets the bytes of memory that are in use when it is called.
    """
    signals.ignore_interrupts()  # the parent process handles Ctrl-C
    shared, data = pickle.load(sys.stdin.buffer)
    stream, prepared = socket.fromshare(shared), prepare(data)
    send(stream)  # ready
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)
        follow(stream, prepared, limits.address_space())
    except BaseException:  # panics of libraries are not Exceptions; the exit status tells
        os._exit(1)
    os._exit(0)


async def readable(stream: int) -> None:
    """Wait until a socket can be read, by its descriptor."""
    while not select.select([stream], [], [], 0)[0]:
        await asyncio.sleep(_PAUSE)
