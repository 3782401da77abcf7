"""Answers to imitate: conversations, prompts with completions, and texts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from featherback.core.decode import encode
from featherback.core.naming import argument
from featherback.data.example import Example
from featherback.data.forms.base import DataForm, ExampleWriter
from featherback.data.token_file import TokenFile, TokenFileWriter, as_whole_file, selecting
from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from featherback.data.encoder import Encoded
    from featherback.data.report import PrepareReport
    from featherback.data.source import Source


class PlainWriter:
    """Writes conversations as one sequence each. Text is split into sequences of `report.seq_len` tokens."""

    def __init__(self, writer: TokenFileWriter, source: Source, report: PrepareReport) -> None:
        self._writer, self._source, self._report = writer, source, report

    def add(self, example: Example, encoded: Encoded) -> None:
        if example.text is not None:
            self._add_text(encoded, example.where)
        else:
            self._add_exchange(encoded, example.where)

    def finish(self) -> None:
        pass

    def _add_text(self, encoded: Encoded, where: str) -> None:
        length = encoded.ids.size
        kept = length - (length % self._report.seq_len == 1)  # a single token left over predicts nothing
        if kept:
            self._writer.add_text(encoded.ids[:kept], self._report.seq_len)
        if length < 2:
            self._report.drop(where)

    def _add_exchange(self, encoded: Encoded, where: str) -> None:
        length = self._report.length_within([encoded.ids.size], self._source.long, where)
        if length is None:
            return
        ids, mask = encoded.ids[:length], encoded.mask[:length]
        if mask[1:].any():
            self._writer.add(ids, mask)
        else:
            self._report.drop(where)


class Plain(DataForm):
    """Examples are conversations, prompts with completions, or texts."""

    called, counted = "answers", "tokens"
    record = '{"prompt": ..., "completion": ...}'
    streams = True

    def fit(self, example: Example) -> Example | str:
        if example.rejected is not None:
            return (
                'this is a preference pair ("chosen" and "rejected"). For pairs, add '
                f"{argument('objective', 'dpo')}. For the chosen answers only, write them as "
                '"messages", or as "prompt" and "completion".'
            )
        if example.is_open:
            return '"completion" is missing.'
        if example.label is not None:
            return replace(example, label=None, unused=(*example.unused, "label"))
        return example

    def writer(self, writer: TokenFileWriter, source: Source, report: PrepareReport) -> ExampleWriter:
        return PlainWriter(writer, source, report)

    def open(
        self, path: str | os.PathLike[str], labels: Sequence[str] = (), with_prompts: bool = False, scored: bool = False
    ) -> TokenFile:
        return TokenFile(path)

    def count_longer(self, file: TokenFile, length: int) -> int:
        return sum(int(np.count_nonzero(lengths > length)) for _, lengths in file.all_lengths())

    def cut(self, file: TokenFile, length: int, report: PrepareReport) -> None:
        """Tokens are not copied: the new file refers to the old ones."""
        report.seq_len = length
        with selecting(as_whole_file(file), file.path) as cut:
            cut.metadata.update(file.metadata)
            cut.n_targets = file.n_targets
            for first, lengths in file.all_lengths():
                kept = np.ones(lengths.size, bool)
                for i in np.flatnonzero(lengths > length).tolist():
                    supervised = file.seq(first + i)[1]
                    kept[i] = supervised[1:length].any()
                    report.cut(supervised.size - length)
                    lost = supervised[length if kept[i] else 1 :]
                    cut.n_targets -= int(np.count_nonzero(lost))
                    file.drop_pages()
                starts, ends = (part[first : first + lengths.size][kept] for part in (file.starts, file.ends))
                cut.add(starts, np.minimum(ends, starts + length))
                report.dropped += int(np.count_nonzero(~kept))
            if not cut.n_targets:
                raise FeatherbackError(report.nothing_within)
            report.sequences, report.tokens, report.supervised_tokens = cut.n_sequences, cut.n_tokens, cut.n_targets
            cut.metadata.update(seq_len=length, report=encode(report))


FORM = Plain()
