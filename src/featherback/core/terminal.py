"""Output to the terminal: escapes text that must not reach it unchanged, and handles output that fails.

Data, templates, file names and metadata may hold escape sequences that move the cursor, recolour or hide text, or
answer in the user's name. They are shown as text: \\u001b.
"""

from __future__ import annotations

import errno
import io
import os
import re
import select
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from typing_extensions import Self

# Control characters except tab and line feed, line and paragraph separators, marks that reverse the reading order,
# and lone surrogates, which file names may contain.
_HIDDEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAKS = re.compile("[\t\n]")
_STYLE = re.compile("\x1b\\[[0-9;]*m")
_COMMAND = "featherback "


DEBUG = "FEATHERBACK_DEBUG"
"""The environment variable that --debug sets for the processes that a command starts."""
PROGRESS_SECONDS = 0.5
_LONG_SECONDS = 2.0
_COLUMNS, _NARROWEST = 80, 40


class OutputError(FeatherbackError):
    """Raised when standard output can no longer be written."""


def clean(text: str, one_line: bool = False) -> str:
    """Return `text` with control characters escaped. `one_line` also escapes tabs and line breaks.

    Escaping keeps JSON equivalent.
    """
    shown = _HIDDEN.sub(_escape, text)
    return _BREAKS.sub(_escape, shown) if one_line else shown


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def several(number: float, noun: str) -> str:
    """Return a count with its noun: "1 step", "2 steps", "0.5 epochs"."""
    shown = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{shown} {noun}" if number == 1 else f"{shown} {noun}s"


def quoted(*words: object) -> str:
    """Return the words of a command, quoted for a shell."""
    return " ".join(map(quote, words))


def quote(word: object) -> str:
    """Return a word of a command, quoted for this system's shells."""
    from featherback.core.system import shells

    return str(shells.quote(str(word), lambda text: bool(_HIDDEN.search(text) or _BREAKS.search(text))))


def say(text: str = "", end: str = "\n", file: IO[str] | None = None, flush: bool = False) -> None:
    """Print cleaned text, by default on standard output."""
    say_styled(clean(text), end, file, flush)


def folded(text: str, columns: int | None, label: str = "") -> str:
    """Wrap `text` between words to `columns` columns, indented below `label`, which starts the first line.

    The result is one line if `columns` is None (no terminal), or if the text holds a command, so that the command can
    be pasted. Both arguments must be clean; they may hold Featherback's own styles.
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
    """Return the width of the terminal that `file` is, or None if it is not a terminal."""
    if not file.isatty():
        return None
    try:
        return os.get_terminal_size(file.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


def say_styled(text: str, end: str = "\n", file: IO[str] | None = None, flush: bool = False) -> None:
    """Print text with Featherback's own escape sequences. The rest of the text must be clean already."""
    print(text, end=end, file=file, flush=flush)


def print_error(text: str) -> None:
    """Print a line on standard error, ignoring failure."""
    with suppress(OSError, ValueError):
        say(text, file=sys.stderr, flush=True)


class Progress:
    """A status line on standard error that is rewritten in place and erased at the end. Silent without a terminal."""

    def __init__(self, doing: str) -> None:
        self._doing, self._shown, self._shown_at = doing, False, time.monotonic()

    def show(self, done: str) -> None:
        """Replace the status line with `done`."""
        if sys.stderr is None or not sys.stderr.isatty():
            return
        from shutil import get_terminal_size  # takes memory, and waiting processes show nothing

        width = max(20, get_terminal_size().columns) - 1
        self._write("\r\x1b[K" + clean(f"{self._doing}: {done}", one_line=True)[:width])
        self._shown, self._shown_at = True, time.monotonic()

    def clear(self) -> None:
        """Erase the status line, because another line is printed."""
        if self._shown:
            self._write("\r\x1b[K")
        self._shown = False

    def is_due(self) -> bool:
        """Return whether the line has been shown for long enough to be replaced."""
        return time.monotonic() - self._shown_at > PROGRESS_SECONDS

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            say_styled(text, end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


class Preparing(Progress):
    """Progress of tokenising a file."""

    def __init__(self, path: str) -> None:
        super().__init__(f"preparing {path}")

    def update(self, done: Mapping[str, int]) -> None:
        """Show the counts that `data.prepare` reports: read and of in bytes, examples, tokens."""
        part = 100 * done["read"] // max(1, done["of"])
        self.show(f"{part} % read, {done['examples']:,} examples, {done['tokens']:,} tokens")


class Converting(Progress):
    """Progress of writing `size` bytes of weights. Without a terminal, one line is printed if it takes long."""

    def __init__(self, doing: str, size: int) -> None:
        super().__init__(doing)
        self._size, self._written, self._started_at, self._announced = size, 0, time.monotonic(), False

    def wrote(self, size: int) -> None:
        """Count `size` more bytes as written."""
        self._written += size
        if self.is_due():
            self.show(f"{100 * self._written // self._size} %")
        if not (self._shown or self._announced) and time.monotonic() - self._started_at > _LONG_SECONDS:
            print_error(self._doing)
            self._announced = True


class Counting(Progress):
    """Progress of reading a file to its end."""

    def __init__(self, name: str) -> None:
        super().__init__(f"counting {name}")
        self._read = 0

    def read(self, size: int, of: int) -> None:
        """Count `size` more bytes as read, of `of` in total."""
        self._read += size
        if self.is_due():
            self.show(f"{100 * self._read // max(1, of)} % read")


def open_streams(lasting: bool = False) -> None:
    """Make the standard streams safe to use, in whatever state the process was started.

    A closed stream becomes the null device, so that none of our files takes its number. Writes to a non-blocking output
    wait. If output fails, FeatherbackError is raised, or BrokenPipeError for a closed pipe; with `lasting` the program
    continues without it. Characters that the terminal lacks are shown as "?". Python warnings are hidden.
    """
    if not sys.warnoptions and DEBUG not in os.environ:
        warnings.simplefilter("ignore")  # warnings of NumPy and others are for developers
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(spare, True)  # a program that replaces this process needs it too
    os.close(spare)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
    if isinstance(sys.stdin, io.TextIOWrapper):  # so that an invalid byte can be reported with its line
        sys.stdin.reconfigure(errors="surrogateescape")
    sys.stdout = _text(1, "standard output", sys.stdout, lasting)
    sys.stderr = _text(2, "standard error", sys.stderr, True)


def _text(number: int, name: str, before: Any, lasting: bool) -> io.TextIOWrapper:
    raw = _Output(number, name, lasting)
    encoding = getattr(before, "encoding", None) or "utf-8"
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, encoding, "replace", line_buffering=number == 2 or raw.isatty())


class _Output(io.RawIOBase):
    """A raw output descriptor. After the first failure, which is reported once, all output is dropped."""

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
                print_error(f"note: {self.name} was lost ({error.strerror}); the program continues without it")
            return size

    def _written(self, data: Any) -> int:
        while True:
            try:
                return os.write(self._number, data)
            except BlockingIOError:
                select.select([], [self._number], [])
