"""What a container is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from featherback.data.example import Bad
from featherback.data.inputs import Input

NOT_UTF8 = "not UTF-8 text: save the file as UTF-8."


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
    """To be read before the next document is asked for."""


class Container(ABC):
    """A kind of file. Subclass Records or Texts."""

    title: ClassVar[str]
    """In words."""
    suffixes: ClassVar[tuple[str, ...]] = ()

    def fits(self, begin: bytes) -> bool:
        """Whether a file named so, with these first bytes but white space, is of this kind."""
        return True

    def betrays(self, begin: bytes) -> bool:
        """Whether a file is of this kind by its first bytes alone."""
        return False

    def size(self, data: Input) -> int:
        """Bytes that reading `data` will tell its watch of."""
        return data.size

    def not_read(self, data: Input) -> str | None:
        """What is passed over, a sentence; None if nothing is."""
        return None


class Records(Container):
    """A kind of file that holds records."""

    nothing: ClassVar[str]
    """What a file holds that holds none, in words."""

    @abstractmethod
    def read(self, data: Input) -> Iterator[Record | Bad]:
        """The records in order. FeatherbackError if no further ones can be read."""


class Texts(Container):
    """A kind of file that holds plain text."""

    @abstractmethod
    def read(self, data: Input) -> Iterator[Document]:
        """The documents in order. FeatherbackError as they are read."""
