"""Web pages: their text, as a reader sees it."""

from __future__ import annotations

from collections.abc import Iterator

from featherback.core.placeholders import is_page
from featherback.data.containers.base import Document, Texts
from featherback.data.containers.text import read_text
from featherback.data.inputs import Input
from featherback.data.markup import pieces_of_html, tidied
from featherback.errors import FeatherbackError

_CHATS = {b"<title>Exported Data<": "Telegram", b"<title>ChatGPT Data Export<": "ChatGPT"}
"""Titles of web pages that programs write from chats."""


class Html(Texts):
    title = "web page"
    suffixes = (".html", ".htm", ".xhtml")

    def recognises_start(self, begin: bytes) -> bool:
        return is_page(begin)

    def read(self, data: Input) -> Iterator[Document]:
        head = data.head()
        if program := next((program for title, program in _CHATS.items() if title in head), None):
            raise FeatherbackError(
                f"{data.name} is a chat as a web page. Export it from {program} as JSON, and read that."
            )
        yield Document(data.name, _text(data))


CONTAINER = Html()


def _text(data: Input) -> Iterator[str]:
    try:
        yield from tidied(pieces_of_html(read_text(data)))
    except ValueError as error:
        raise FeatherbackError(f"Cannot read {data.name}: {error}.") from error
