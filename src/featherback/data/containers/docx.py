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
_UNSEEN = {"pPr", "rPr", "sectPr", "Fallback", "annotation", "tracked-changes", "note"}
"""Elements whose content is no text of the document: settings, comments, changes, second versions of drawings."""


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

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._hidden += name in _UNSEEN
        self._inside += name in self._texts
        self._cells += name in _CELLS
        if not self._hidden and name in _MARKS:
            self.pieces.append(_MARKS[name])

    def end(self, name: str) -> None:
        self._hidden -= name in _UNSEEN
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
        if self._inside and not self._hidden:
            self.pieces.append(self._space.sub(" ", text))
