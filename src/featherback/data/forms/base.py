"""The interface of forms of data: what examples must hold, and how they are written to token files and read."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from featherback.data.example import Bad, Example

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from featherback.data.containers.base import Record
    from featherback.data.encoder import Encoded
    from featherback.data.report import PrepareReport
    from featherback.data.shapes import Columns
    from featherback.data.source import Source
    from featherback.data.token_file import TokenFile, TokenFileWriter


class ExampleWriter(Protocol):
    """Writes the examples of a preparation to a token file, and counts those that are cut, dropped or too long.

    An example has at most `report.seq_len` tokens. `source.long` says what happens to longer ones.
    """

    def add(self, example: Example, encoded: Encoded) -> None:
        """Add an example."""

    def finish(self) -> None:
        """Write what is left, and the metadata."""


class DataForm(ABC):
    """What each example holds."""

    called: ClassVar[str]  # "pairs of answers": the examples, in messages
    counted: ClassVar[str]  # "pairs": what a loss is a mean over
    record: ClassVar[str]  # a record from Python, in messages
    streams: ClassVar[bool] = False  # whether plain text has this form, of which no part need be held as a whole
    ends: ClassVar[bool] = True  # whether a text ends with the end token, as texts do that a model learns to write

    def read(self, record: Record, columns: Columns) -> Example | Bad:
        """Return a record as an example of this form, or what is wrong with it. `columns`: as for `example_of`."""
        from featherback.data.shapes import example_of  # training processes open token files, and read no records

        return self.fitted(example_of(record, columns))

    def fitted(self, example: Example | Bad) -> Example | Bad:
        """Return the example as this form has it, or why it does not have this form."""
        if isinstance(example, Bad):
            return example
        found = self.fit(example)
        return Bad(example.where, found) if isinstance(found, str) else found

    @abstractmethod
    def fit(self, example: Example) -> Example | str:
        """Return the example as this form has it, or what is wrong with it."""

    @abstractmethod
    def writer(self, writer: TokenFileWriter, source: Source, report: PrepareReport) -> ExampleWriter:
        """Return what writes examples of this form."""

    @abstractmethod
    def open(
        self, path: str | os.PathLike[str], labels: Sequence[str] = (), with_prompts: bool = False, scored: bool = False
    ) -> TokenFile:
        """Open a token file. `labels`: the names of all labels of texts, in the order of their ids.

        `with_prompts`: tokens of prompts are targets too. `scored`: a trained head scores the last token of each
        answer, and tokens have no targets.
        """

    @abstractmethod
    def count_longer(self, file: TokenFile, length: int) -> int:
        """Return the number of examples with more than `length` tokens."""

    @abstractmethod
    def cut(self, file: TokenFile, length: int, report: PrepareReport) -> None:
        """Cut the examples of a token file to `length` tokens, drop those of which nothing is left, and count both."""

    def shown(self, file: TokenFile, i: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]] | None:
        """Return the tokens (n,) of example i that a sample shows, and which are supervised (n,); None for none."""
        return file.seq(i)
