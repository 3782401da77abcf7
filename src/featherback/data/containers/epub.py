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
        name = next((each.get("full-path") for each in _attributes(archive, _CONTENTS, "rootfile")), None)
        if name is None:
            raise ValueError(f"its {_CONTENTS} names no package")
        items = {item.get("id", ""): item for item in _attributes(archive, name, "item")}
        for reference in _attributes(archive, name, "itemref"):
            item = items.get(reference.get("idref", ""), {})
            if "href" not in item:
                raise ValueError(f"its {name} does not say where the chapter {reference.get('idref', '')} is")
            if "nav" not in item.get("properties", "").split():
                place = unquote(item["href"].partition("#")[0])
                chapter = posixpath.normpath(posixpath.join(posixpath.dirname(name), place))
                try:
                    yield from pieces_of_html(codecs.iterdecode(archive.pieces(chapter), "utf-8-sig"))
                except UnicodeDecodeError:
                    raise ValueError(f"{chapter} in it is not UTF-8 text, or is protected against copying") from None
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
