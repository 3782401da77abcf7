"""Text files. Each file is one document."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterator

from featherback.data.containers.base import Document, Texts, not_utf8
from featherback.data.inputs import Input
from featherback.errors import FeatherbackError

MARKDOWN = (".md", ".markdown")
_PIECE = 1 << 16  # bytes that are read at once
_FRONT_MATTER = {"---": ("---", "..."), "+++": ("+++",)}
"""The line that begins a block of facts about a Markdown file -> the lines that end it."""
_KEY = re.compile(r"#|[\w\"'][^:=\n]*(?::\s|=)")


class Text(Texts):
    title = "plain text"
    suffixes = (".txt", *MARKDOWN)

    def read(self, data: Input) -> Iterator[Document]:
        lines = read_text(data)
        yield Document(data.name, _without_front_matter(lines, data.left_out) if data.suffix in MARKDOWN else lines)


CONTAINER = Text()


def _without_front_matter(lines: Iterator[str], left_out: Counter[str]) -> Iterator[str]:
    """Leave out and count a block between lines `---` at the beginning, if it begins like YAML or TOML."""
    held, size = list[str](), 0
    for line in lines:
        held.append(line)
        size += len(line)
        ends = _FRONT_MATTER.get(held[0].rstrip(), ())
        if len(held) > 1 and line.rstrip() in ends:
            if _KEY.match(next(filter(str.strip, held[1:-1]), "")):
                held.clear()
                left_out["front-matter block"] += 1
            break
        if not ends or size > _PIECE:
            break
    yield from held
    yield from lines


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
        raise FeatherbackError(f"{data.name}, line {number}: {not_utf8()}") from None
