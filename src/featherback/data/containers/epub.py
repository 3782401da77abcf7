"""Books (EPUB): the text of their chapters, in the order of reading."""

from __future__ import annotations

import codecs
import posixpath
from collections import deque
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from featherback.data.containers.packed import Archive, Packed, parse
from featherback.data.markup import pieces_of_html

_CONTENTS = "META-INF/container.xml"


class Epub(Packed):
    title = "book"
    suffixes = (".epub",)

    def text(self, archive: Archive) -> Iterator[str]:
        [package, *_] = _attributes(archive, _CONTENTS, "rootfile")
        name = package["full-path"]
        items = {item["id"]: item for item in _attributes(archive, name, "item")}
        for reference in _attributes(archive, name, "itemref"):
            item = items[reference["idref"]]
            if "nav" not in item.get("properties", "").split():
                chapter = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(item["href"])))
                yield from pieces_of_html(codecs.iterdecode(archive.pieces(chapter), "utf-8-sig"))
                yield "\n\n"


CONTAINER = Epub()


def _attributes(archive: Archive, member: str, name: str) -> list[Mapping[str, str]]:
    """Return the attributes of the elements called `name` in a file of the archive."""
    found: list[Mapping[str, str]] = []

    def start(each: str, attributes: Mapping[str, str]) -> None:
        if each == name:
            found.append(attributes)

    deque(parse(archive.pieces(member), start, str, str), maxlen=0)
    return found
