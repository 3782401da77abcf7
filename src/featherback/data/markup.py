"""The text of HTML, as a reader sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from itertools import chain

_UNSEEN = {
    *("script", "style", "head", "title", "template", "noscript", "svg", "object", "iframe"),
    *("audio", "video", "canvas", "datalist", "noframes", "noembed"),  # text for old browsers, proposals for an input
}
_PARAGRAPHS = {
    *("p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "dl", "table", "blockquote", "pre", "section", "article"),
    *("header", "footer", "main", "aside", "nav", "figure", "hr"),
}
_LINES = {"div", "li", "tr", "br", "dt", "dd", "figcaption", "address", "option"}
_VOID = {"br", "hr", "img", "input", "meta", "link", "area", "base", "col", "embed", "source", "track", "wbr"}
_ENDED_BY_NEXT = {"p", "li", "dt", "dd", "tr", "td", "th", "option"}
"""Elements that need no end tag, because the next one ends them."""
_NOT_SHOWN = re.compile(r"(?:^|;)\s*display\s*:\s*none\b", re.I)
_MARK = re.compile(r"<[a-zA-Z/!?]")
_FED = 1 << 16  # characters
_LONGEST_TAG = 8 << 20  # characters; a tag may hold a picture
_LONGEST_LINE = 1 << 20  # characters; a longer one is passed on in parts
_SPACE = re.compile(r"[ \t\r\n\f]+")


def text_of_html(markup: str, skipped: frozenset[str] = frozenset()) -> str:
    """Return the text of HTML, with an empty line between paragraphs. `skipped`: elements whose text is left out."""
    return "".join(tidied(pieces_of_html([markup], skipped))).strip()


def pieces_of_html(markup: Iterable[str], skipped: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the text of HTML that comes in pieces. Raises ValueError if a tag is too long.

    A tag that does not end before the text does is left out, as browsers do.
    """
    reader = _Reader(skipped)
    held, size = list[str](), 0
    for piece in chain(markup, [None]):
        if piece is not None:
            held.append(piece)
            size += len(piece)
            if size < max(_FED, len(reader.rawdata)):  # an unfinished tag is parsed again with each part of it
                continue
        reader.feed("".join(held))
        held, size = [], 0
        if len(reader.rawdata) > _LONGEST_TAG:
            raise ValueError(f"a tag, a script or a comment is longer than {_LONGEST_TAG >> 20} MB")
        yield reader.take()
    if not _MARK.match(reader.rawdata):
        reader.close()
    yield reader.take()


def tidied(pieces: Iterable[str]) -> Iterator[str]:
    """Yield a text in lines without spaces at their ends, and with at most one empty line between them."""
    held, gap, begun = "", "", False
    for piece in chain(pieces, ["\n"]):
        held += piece
        *lines, held = held.split("\n")
        for line in (line.strip(" \t") for line in lines):
            if line:
                yield f"{gap}{line}\n"
            begun = begun or bool(line)
            gap = "\n" if begun and not line else ""
        if len(held) > _LONGEST_LINE:
            yield gap + held
            held, gap, begun = "", "", True


class _Reader(HTMLParser):
    def __init__(self, skipped: frozenset[str]) -> None:
        super().__init__()
        self.texts = [""]
        self._unseen = _UNSEEN | skipped
        self._hidden: str | None = None  # the element that hides what is in it
        self._depth = self._preformatted = 0

    def take(self) -> str:
        """Return the text that was read since the last call. Its last character is kept, for the text that follows."""
        text = "".join(self.texts[1:])
        self.texts = [text[-1:] or self.texts[0]]
        return text

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Skip `<![...]>`, as browsers do with all that they do not know."""
        try:
            return super().parse_marked_section(i, report)
        except AssertionError:
            return self.parse_bogus_comment(i)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden is not None and self._ends_hidden(tag):
            self._hidden = None
        if self._hidden is not None:
            self._depth += tag == self._hidden
            return
        if tag in self._unseen or (tag not in _VOID and _is_hidden(attrs)):
            self._hidden, self._depth = tag, 1
            return
        self._break(tag)
        self._preformatted += tag == "pre"
        if tag == "li":
            self.texts.append("- ")

    def handle_endtag(self, tag: str) -> None:
        if self._hidden is not None:
            self._depth -= tag == self._hidden
            if self._depth == 0 or (self._hidden == "head" and tag == "html"):
                self._hidden = None
        elif tag not in _VOID:
            self._break(tag)
            self._preformatted = max(0, self._preformatted - (tag == "pre"))

    def handle_data(self, data: str) -> None:
        if self._hidden is None and (text := data if self._preformatted else self._collapsed(data)):
            self.texts.append(text)

    def _ends_hidden(self, tag: str) -> bool:
        """Whether a start tag ends the hidden element, whose end tag may be missing."""
        if self._hidden == "head":
            return tag == "body" or tag in _PARAGRAPHS or tag in _LINES
        return tag == self._hidden and tag in _ENDED_BY_NEXT

    def _collapsed(self, data: str) -> str:
        text = _SPACE.sub(" ", data)
        return text[1:] if text.startswith(" ") and self._at_space() else text

    def _at_space(self) -> bool:
        return self.texts[-1][-1:] in ("\n", " ", "")

    def _break(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self.texts.append("\n\n")
        elif tag in _LINES and (tag == "br" or not self.texts[-1].endswith("\n")):
            self.texts.append("\n")
        elif tag in ("td", "th") and not self._at_space():
            self.texts.append(" ")


def _is_hidden(attrs: list[tuple[str, str | None]]) -> bool:
    """Whether the attributes of an element hide what is in it."""
    return any(name == "hidden" or (name == "style" and _NOT_SHOWN.search(value or "")) for name, value in attrs)
