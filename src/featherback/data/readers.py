"""From a source to examples and texts, one at a time; every complaint names the file and the place in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from featherback.data.containers import container_of
from featherback.data.containers.base import Container, Document, Records, Texts
from featherback.data.example import Bad, Example
from featherback.data.inputs import Input, Watch
from featherback.data.record_size import RecordRoom, admits_example
from featherback.data.shapes import Columns, check_columns, example_of
from featherback.data.source import Source
from featherback.errors import FeatherbackError


@dataclass(frozen=True)
class DataFile:
    """One of a source's files, opened when it is read."""

    data: Input
    container: Container
    columns: Columns

    @property
    def holds_texts(self) -> bool:
        """Whether it holds documents, and no records."""
        return isinstance(self.container, Texts)

    @property
    def size(self) -> int:
        """Bytes that are read of it."""
        return self.container.size(self.data)

    @property
    def not_read(self) -> str | None:
        """What is passed over of it, a sentence; None if nothing is."""
        return self.container.not_read(self.data)

    def examples(self) -> Iterator[Example | Bad]:
        """Its records, up to one that there is no room for.

        FeatherbackError if there is none, or if no further ones can be read.
        """
        assert isinstance(self.container, Records)
        found, room = False, self.data.room
        for record in self.container.read(self.data):
            found = True
            item = record if isinstance(record, Bad) else example_of(record, self.columns)
            del record
            if (isinstance(item, Bad) or admits_example(room, item)) and not room.refused:
                yield item
        if not found and not room.refused:
            raise FeatherbackError(f"The data file {self.data.name} holds no example, {self.container.nothing}.")

    def documents(self) -> Iterator[Document]:
        """Its texts; each is to be read before the next."""
        assert isinstance(self.container, Texts)
        return self.container.read(self.data)


def data_files(source: Source, watch: Watch | None = None, room: RecordRoom | None = None) -> list[DataFile]:
    """The files of a source; `watch` is told of what is read, `room` asked about long records.

    FeatherbackError if one is missing, empty, not readable or of no known format, or an unknown key is mapped.
    """
    check_columns(source.columns)
    inputs = [Input(path, watch, source.title, room) for path in source.paths]
    return [DataFile(data, container_of(data), source.columns) for data in inputs]
