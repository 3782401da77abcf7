"""Documents that are ZIP archives of XML or HTML. They are unpacked and read in pieces."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import IO
from xml.parsers import expat

from featherback.data.containers.base import Document, Texts
from featherback.data.inputs import Input
from featherback.data.layers import archive_of, pieces_of
from featherback.data.markup import tidied
from featherback.data.record_size import Expansion
from featherback.errors import FeatherbackError, excerpt

_DEEPEST = 200  # elements inside each other
_LONGEST_TAG = 1 << 20  # bytes

Start = Callable[[str, Mapping[str, str]], object]
"""Called with the name of an element, without its namespace, and its attributes."""


class Archive:
    """The files of a document. Together they may expand as far as a compressed file may."""

    def __init__(self, file: IO[bytes], data: Input) -> None:
        self._name, self._files = data.name, archive_of(file, data.name)
        self._expansion = Expansion(data.name, data.size)

    def pieces(self, member: str) -> Iterator[bytes]:
        """Yield the content of a file of the archive."""
        if member not in self._files.NameToInfo:
            raise FeatherbackError(f"Cannot read {self._name}: it contains no {excerpt(member)}.")
        for piece in pieces_of(self._files, self._files.getinfo(member), self._name):
            self._expansion.add(len(piece))
            yield piece


class Packed(Texts):
    """A format of such documents."""

    @abstractmethod
    def text(self, archive: Archive) -> Iterator[str]:
        """Yield the text in pieces of any length."""

    def read(self, data: Input) -> Iterator[Document]:
        yield Document(data.name, self._lines(data))

    def _lines(self, data: Input) -> Iterator[str]:
        with data.descriptor() as number, open(number, "rb", closefd=False) as file:
            try:
                yield from tidied(self.text(Archive(file, data)))
            except (FeatherbackError, OSError):
                raise
            except Exception as error:  # each library has its own
                raise FeatherbackError(f"Cannot read {data.name}: {excerpt(str(error))}.") from error
        data.watch(data.size)


def parse(
    pieces: Iterator[bytes], start: Start, end: Callable[[str], object], text: Callable[[str], object]
) -> Iterator[None]:
    """Parse XML, and stop after each piece. Raises ValueError if it declares entities or is nested too deeply."""
    parser = expat.ParserCreate(namespace_separator=" ")
    depth = fed = 0

    def begin(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} elements stand inside each other")
        start(name.rpartition(" ")[2], {key.rpartition(" ")[2]: value for key, value in attributes.items()})

    def finish(name: str) -> None:
        nonlocal depth
        depth -= 1
        end(name.rpartition(" ")[2])

    def refuse(*_: object) -> None:
        raise ValueError("it declares a document type")

    parser.StartElementHandler, parser.EndElementHandler = begin, finish
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = text, refuse
    for piece in pieces:
        parser.Parse(piece)
        fed += len(piece)
        if fed - parser.CurrentByteIndex > _LONGEST_TAG:
            raise ValueError(f"a tag is longer than {_LONGEST_TAG >> 20} MB")
        yield
    parser.Parse(b"", True)
    yield
