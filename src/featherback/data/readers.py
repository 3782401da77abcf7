"""Read a source as examples or texts, one at a time. Errors name the file and the place in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from featherback.core.naming import argument
from featherback.data.containers import container_of
from featherback.data.containers.base import Container, Document, Records, Texts
from featherback.data.containers.talk import Talk, left_out_note
from featherback.data.example import Bad, Example
from featherback.data.forms import FORMS
from featherback.data.inputs import Input, Watch
from featherback.data.record_size import RecordRoom, admits_example
from featherback.data.shapes import Columns, check_columns
from featherback.data.source import PLAIN, Source
from featherback.errors import FeatherbackError


@dataclass(frozen=True)
class DataFile:
    """One of a source's files, opened when it is read."""

    data: Input
    container: Container
    columns: Columns
    form: str = PLAIN  # as `Source.form`

    @property
    def holds_texts(self) -> bool:
        """Whether it holds documents instead of records."""
        return isinstance(self.container, Texts)

    @property
    def size(self) -> int:
        """The number of bytes to read."""
        return self.container.size(self.data)

    @property
    def left_out(self) -> str | None:
        """A sentence about what was read and not used, or None."""
        files = Counter({"other file": self.data.others})
        return left_out_note(self.data.name, self.data.left_out + files)

    @property
    def not_read(self) -> str | None:
        """A sentence about files that are not read, or None."""
        return self.container.not_read(self.data)

    def examples(self) -> Iterator[Example | Bad]:
        """Yield its examples, up to a record that does not fit in the memory budget.

        Raises FeatherbackError if there are none, or if the file cannot be read any further.
        """
        assert isinstance(self.container, Records)
        found, room, form = False, self.data.room, FORMS[self.form]
        self.data.left_out.clear()
        for record in self.container.read(self.data):
            found = True
            item = record if isinstance(record, Bad) else form.read(record, self.columns)
            del record
            if (isinstance(item, Bad) or admits_example(room, item)) and not room.refused:
                yield item
        if not found and not room.refused:
            raise FeatherbackError(f"The data file {self.data.name} contains no examples, {self.container.nothing}.")

    def documents(self) -> Iterator[Document]:
        """Yield its texts. Each must be read before the next is requested."""
        assert isinstance(self.container, Texts)
        self.data.left_out.clear()
        return self.container.read(self.data)


def data_files(source: Source, watch: Watch | None = None, room: RecordRoom | None = None) -> list[DataFile]:
    """Open the files of a source. `watch` is called with the bytes read, and `room` decides about long records.

    Raises FeatherbackError if a file is missing, empty, unreadable or of unknown format, or if `columns` has an unknown
    key.
    """
    check_columns(source.columns)
    inputs = [Input(path, watch, source.title, room, source.table, source.me) for path in source.paths]
    files = [DataFile(data, container_of(data), source.columns, source.form) for data in inputs]
    form = FORMS[source.form]
    for file in files:
        if file.holds_texts and not form.streams:
            raise FeatherbackError(f"{file.data.name} is plain text, and the objective needs {form.called}.")
    return files


def check_use(source: Source, files: Sequence[DataFile]) -> None:
    """Raise FeatherbackError if `me` or `table` applies to none of the files, which are all that a command reads."""
    if source.me and not any(isinstance(file.container, Talk) for file in files):
        raise FeatherbackError(
            f"{argument('me', list(source.me))} names a person in chats or mail, and the data are neither. Remove it."
        )
    for key, value in source.table.items():
        if not any(key in file.container.table_keys for file in files):
            raise FeatherbackError(f"{argument('table', f'{key}={value}')} does not apply to these data. Remove it.")
