"""Texts with labels (`data.labelled` describes their token files). The labels are found on the way."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from featherback.core.decode import encode
from featherback.core.naming import argument
from featherback.data.example import Example
from featherback.data.forms.base import DataForm, ExampleWriter
from featherback.data.labelled import LabelledFile, labels_in, shown
from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.errors import FeatherbackError, excerpt

if TYPE_CHECKING:
    from featherback.data.encoder import Encoded
    from featherback.data.report import PrepareReport
    from featherback.data.source import Source

MOST_LABELS = 1000
"""More labels than this are taken for a mistake: the column of another field."""


class LabelWriter:
    """Writes texts with their labels."""

    def __init__(self, writer: TokenFileWriter, source: Source, report: PrepareReport) -> None:
        self._writer, self._source, self._report = writer, source, report
        self._numbers: dict[str, int] = {}
        self._longest = 0

    def add(self, example: Example, encoded: Encoded) -> None:
        """Add a text, and its label if that is new."""
        length = self._report.length_within([encoded.ids.size], self._source.long, example.where)
        if length is None:
            return
        ids = encoded.ids[:length]
        if not ids.size:
            self._report.drop(example.where)
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
        self._writer.metadata.update(form=self._source.form, longest=self._longest, labels=list(self._numbers))


class Classes(DataForm):
    """Each example is a text, a prompt or messages, with a label."""

    called, counted = "texts with labels", "texts"
    record = '{"text": ..., "label": ...}'
    ends = False

    def fit(self, example: Example) -> Example | str:
        """Its label becomes a name."""
        if example.rejected is None and (name := _name(example.label)) is not None:
            return replace(example, label=name)
        return f"expected a label with a text, a prompt or messages.{_missing(example.label)}"

    def writer(self, writer: TokenFileWriter, source: Source, report: PrepareReport) -> ExampleWriter:
        return LabelWriter(writer, source, report)

    def open(
        self, path: str | os.PathLike[str], labels: Sequence[str] = (), with_prompts: bool = False, scored: bool = False
    ) -> TokenFile:
        return LabelledFile(path, labels)

    def count_longer(self, file: TokenFile, length: int) -> int:
        return sum(int(np.count_nonzero(lengths - 1 > length)) for _, lengths in file.all_lengths())

    def cut(self, file: TokenFile, length: int, report: PrepareReport) -> None:
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

    def shown(self, file: TokenFile, i: int) -> None:
        return None


FORM = Classes()


def _name(label: Any) -> str | None:
    """Return the name of a label that is text, a whole number or a truth value; None for anything else."""
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if isinstance(label, (bool, int, str)) and (name := str(label).strip()):
        return name.lower() if isinstance(label, bool) else name
    return None


def _missing(label: Any) -> str:
    if label is None:
        return f' "label" is missing; to read it from another column, use {argument("map", "label=COLUMN")}.'
    return f' "label" is {excerpt(str(label))}; it must be text or a whole number.'
