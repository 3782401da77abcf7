"""Pairs of answers: a chosen and a rejected one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from featherback.core.naming import argument
from featherback.data.example import Example
from featherback.data.forms.answers import AnswerWriter, WithAnswers
from featherback.data.forms.base import ExampleWriter
from featherback.data.logp_file import given_file
from featherback.data.pairs import Answer
from featherback.data.token_file import TokenFileWriter

if TYPE_CHECKING:
    from featherback.data.encoder import Encoded
    from featherback.data.report import PrepareReport
    from featherback.data.source import Source


class PairWriter(AnswerWriter):
    """Writes pairs, and beside them their log-probabilities before training if all examples have them."""

    def __init__(self, writer: TokenFileWriter, source: Source, report: PrepareReport) -> None:
        super().__init__(writer, source, report)
        self._given: list[tuple[float, float]] | None = []  # None: not all examples have them

    def add_answers(self, answers: list[Answer], example: Example, encoded: Encoded) -> None:
        self._keep_given(answers, example, encoded)
        self.write(answers)

    def finish(self) -> None:
        super().finish()
        if self._given:
            with given_file(self.writer.path, len(self._given)) as out:
                out.append(0, np.array(self._given))

    def _keep_given(self, answers: list[Answer], example: Example, encoded: Encoded) -> None:
        """Remember the log-probabilities that the data give for answers that were not cut."""
        sides = (encoded, encoded.rejected or encoded)
        whole = all(int(each.mask.sum()) == int(answer.supervised.sum()) for each, answer in zip(sides, answers))
        if example.reference is None or not whole:
            self._given = None
        elif self._given is not None:
            self._given.append(example.reference)


class Pairs(WithAnswers):
    """Each example is a prompt with a chosen and a rejected answer."""

    called, counted = "pairs of answers", "pairs"

    def fit(self, example: Example) -> Example | str:
        if example.rejected is not None:
            return example
        other = f" To train on labelled answers, use {argument('objective', 'kto')}." * (example.label is not None)
        return f'expected a pair of answers, "chosen" and "rejected".{other}'

    def writer(self, writer: TokenFileWriter, source: Source, report: PrepareReport) -> ExampleWriter:
        return PairWriter(writer, source, report)


FORM = Pairs()
