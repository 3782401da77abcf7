"""Texts to compare: an anchor, a text that is alike, and perhaps texts that are not (`data.alike`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from featherback.core.decode import encode
from featherback.data.alike import MOST_TEXTS, TextsFile, joined, texts_in
from featherback.data.example import Example
from featherback.data.forms.base import DataForm, ExampleWriter
from featherback.data.token_file import TokenFile, TokenFileWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from featherback.data.encoder import Encoded
    from featherback.data.report import PrepareReport
    from featherback.data.source import Source


class TextsWriter:
    """Writes examples of several texts. A text has at most `report.seq_len` tokens."""

    def __init__(self, writer: TokenFileWriter, source: Source, report: PrepareReport) -> None:
        self._writer, self._source, self._report = writer, source, report
        self._longest = 0

    def add(self, example: Example, encoded: Encoded) -> None:
        """Add an example, cut where a text is too long."""
        texts = [each.ids.astype(np.int32) for each in _chain(encoded)]
        length = self._report.length_within([ids.size for ids in texts], self._source.long, example.where)
        if length is None:
            return
        texts = [_within(ids, length) for ids in texts]
        if not all(ids.size for ids in texts):
            self._report.drop(example.where)
            return
        self._longest = max(self._longest, *(ids.size for ids in texts))
        self._writer.add_marked(*joined(texts), 1)

    def finish(self) -> None:
        """Write the metadata."""
        self._writer.metadata.update(form=self._source.form, longest=self._longest)


class Alike(DataForm):
    """Each example is a chain of texts: the anchor, the text that is alike, and those that are not."""

    called, counted = "pairs of texts", "pairs"
    record = '{"anchor": ..., "positive": ...}'

    def fit(self, example: Example) -> Example | str:
        """A prompt with its completion is a pair, too."""
        if example.prompt is not None and example.completion is not None and example.rejected is None:
            other = Example(example.where, text=example.completion)
            return replace(example, prompt=None, completion=None, text=example.prompt, rejected=other)
        if example.text is None or example.rejected is None or example.rejected.text is None:
            return 'expected a pair of texts, "anchor" and "positive".'
        if len(example.sides) > MOST_TEXTS:
            return f"it has {len(example.sides)} texts; the most is {MOST_TEXTS}."
        return example

    def writer(self, writer: TokenFileWriter, source: Source, report: PrepareReport) -> ExampleWriter:
        return TextsWriter(writer, source, report)

    def open(
        self, path: str | os.PathLike[str], labels: Sequence[str] = (), with_prompts: bool = False, scored: bool = False
    ) -> TokenFile:
        return TextsFile(path)

    def count_longer(self, file: TokenFile, length: int) -> int:
        return sum(any(ids.size > length for _, ids in _texts(file, i)) for i in range(len(file)))

    def cut(self, file: TokenFile, length: int, report: PrepareReport) -> None:
        report.seq_len, longest = length, 0
        with TokenFileWriter(file.path) as writer:
            for i in range(len(file)):
                texts = [ids for _, ids in _texts(file, i)]
                if lost := sum(max(0, ids.size - length) for ids in texts):
                    report.cut(lost)
                texts = [_within(ids, length) for ids in texts]
                longest = max(longest, *(ids.size for ids in texts))
                writer.add_marked(*joined(texts), 1)
            report.tokens = writer.n_tokens
            writer.metadata.update({**file.metadata, "seq_len": length, "longest": longest, "report": encode(report)})

    def shown(self, file: TokenFile, i: int) -> None:
        return None


def _texts(file: TokenFile, i: int) -> list[tuple[int, Any]]:
    return texts_in(file.seq(i)[0], file.marks(i))


def _within(ids: NDArray[Any], length: int) -> NDArray[Any]:
    """Return the tokens of a text, cut in front of its last one, which ends it."""
    return ids if ids.size <= length else np.append(ids[: length - 1], ids[-1:])


def _chain(encoded: Encoded) -> Iterator[Encoded]:
    while True:
        yield encoded
        if encoded.rejected is None:
            return
        encoded = encoded.rejected


FORM = Alike()
