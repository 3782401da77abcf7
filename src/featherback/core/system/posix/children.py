"""Children are forked where that is safe: on Linux, from a process with one thread. Elsewhere a fresh Python starts."""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import socket
import sys
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from featherback.core.exit_status import ChildFailedError, killed, reported
from featherback.core.naming import in_python, use_flags
from featherback.core.system.posix import processes, signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

FORKS = sys.platform == "linux"
"""Whether children are forked."""
_END = signal.SIGUSR1
"""What a parent sends to its child instead of the signal that it received, which a terminal sends to both of them."""
_HANDLED = (*signals.ENDING, _END)
_PIECE = 1 << 16  # bytes of a result that are received at once
handed: list[int] = []
"""Descriptors that this process will give to its parent."""


def hand_over(descriptor: int) -> None:
    """Give the parent an open descriptor of this child, with the child's result: a lock that it holds, say."""
    handed.append(os.dup(descriptor))


class Children:
    """Calls functions in children, one at a time. Within its context, signals that end a command end the child.

    The child then raises KeyboardInterrupt, and so does this process once the child has ended. `requested`: whether a
    signal has arrived. `peak`: the most resident memory in bytes that a child has used, 0 where that is unknown.
    `received`: the descriptors that children handed over (`hand_over`).
    """

    def __init__(self, forks: bool = FORKS) -> None:
        self.requested = False
        self.peak = 0
        self.received: list[int] = []
        self._forks = forks
        self._child = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        wanted = [number for number in _HANDLED if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._on_signal) for number in wanted}
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Only the first is passed on: a second one would interrupt what the child cleans up.
        if self._child and not self.requested:
            os.kill(self._child, _END)
        self.requested = True

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what `function(*arguments)` returns in a child. All of it must be picklable.

        Raises ChildFailedError if the child fails, and KeyboardInterrupt if a signal has arrived.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        result, result_end = socket.socketpair()
        life, life_end = os.pipe()  # the child ends when the writing end of this one is closed, with this process
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)  # until the child can handle them
        try:
            if self.requested:
                raise KeyboardInterrupt
            if not self._forks:
                self._child = _spawned(function, arguments, result_end.fileno(), life)
            elif not (child := os.fork()):
                result.close()
                os.close(life_end)
                _serve(function, arguments, result_end.fileno(), life)
            else:
                self._child = child
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            result_end.close()
            os.close(life)
        found = bytearray()
        with result:
            while (piece := socket.recv_fds(result, _PIECE, 1))[0]:
                found += piece[0]
                self.received += piece[1]
        for descriptor in self.received:
            os.set_inheritable(descriptor, True)  # for the children that follow
        ended, self._child = self._child, 0
        _, status, usage = os.wait4(ended, 0)
        os.close(life_end)
        self.peak = max(self.peak, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
        code = os.waitstatus_to_exitcode(status)
        if code == signals.INTERRUPTED or (self.requested and code):
            raise KeyboardInterrupt
        if code:
            raise ChildFailedError(_explained(function, code))
        return pickle.loads(found)


def _explained(function: Callable[..., Any], code: int) -> int:
    """Return the exit status of a failed child. If a signal has ended it, say so, because it could not."""
    return code if code > 0 else killed(function, signal.Signals(-code).name)


def _spawned(function: Callable[..., Any], arguments: tuple[Any, ...], result: int, life: int) -> int:
    """Start a fresh Python that calls `function`; return its process id."""
    for descriptor in (result, life):
        os.set_inheritable(descriptor, True)
    import base64

    asked = base64.b64encode(pickle.dumps((in_python(), function, arguments))).decode()
    words = [sys.executable, "-m", __name__, asked, str(result), str(life)]
    return os.posix_spawn(sys.executable, words, os.environ, setsigmask=_HANDLED)


def _serve(function: Callable[..., Any], arguments: tuple[Any, ...], result: int, life: int) -> NoReturn:
    """Call `function` in this child, send what it returns, and end."""
    status = 1
    try:
        _obey_parent(function.__name__, life)
        value = function(*arguments)
        sys.stdout.flush()
        signal.signal(_END, signal.SIG_IGN)  # the work is done
        with socket.socket(fileno=result) as stream:
            data = memoryview(pickle.dumps(value))
            stream.sendall(data[socket.send_fds(stream, [data], handed) :])
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


def _obey_parent(name: str, life: int) -> None:
    """Let this child end with its parent, and only at its parent's word."""
    for number in signals.ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(_END, _end)
    signal.signal(signal.SIGIO, signal.SIG_DFL if sys.platform == "linux" else _end_at_once)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, os.O_ASYNC)  # the system sends SIGIO, which ends a process, at the end of the pipe
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    processes.name(name.strip("_"))


def _end(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(1)


def main(arguments: list[str]) -> NoReturn:
    """Be the child that `_spawned` started."""
    import base64

    python, function, values = pickle.loads(base64.b64decode(arguments[0]))
    use_flags(not python)
    _serve(function, values, int(arguments[1]), int(arguments[2]))


if __name__ == "__main__":
    from featherback.core.terminal import open_streams

    sys.modules["featherback.core.system.posix.children"] = sys.modules["__main__"]  # by which name others import it
    open_streams()
    main(sys.argv[1:])
