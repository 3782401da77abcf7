"""Text files. Each file is one document."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from featherback.data.containers.base import NOT_UTF8, Document, Texts
from featherback.data.inputs import Input
from featherback.errors import FeatherbackError

_PIECE = 1 << 16  # bytes that are read at once


class Text(Texts):
    title = "plain text"
    suffixes = (".txt", ".md", ".markdown")

    def read(self, data: Input) -> Iterator[Document]:
        yield Document(data.name, read_text(data))


CONTAINER = Text()


def read_text(data: Input) -> Iterator[str]:
    """Yield the lines of a text with their line breaks (\\r\\n becomes \\n). Long lines come in pieces."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()  # a line may come in pieces
    number, held = 1, ""
    try:
        for piece in data.lines(_PIECE):
            text = held + decoder.decode(piece)
            held = "\r" if text.endswith("\r") else ""  # its line feed may be in the next piece
            yield text.removesuffix("\r").replace("\r\n", "\n")
            number += piece.endswith(b"\n")
        decoder.decode(b"", final=True)
        if held:
            yield held
    except UnicodeDecodeError:
        raise FeatherbackError(f"{data.name}, line {number}: {NOT_UTF8}") from None
