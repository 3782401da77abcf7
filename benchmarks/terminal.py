"""Record a command on a terminal of its own, and draw the screen as an SVG picture.

The recording is a result file: the lines of the screen, with their colours as ANSI codes. The picture is made of it.
"""

from __future__ import annotations

import codecs
import csv
import os
import re
import sys
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.place import Place
    from benchmarks.results import Row

COLUMNS, LINES = 92, 30
DATA, OUT = "requests.csv", "helper/"
TRAIN = f"train smollm2-135m --data {DATA} --out {OUT} --memory 64MB"

_SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")
_STYLES = {"1": "bold", "2": "dim"}
_COLOURS = {"31": "red", "32": "green", "33": "yellow", "34": "blue", "35": "magenta", "36": "cyan"}

Cell = tuple[str, frozenset[str]]
"""A character, and the names of its colour and styles."""


def rows(place: Place) -> dict[str, Callable[[], Row]]:
    """One row: `featherback train` on the demo's requests, as a CSV file with the columns question and answer."""
    return {"train": lambda: _train(place)}


def _train(place: Place) -> Row:
    import tempfile

    from featherback.data.demo import TRAIN as CHATS
    from featherback.data.demo import pairs

    with tempfile.TemporaryDirectory(dir=place.folder, prefix="bench-") as folder:
        with (Path(folder) / DATA).open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(["question", "answer"])
            table.writerows(pairs(CHATS))
        words = [place.chat_model if word == "smollm2-135m" else word for word in TRAIN.split()]
        # Python and its libraries alone take more than 64 MB on some machines: the small model runs on all of them.
        words += ["--steps", "2", "--memory", "1GB"] if place.tiny else []
        output = record([sys.executable, "-m", "featherback", *words], Path(folder))
        screen = Screen(COLUMNS)
        screen.feed(output)
    shown = [line.replace(str(Path.home()), "~") for line in screen.lines()]
    return {"typed": f"featherback {TRAIN}", "columns": COLUMNS, "screen": shown}


def record(command: list[str], folder: Path) -> str:
    """Everything that a command writes to a terminal of COLUMNS x LINES. RuntimeError if it fails."""
    import fcntl
    import pty
    import struct
    import termios

    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        os.chdir(folder)
        os.environ["TERM"] = "xterm-256color"
        for name in ("NO_COLOR", "COLUMNS", "LINES"):
            os.environ.pop(name, None)
        os.execvp(command[0], command)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    parts = []
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not data:
            break
        parts.append(decoder.decode(data))
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    output = "".join(parts)
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"the recorded command failed: {output[-500:]}")
    return output


class Screen:
    """What a terminal shows: text, colours, and the cursor movements that a live view uses. It scrolls without end."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._lines: list[list[Cell]] = [[]]
        self._row = self._column = 0
        self._style: frozenset[str] = frozenset()

    def feed(self, text: str) -> None:
        """Show `text`. ValueError for a control sequence that is not known."""
        position = 0
        while position < len(text):
            character = text[position]
            if character == "\x1b":
                match = _SEQUENCE.match(text, position)
                if match is None:
                    raise ValueError(f"unknown control sequence {text[position : position + 8]!r}")
                self._control(match[1], match[2])
                position = match.end()
                continue
            position += 1
            if character == "\r":
                self._column = 0
            elif character == "\n":
                self._row += 1
                self._column = 0
            elif character >= " ":
                self._put(character)

    def lines(self) -> list[str]:
        """The lines, with ANSI codes for colours."""
        return [_ansi(line) for line in self._lines]

    def _put(self, character: str) -> None:
        if self._column == self._columns:
            self._row += 1
            self._column = 0
        line = self._line()
        line.extend([(" ", frozenset())] * (self._column + 1 - len(line)))
        line[self._column] = (character, self._style)
        self._column += 1

    def _line(self) -> list[Cell]:
        self._lines.extend([] for _ in range(self._row + 1 - len(self._lines)))
        return self._lines[self._row]

    def _control(self, numbers: str, letter: str) -> None:
        if letter == "m":
            for code in numbers.split(";"):
                name = _STYLES.get(code) or _COLOURS.get(code)
                self._style = self._style | {name} if name else frozenset()
        elif letter == "A":
            self._row = max(0, self._row - int(numbers or 1))
        elif letter == "K":
            del self._line()[self._column :]
        elif letter == "J":
            del self._line()[self._column :]
            del self._lines[self._row + 1 :]
        elif letter not in "hl":  # the cursor is hidden, or shown
            raise ValueError(f"unknown control sequence ESC [ {numbers}{letter}")


def _ansi(line: list[Cell]) -> str:
    codes = {name: code for code, name in (_STYLES | _COLOURS).items()}
    text, style = "", frozenset[str]()
    while line and line[-1] == (" ", frozenset()):
        line = line[:-1]
    for character, wanted in line:
        if wanted != style:
            text += "\x1b[0m" if style else ""
            text += "".join(f"\x1b[{codes[name]}m" for name in sorted(wanted))
            style = wanted
        text += character
    return text + ("\x1b[0m" if style else "")


# -- The picture --

FONT, ADVANCE, LEADING, MARGIN = 14, 8.43, 19, 20  # pixels
COLOURS = {
    "plain": "#d8dee9",
    "dim": "#7b8699",
    "bold": "#ffffff",
    "red": "#f28b82",
    "green": "#8fd694",
    "yellow": "#f2c76e",
    "blue": "#82aaff",
    "magenta": "#d7a6f2",
    "cyan": "#6fd3e3",
}
BACKGROUND = "#161b22"  # readable on a white page and on a dark one


def picture(typed: str, screen: list[str], columns: int = COLUMNS) -> str:
    """The end of a recorded run as SVG: the command, and the screen from the live view on."""
    shown = [f"\x1b[32m$\x1b[0m \x1b[1m{typed}\x1b[0m", *_end(screen)]
    width, height = round(columns * ADVANCE + 2 * MARGIN), len(shown) * LEADING + 2 * MARGIN + 22
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{escape(typed)}: the loss falls; memory, speed and answers are shown">',
        f'<rect width="{width}" height="{height}" rx="10" fill="{BACKGROUND}" stroke="#30363d"/>',
        *(
            f'<circle cx="{MARGIN + 20 * index}" cy="18" r="6" fill="{fill}"/>'
            for index, fill in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        ),
        f'<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="{FONT}">',
    ]
    for index, line in enumerate(shown):
        y = MARGIN + 22 + LEADING * index + FONT
        for column, text, style in _runs(line):
            x, length = MARGIN + column * ADVANCE, len(text) * ADVANCE
            weight = ' font-weight="bold"' if "bold" in style else ""
            parts.append(
                f'<text x="{x:.1f}" y="{y}" textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs"'
                f' style="white-space:pre" fill="{_fill(style)}"{weight}>{escape(text)}</text>'
            )
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


def plain(screen: list[str]) -> list[str]:
    """The lines of a recorded screen without their colours."""
    return [_SEQUENCE.sub("", line) for line in screen]


def _end(screen: list[str]) -> list[str]:
    """From the live view to the answers. The paths and the report's place, which come after them, are left out."""
    bare = plain(screen)
    first = next((index for index, line in enumerate(bare) if re.match(r" *step +\d+/\d+", line)), 0)
    last = next((index for index, line in enumerate(bare) if index > first and line.startswith("adapter")), None)
    lines = screen[first:last]
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def _runs(line: str) -> Iterator[tuple[int, str, frozenset[str]]]:
    """(column, text, style) of each stretch of one style that is not blank."""
    screen = Screen(10**6)
    screen.feed(line)
    cells = screen._lines[0]
    start = 0
    for index in range(1, len(cells) + 1):
        if index == len(cells) or cells[index][1] != cells[start][1]:
            text = "".join(character for character, _ in cells[start:index])
            blank = len(text) - len(text.lstrip())
            if text.strip():
                yield start + blank, text.strip(), cells[start][1]
            start = index


def _fill(style: frozenset[str]) -> str:
    colour = next((name for name in style if name in _COLOURS.values()), None)
    return COLOURS[colour or ("dim" if "dim" in style else "bold" if "bold" in style else "plain")]
