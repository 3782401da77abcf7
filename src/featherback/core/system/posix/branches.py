"""Processes that each follow a socket, and begin with what was prepared once: a first process forks them.

The first process is a module that calls `serve`. Its standard input is a socket. It first carries the data, and then
orders of 8 bytes: 0, with a socket's descriptor, asks for a process that follows this socket, and is answered with its
id; an id asks for that process to be killed, and is answered with its exit status.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock
from typing import NoReturn, TypeVar

from featherback.core.messages import receive, send
from featherback.core.system.posix import limits, processes, signals

T = TypeVar("T")
_ORDER = struct.Struct("<q")


class Branches:
    """The processes that a module makes of some data. Used in any thread.

    `each`: the bytes that a process takes for itself of what was prepared. `OSError`: the module's first process has
    ended.
    """

    def __init__(self, module: str, data: bytes, environment: Mapping[str, str]) -> None:
        """Return when the data is prepared. `environment`: variables besides those of this process."""
        self.each, self._lock = 0, Lock()
        self._orders, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**os.environ, **environment},
            )
        with suppress(OSError):  # the process ended, as the next line finds
            send(self._orders, data)
        self._reply()

    def begin(self) -> tuple[int, socket.socket]:
        """Start a process; return its number and our end of its socket. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            return self._ordered(0, theirs.fileno()), ours

    def end(self, number: int) -> int:
        """Kill a process that was begun, unless it has ended; return its exit status. Raises OSError."""
        return os.waitstatus_to_exitcode(self._ordered(number))

    def close(self) -> None:
        """End all processes."""
        self._orders.close()
        self._process.wait()

    def _ordered(self, order: int, *descriptors: int) -> int:
        with self._lock:
            with suppress(OSError):
                socket.send_fds(self._orders, [_ORDER.pack(order)], descriptors)
            return self._reply()

    def _reply(self) -> int:
        words = self._orders.recv(_ORDER.size, socket.MSG_WAITALL)
        if not words:
            raise ConnectionResetError
        return int(_ORDER.unpack(words)[0])


def serve(
    name: str, prepare: Callable[[bytes], T], follow: Callable[[socket.socket, T, int | None], object]
) -> NoReturn:
    """Be the processes of a module: prepare the data, and call `follow` with each socket, in a process named `name`.

    `follow` also gets the bytes of address space that are in use when it is called.
    """
    signals.ignore_interrupts()  # the parent process handles Ctrl-C
    limits.leave_no_core()
    orders = socket.socket(fileno=0)
    prepared = prepare(receive(orders))
    gc.collect()
    gc.freeze()  # so that the collector does not write on memory that the processes share
    used, children = limits.address_space(), set[int]()
    orders.sendall(_ORDER.pack(0))
    while True:
        words, descriptors, *_ = socket.recv_fds(orders, _ORDER.size, 1, socket.MSG_WAITALL)
        if not words:
            break
        [pid] = _ORDER.unpack(words)
        if pid:
            os.kill(pid, signal.SIGKILL)
            children.remove(pid)
            orders.sendall(_ORDER.pack(os.waitpid(pid, 0)[1]))
            continue
        if (pid := os.fork()) == 0:
            orders.close()
            _branch(name, follow, socket.socket(fileno=descriptors[0]), prepared, used)
        os.close(descriptors[0])
        children.add(pid)
        orders.sendall(_ORDER.pack(pid))
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    sys.exit()


def _branch(name: str, follow: Callable[..., object], *arguments: object) -> NoReturn:
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(quiet, number)
        processes.name(name)
        follow(*arguments)
    except BaseException:  # panics of libraries are not Exceptions; the exit status tells
        os._exit(1)
    os._exit(0)


async def readable(stream: int) -> None:
    """Wait until a socket can be read, by its descriptor."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(stream, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(stream)
