"""Labelled answers: each is wanted or not. A token file has each with an answer to the prompt of another record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featherback.core.naming import argument
from featherback.data.batch import CHOSEN
from featherback.data.example import Example
from featherback.data.forms.answers import AnswerWriter, WithAnswers
from featherback.data.forms.base import ExampleWriter
from featherback.data.pairs import Answer
from featherback.data.token_file import TokenFileWriter
from featherback.errors import FeatherbackError, excerpt

if TYPE_CHECKING:
    from featherback.data.encoder import Encoded
    from featherback.data.report import PrepareReport
    from featherback.data.source import Source

_YES, _NO = ("true", "yes", "1"), ("false", "no", "0")


class LabelledAnswerWriter(AnswerWriter):
    """Writes labelled answers. A pair is two of them."""

    def __init__(self, writer: TokenFileWriter, source: Source, report: PrepareReport) -> None:
        super().__init__(writer, source, report)
        self._first: list[Answer] = []  # of the first record, until the last one is known
        self._last: list[Answer] = []
        self._where = ""
        self._kinds: set[int] = set()  # of answers

    def add_answers(self, answers: list[Answer], example: Example, encoded: Encoded) -> None:
        self._kinds.update(answer.part for answer in answers)
        if self._first:
            self._write_labelled(answers, self._last)
        else:
            self._first, self._where = answers, example.where
        self._last = answers

    def finish(self) -> None:
        """Write what is left and the metadata. Raises FeatherbackError if a single labelled answer is left alone."""
        if self._first:
            if self._first is self._last:
                raise FeatherbackError(
                    f"{self._where} is the only usable example; {argument('objective', 'kto')} needs at least two, "
                    "because it compares each answer with an answer to another prompt."
                )
            self._write_labelled(self._first, self._last)
            if len(self._kinds) == 1:
                self.report.only_label = self._kinds == {CHOSEN}
        super().finish()

    def _write_labelled(self, answers: Sequence[Answer], others: Sequence[Answer]) -> None:
        """Write each answer as an example, together with an answer to the prompt of another record."""
        for number, answer in enumerate(answers):
            other = others[min(number, len(others) - 1)].to(answer.prompt)
            self.write([answer, other if self.source.long == "keep" else other.cut(self.report.seq_len)])


class Labels(WithAnswers):
    """Each example is a prompt with an answer, and whether it is wanted."""

    called, counted = "labels of answers", "answers"

    def fit(self, example: Example) -> Example | str:
        """Its label becomes True or False."""
        if example.is_open:
            return '"completion" is missing.'
        if example.rejected is not None:
            return example
        if (label := _truth(example.label)) is not None:
            return replace(example, label=label)
        if example.label is not None:
            return f'"label" is {excerpt(str(example.label))}; it must be true or false.'
        return '"label" is missing; it must say whether the answer is wanted: true or false.'

    def writer(self, writer: TokenFileWriter, source: Source, report: PrepareReport) -> ExampleWriter:
        return LabelledAnswerWriter(writer, source, report)


FORM = Labels()


def _truth(label: Any) -> bool | None:
    word = str(label).strip().lower()
    return True if word in _YES else False if word in _NO else None
