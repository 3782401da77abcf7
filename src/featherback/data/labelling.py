"""Write texts with labels to a token file (`data.labelled` describes it), and find the labels on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from featherback.core.decode import encode
from featherback.core.naming import argument
from featherback.data.example import Example
from featherback.data.forms import CLASSES
from featherback.data.labelled import labels_in, shown
from featherback.data.report import PrepareReport
from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from featherback.data.encoder import Encoded
    from featherback.data.source import Source

MOST_LABELS = 1000
"""More labels than this are taken for a mistake: the column of another field."""


class LabelWriter:
    """Writes the examples of a preparation, and counts those that are cut or too long.

    A text has at most `report.seq_len` tokens. `source.long` says what happens to longer ones.
    """

    def __init__(self, writer: TokenFileWriter, source: Source, report: PrepareReport) -> None:
        self._writer, self._source, self._report = writer, source, report
        self._numbers: dict[str, int] = {}
        self._longest = 0

    def add(self, example: Example, encoded: Encoded) -> None:
        """Add a text, and its label if that is new."""
        report, ids = self._report, encoded.ids
        report.longest_chat = max(report.longest_chat, ids.size)
        if ids.size > report.seq_len and self._source.long != "keep":
            report.first_truncated = report.first_truncated or example.where
            if self._source.long == "refuse":
                report.too_long += 1
                return
            report.cut(ids.size - report.seq_len)
            ids = ids[: report.seq_len]
        if not ids.size:
            report.dropped += 1
            report.first_dropped = report.first_dropped or example.where
            return
        number = self._numbers.setdefault(example.label, len(self._numbers))
        if len(self._numbers) > MOST_LABELS:
            raise FeatherbackError(
                f"{example.where}: the data have more than {MOST_LABELS} labels, for example "
                f"{shown(list(self._numbers), 3)}. Choose the column of the labels: {argument('map', 'label=COLUMN')}."
            )
        self._longest = max(self._longest, ids.size)
        self._writer.add(np.append(ids.astype(np.int32), number), np.arange(ids.size + 1) == ids.size)

    def finish(self) -> None:
        """Write the names of the labels and the other metadata."""
        self._writer.metadata.update(form=CLASSES, longest=self._longest, labels=list(self._numbers))


def cut_texts(file: TokenFile, length: int, report: PrepareReport) -> None:
    """Cut each text to `length` tokens, and count them."""
    report.seq_len = length
    with TokenFileWriter(file.path) as writer:
        for i in range(len(file)):
            ids = file.seq(i)[0]
            if lost := max(0, ids.size - 1 - length):
                report.cut(lost)
            ids = np.append(ids[: min(length, ids.size - 1)], ids[-1])
            writer.add(ids, np.arange(ids.size) == ids.size - 1)
        report.tokens = writer.n_tokens
        about = {"seq_len": length, "longest": writer.max_length - 1, "labels": labels_in(file)}
        writer.metadata.update({**file.metadata, **about, "report": encode(report)})
