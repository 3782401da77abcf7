"""The text of HTML, as a reader sees it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_UNSEEN = {"script", "style", "head", "template", "noscript", "svg", "object", "iframe"}
_PARAGRAPHS = {
    *("p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "dl", "table", "blockquote", "pre", "section", "article"),
    *("header", "footer", "main", "aside", "nav", "figure", "hr"),
}
_LINES = {"div", "li", "tr", "br", "dt", "dd", "figcaption", "address", "option"}
_VOID = {"br", "hr", "img", "input", "meta", "link"}
_SPACE = re.compile(r"[ \t\r\n\f]+")


def text_of_html(markup: str, skipped: frozenset[str] = frozenset()) -> str:
    """Return the text of HTML, with an empty line between paragraphs. `skipped`: elements whose text is left out."""
    reader = _Reader(skipped)
    reader.feed(markup)
    reader.close()
    lines = (line.strip(" \t") for line in "".join(reader.texts).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


class _Reader(HTMLParser):
    def __init__(self, skipped: frozenset[str]) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._unseen = _UNSEEN | skipped
        self._hidden: str | None = None  # the element that hides what is in it
        self._depth = self._preformatted = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden is not None:
            self._depth += tag == self._hidden
            return
        if tag in self._unseen:
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
        if self._hidden is None:
            self.texts.append(data if self._preformatted else self._collapsed(data))

    def _collapsed(self, data: str) -> str:
        text = _SPACE.sub(" ", data)
        return text[1:] if text.startswith(" ") and self._at_space() else text

    def _at_space(self) -> bool:
        return not self.texts or self.texts[-1][-1:] in ("\n", " ", "")

    def _break(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self.texts.append("\n\n")
        elif tag in _LINES and (tag == "br" or (self.texts and not self.texts[-1].endswith("\n"))):
            self.texts.append("\n")
        elif tag in ("td", "th") and not self._at_space():
            self.texts.append(" ")
