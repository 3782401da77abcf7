"""Where text goes to the terminal: the one place that knows what must not go there as it is, and what can fail.

Data, templates, file names and metadata may hold escape sequences that move the cursor, recolour or hide text, or
answer in the user's name. They are shown as what they are: \\u001b.
"""

from __future__ import annotations

import errno
import io
import os
import re
import select
import shlex
import shutil
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from typing_extensions import Self

# Control characters but tab and line feed; line and paragraph separators; marks that reverse the order of what is
# read; halves of surrogate pairs, as file names hold them.
_HIDDEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAKS = re.compile("[\t\n]")
_STYLE = re.compile("\x1b\\[[0-9;]*m")
_COMMAND = "featherback "


DEBUG = "FEATHERBACK_DEBUG"
"""The variable that --debug sets, for the processes that a command starts."""
PROGRESS_SECONDS = 0.5
_LONG_SECONDS = 2.0
_COLUMNS, _NARROWEST = 80, 40


class OutputError(FeatherbackError):
    """What was to be told cannot be."""


def clean(text: str, one_line: bool = False) -> str:
    """`text` with control characters as escapes; with `one_line` tabs and line breaks as well.

    JSON stays the same JSON.
    """
    shown = _HIDDEN.sub(_escape, text)
    return _BREAKS.sub(_escape, shown) if one_line else shown


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def several(number: float, noun: str) -> str:
    """ "1 step", "2 steps", "0.5 epochs"."""
    shown = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{shown} {noun}" if number == 1 else f"{shown} {noun}s"


def quoted(*words: object) -> str:
    """Words of a command as a shell reads them."""
    return shlex.join(map(str, words))


def say(text: str = "", end: str = "\n", file: IO[str] | None = None, flush: bool = False) -> None:
    """Print text (default: on standard output), cleaned."""
    say_styled(clean(text), end, file, flush)


def folded(text: str, columns: int | None, label: str = "") -> str:
    """`label` and `text`, broken between words into lines of a terminal with so many columns, the text's under each
    other. One line where there is no terminal (None), and of a text with a command in it, which could not be pasted.

    Both are clean; they may hold styles of our own.
    """
    if columns is None or _COMMAND in text:
        return label + text
    room = max(_NARROWEST, columns) - 1 - len(label)
    lines, used = [""], 0
    for number, word in enumerate(text.split(" ")):
        size = len(_STYLE.sub("", word))
        if number and used + 1 + size > room:
            lines.append(word)
            used = size
        else:
            lines[-1] += f" {word}" if number else word
            used += size + (number > 0)
    return label + f"\n{'':<{len(label)}}".join(lines)


def columns_of(file: IO[str]) -> int | None:
    """Columns of the terminal that `file` is; None if it is none."""
    if not file.isatty():
        return None
    try:
        return os.get_terminal_size(file.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


def say_styled(text: str, end: str = "\n", file: IO[str] | None = None, flush: bool = False) -> None:
    """Print text that holds escape sequences of our own; what is not ours in it was cleaned."""
    print(text, end=end, file=file, flush=flush)


def complain(text: str) -> None:
    """Print a line on standard error, where that can be done."""
    with suppress(OSError, ValueError):
        say(text, file=sys.stderr, flush=True)


class Progress:
    """A line on standard error that is written again and again, and taken away in the end. Nothing where that is no
    terminal."""

    def __init__(self, doing: str) -> None:
        self._doing, self._shown, self._told = doing, False, time.monotonic()

    def show(self, done: str) -> None:
        """Say how far it is, in place of what was said."""
        if sys.stderr is None or not sys.stderr.isatty():
            return
        width = max(20, shutil.get_terminal_size().columns) - 1
        self._write("\r\x1b[K" + clean(f"{self._doing}: {done}", one_line=True)[:width])
        self._shown, self._told = True, time.monotonic()

    def is_due(self) -> bool:
        """Whether the line has stood long enough."""
        return time.monotonic() - self._told > PROGRESS_SECONDS

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            say_styled(text, end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._write("\r\x1b[K")


class Preparing(Progress):
    """The progress of turning a file into tokens."""

    def __init__(self, path: str) -> None:
        super().__init__(f"preparing {path}")

    def update(self, done: Mapping[str, int]) -> None:
        """`done`: what `data.prepare` tells."""
        part = 100 * done["read"] // max(1, done["of"])
        self.show(f"{part} % read, {done['examples']:,} examples, {done['tokens']:,} tokens")


class Converting(Progress):
    """The progress of writing so many bytes of weights; where there is no terminal, one line if it takes long."""

    def __init__(self, doing: str, size: int) -> None:
        super().__init__(doing)
        self._size, self._written, self._begun, self._said = size, 0, time.monotonic(), False

    def wrote(self, size: int) -> None:
        """So many more bytes are written."""
        self._written += size
        if self.is_due():
            self.show(f"{100 * self._written // self._size} %")
        if not (self._shown or self._said) and time.monotonic() - self._begun > _LONG_SECONDS:
            complain(self._doing)
            self._said = True


class Counting(Progress):
    """The progress of reading a file through."""

    def __init__(self, name: str) -> None:
        super().__init__(f"counting {name}")
        self._read = 0

    def read(self, size: int, of: int) -> None:
        """So many more bytes are read, of so many in all."""
        self._read += size
        if self.is_due():
            self.show(f"{100 * self._read // max(1, of)} % read")


def open_streams(lasting: bool = False) -> None:
    """Make standard input and output such as the program can work with, whatever it was started with.

    A stream that is closed becomes the empty device, so that no file of ours takes its number. Output that does not
    wait is waited for. Output that fails raises FeatherbackError, a closed pipe BrokenPipeError; with `lasting` the
    program goes on without it. A character that the terminal lacks is shown as "?". Python's warnings are not shown.
    """
    if not sys.warnoptions and DEBUG not in os.environ:
        warnings.simplefilter("ignore")  # NumPy's and others' are for those who work on the program
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(spare, True)  # a process that takes this one's place needs it as well
    os.close(spare)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
    if isinstance(sys.stdin, io.TextIOWrapper):  # a wrong byte is told of the line it is in
        sys.stdin.reconfigure(errors="surrogateescape")
    sys.stdout = _text(1, "standard output", sys.stdout, lasting)
    sys.stderr = _text(2, "standard error", sys.stderr, True)


def _text(number: int, name: str, before: Any, lasting: bool) -> io.TextIOWrapper:
    raw = _Output(number, name, lasting)
    encoding = getattr(before, "encoding", None) or "utf-8"
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, encoding, "replace", line_buffering=number == 2 or raw.isatty())


class _Output(io.RawIOBase):
    """A descriptor to write to. Once it has failed, what follows is dropped: the failure is told once."""

    def __init__(self, number: int, name: str, lasting: bool) -> None:
        self._number, self.name, self._lasting, self._lost = number, name, lasting, False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: Any) -> int:
        size = len(memoryview(data).cast("B"))
        if self._lost:
            return size
        try:
            return self._written(data)
        except OSError as error:
            self._lost = True
            if not self._lasting:
                if error.errno == errno.EPIPE:
                    raise
                raise OutputError(f"Cannot write to {self.name}: {error.strerror}.") from error
            if self._number == 1:
                complain(f"note: {self.name} is lost ({error.strerror}); the work goes on without it")
            return size

    def _written(self, data: Any) -> int:
        while True:
            try:
                return os.write(self._number, data)
            except BlockingIOError:
                select.select([], [self._number], [])
