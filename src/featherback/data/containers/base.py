"""Base classes of file formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from featherback.core.naming import argument
from featherback.data.example import Bad
from featherback.data.inputs import Input

NOT_UTF8 = "not UTF-8 text: save the file as UTF-8."


def not_utf8() -> str:
    """Return what is wrong with a text in another encoding, and the option that names the encoding."""
    return f"{NOT_UTF8} If a program on Windows saved it: {argument('table', 'encoding=cp1252')}."


@dataclass(frozen=True)
class Record:
    """One row, object or line."""

    where: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Document:
    """A text of any length."""

    where: str
    pieces: Iterator[str]
    """Must be consumed before the next document is requested."""


class Container(ABC):
    """A file format. Subclass Records or Texts."""

    title: ClassVar[str]
    """Name of the format for users."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    table_keys: ClassVar[tuple[str, ...]] = ("encoding",)
    """What the option `table` can say about a file of this format."""

    def fits(self, begin: bytes) -> bool:
        """Whether a file with one of the suffixes has this format. `begin`: its first bytes after white space."""
        return True

    def recognises_start(self, begin: bytes) -> bool:
        """Whether the first bytes alone show that a file has this format."""
        return False

    def recognises_content(self, begin: bytes) -> bool:
        """Whether the first bytes show that a file has this format and no other, whatever its name."""
        return False

    def describe(self, data: Input) -> str:
        """Return the format of a file for users, with what was found out about it."""
        return self.title

    def size(self, data: Input) -> int:
        """Return the number of bytes that reading `data` will report to its watch."""
        return data.size

    def not_read(self, data: Input) -> str | None:
        """Return a sentence about files that are not read, or None."""
        return None


class Records(Container):
    """A format that holds records."""

    nothing: ClassVar[str]
    """The content of a file without records, as words that complete an error message: "only blank lines"."""

    @abstractmethod
    def read(self, data: Input) -> Iterator[Record | Bad]:
        """Yield the records in order. Raises FeatherbackError if the file cannot be read any further."""


class Texts(Container):
    """A format that holds plain text."""

    @abstractmethod
    def read(self, data: Input) -> Iterator[Document]:
        """Yield the documents in order. Reading one may raise FeatherbackError."""
