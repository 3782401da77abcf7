"""Children are fresh Pythons. They inherit two pipes: one for their result, and one that carries their parent's word.

Ctrl-C reaches all processes of a console. Children ignore it, and wait for a byte from their parent, or for its end.
"""

from __future__ import annotations

import _thread
import base64
import ctypes
import msvcrt
import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from threading import Thread
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from featherback.core.exit_status import ChildFailedError, killed, reported
from featherback.core.naming import in_python, use_flags
from featherback.core.system.windows import api, processes, signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

assert sys.platform == "win32"


FORKS = False
"""Whether children are forked."""
_END = signal.SIGABRT
"""What a child simulates when its parent asks it to end: a signal that nobody else uses."""
_PAUSE = 0.1  # seconds between looks for signals, which do not interrupt the wait for a child
_DUPLICATE, _SAME_ACCESS = 0x40, 2
_PIECE = 1 << 16  # bytes of a result that are received at once
handed: list[int] = []
"""Descriptors that this process will give to its parent."""


def hand_over(descriptor: int) -> None:
    """Give the parent an open descriptor of this child, with the child's result: a lock that it holds, say."""
    handed.append(os.dup(descriptor))


class Children:
    """Calls functions in children, one at a time. Within its context, signals that end a command end the child.

    The child then raises KeyboardInterrupt, and so does this process once the child has ended. `requested`: whether a
    signal has arrived. `peak`: the most resident memory in bytes that a child has used. `received`: the descriptors
    that children handed over (`hand_over`); the children that follow have them under the same numbers.
    """

    def __init__(self, forks: bool = FORKS) -> None:
        self.requested = False
        self.peak = 0
        self.received: list[int] = []
        self._word: int | None = None  # the pipe on which the child waits for our word
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        wanted = [number for number in signals.ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._on_signal) for number in wanted}
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Only the first is passed on: a second one would interrupt what the child cleans up.
        if self._word is not None and not self.requested:
            with suppress(OSError):  # the child has ended
                os.write(self._word, b"\0")
        self.requested = True

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what `function(*arguments)` returns in a child. All of it must be picklable.

        Raises ChildFailedError if the child fails, and KeyboardInterrupt if a signal has arrived.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        if self.requested:
            raise KeyboardInterrupt
        result, result_end = os.pipe()
        life, word = os.pipe()
        try:
            child = _started(function, arguments, result_end, life, self.received)
        except BaseException:
            os.close(result)
            os.close(word)
            raise
        finally:
            os.close(result_end)
            os.close(life)
        self._word = word
        try:
            if self.requested:
                with suppress(OSError):
                    os.write(word, b"\0")
            found = bytearray()
            reader = Thread(target=_read, args=(result, found))
            reader.start()
            while reader.is_alive():
                reader.join(_PAUSE)
            while (code := _waited(child)) is None:
                pass
        finally:
            self._word = None
            os.close(word)
        self.peak = max(self.peak, api.memory_of(int(child._handle)).peak_working_set)  # type: ignore[attr-defined]
        if code == signals.INTERRUPTED or (self.requested and code):
            raise KeyboardInterrupt
        if code:
            killer = signals.name_of(code)
            raise ChildFailedError(code if killer is None else killed(function, killer))
        value, handles = pickle.loads(found)
        self.received += [api.descriptor(handle, os.O_RDWR) for handle in handles]
        return value


def _read(file: int, found: bytearray) -> None:
    with suppress(OSError):
        while piece := os.read(file, _PIECE):
            found += piece
    os.close(file)


def _waited(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(_PAUSE)
    except subprocess.TimeoutExpired:
        return None


def _started(
    function: Callable[..., Any], arguments: tuple[Any, ...], result: int, life: int, kept: list[int]
) -> subprocess.Popen[bytes]:
    """Start a fresh Python that calls `function`."""
    asked = base64.b64encode(pickle.dumps((in_python(), function, arguments))).decode()
    with api.inherited([result, life, *kept]) as (about, handles):
        files = [f"{number}={handle}" for number, handle in zip(kept, handles[2:])]
        words = ["-m", __name__, asked, str(os.getpid()), *map(str, handles[:2]), *files]
        python, environment = api.python(os.environ)
        return subprocess.Popen([python, *words], startupinfo=about, env=environment, stdin=0, stdout=1, stderr=2)


def _serve(function: Callable[..., Any], arguments: tuple[Any, ...], parent: int, result: int, life: int) -> NoReturn:
    """Call `function` in this child, send what it returns, and end."""
    status = 1
    try:
        _obey_parent(life)
        value = function(*arguments)
        sys.stdout.flush()
        signal.signal(_END, signal.SIG_IGN)  # the work is done
        left = memoryview(pickle.dumps((value, [_given(descriptor, parent) for descriptor in handed])))
        while left:
            left = left[os.write(result, left) :]
        status = 0
    except KeyboardInterrupt:
        status = signals.INTERRUPTED
    except ChildFailedError as failed:  # a child of this one, which has printed the reason
        status = failed.status
    except BaseException as error:
        signal.signal(_END, signal.SIG_IGN)
        status = reported(error)
    finally:
        os._exit(status)


def _given(descriptor: int, process: int) -> int:
    """Give an open descriptor to another process and return its handle there."""
    there = api.kernel32.OpenProcess(_DUPLICATE, False, process)
    api.check(there)
    found, here = api.HANDLE(), api.kernel32.GetCurrentProcess()
    try:
        handle = msvcrt.get_osfhandle(descriptor)
        worked = api.kernel32.DuplicateHandle(here, handle, there, ctypes.byref(found), 0, False, _SAME_ACCESS)
        api.check(worked)
    finally:
        api.close(there)
    return int(found.value or 0)


def _obey_parent(life: int) -> None:
    """Let this child end with its parent, and only at its parent's word."""
    for number in signals.ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(_END, _end)

    def listen() -> None:
        with suppress(OSError):
            while os.read(life, 1):
                _thread.interrupt_main(_END)
        os._exit(1)

    Thread(target=listen, daemon=True).start()


def _end(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str]) -> NoReturn:
    """Be the child that `_started` started."""
    asked, parent, result, life, *kept = arguments
    for each in kept:
        number, _, handle = each.partition("=")
        file = processes.received(handle)
        if file != int(number):
            os.dup2(file, int(number), inheritable=False)
            os.close(file)
    ends = processes.received(result), processes.received(life)
    python, function, values = pickle.loads(base64.b64decode(asked))
    use_flags(not python)
    _serve(function, values, int(parent), *ends)


if __name__ == "__main__":
    from featherback.core.terminal import open_streams

    sys.modules["featherback.core.system.windows.children"] = sys.modules["__main__"]  # by which name others import it
    open_streams()
    main(sys.argv[1:])
