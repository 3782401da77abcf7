"""Documents of word processors, DOCX and ODT: the text of their paragraphs and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from featherback.data.containers.packed import Archive, Packed, parse

_PARAGRAPHS = {"p", "h", "tbl", "table"}
_MARKS = {"tab": "\t", "br": "\n", "cr": "\n", "line-break": "\n", "s": " ", "noBreakHyphen": "-"}
_CELLS = {"tc", "table-cell"}
_ROWS = {"tr", "table-row"}
_UNSEEN = {
    *("pPr", "rPr", "sectPr", "annotation", "tracked-changes", "del", "moveFrom", "note"),
    *("Fallback", "title", "desc", "binary-data", "script"),
}
"""Elements whose content is no text of the document: settings, comments, changes, notes, what belongs to pictures."""
_OFF = {"0", "false", "off"}


class Docx(Packed):
    title = "document of Word"
    suffixes: ClassVar[tuple[str, ...]] = (".docx",)
    member: ClassVar[str] = "word/document.xml"
    texts: ClassVar[frozenset[str]] = frozenset({"t"})
    """Elements that hold the text."""
    space: ClassVar[str] = r"\n"
    """What stands for one space in the text."""

    def text(self, archive: Archive) -> Iterator[str]:
        found = _Found(self.texts, re.compile(self.space))
        for _ in parse(archive.pieces(self.member), found.start, found.end, found.add):
            yield "".join(found.pieces)
            found.pieces.clear()


CONTAINER = Docx()


class _Found:
    """Collects the text of the elements of a document."""

    def __init__(self, texts: frozenset[str], space: re.Pattern[str]) -> None:
        self.pieces: list[str] = []
        self._texts, self._space = texts, space
        self._inside = self._hidden = self._cells = 0
        self._unseen: list[bool] = []  # for each open element, whether it hides what is in it
        self._vanished = False  # the run's text is hidden
        self._style = ""
        self._invisible: set[str] = set()  # styles of hidden text

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        hides = attributes.get("display") == "none"
        if name == "style":
            self._style = attributes.get("name", "")
        elif name == "text-properties" and hides:
            self._invisible.add(self._style)
        elif name == "vanish" and self._hidden == 1:  # only in the settings of a run
            self._vanished = attributes.get("val") not in _OFF
        self._unseen.append(name in _UNSEEN or hides or attributes.get("style-name") in self._invisible)
        self._hidden += self._unseen[-1]
        self._inside += name in self._texts
        self._cells += name in _CELLS
        if not self._hidden and not self._vanished and name in _MARKS:
            self.pieces.append(_MARKS[name])

    def end(self, name: str) -> None:
        self._hidden -= self._unseen.pop()
        self._vanished = self._vanished and name != "r"
        self._inside -= name in self._texts
        self._cells -= name in _CELLS
        if self._hidden:
            return
        if name in _PARAGRAPHS:
            self.pieces.append(" " if self._cells else "\n\n")
        elif name in _CELLS and not self._cells:
            self.pieces.append("\t")
        elif name in _ROWS and not self._cells:
            self.pieces.append("\n")

    def add(self, text: str) -> None:
        if self._inside and not self._hidden and not self._vanished:
            self.pieces.append(self._space.sub(" ", text))
