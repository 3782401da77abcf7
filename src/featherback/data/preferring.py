"""Write examples with several answers to a token file: pairs, or labelled answers with an answer to another prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from featherback.core.decode import encode
from featherback.core.naming import argument
from featherback.data.batch import CHOSEN, REJECTED
from featherback.data.example import Example
from featherback.data.forms import LABELS
from featherback.data.logp_file import given_file, given_path
from featherback.data.pairs import Answer, answers_in, count_targets, joined, longest_of, prompts_of
from featherback.data.report import PrepareReport
from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from featherback.data.encoder import Encoded
    from featherback.data.source import Source


class AnswerWriter:
    """Writes the examples of a preparation, and counts those that are cut, dropped or equal.

    A prompt with an answer has at most `report.seq_len` tokens. `source.long` says what happens to longer ones.
    """

    def __init__(self, writer: TokenFileWriter, source: Source, report: PrepareReport) -> None:
        self._writer, self._source, self._report = writer, source, report
        self._longest = 0
        self._given: list[tuple[float, float]] | None = []  # None: not all examples have them
        self._first: list[Answer] = []  # of the first record with labelled answers, until the last one is known
        self._last: list[Answer] = []
        self._where = ""
        self._kinds: set[int] = set()  # of answers

    def add(self, example: Example, encoded: Encoded) -> None:
        """Add a record. A pair becomes one example, or one per answer if answers are labelled."""
        answers = self._fitting(example, _answers(example, encoded))
        if not answers:
            return
        self._kinds.update(answer.part for answer in answers)
        if self._source.form != LABELS:
            self._keep_given(example, encoded, answers)
            self._write(answers)
        elif not self._first:
            self._first, self._where = answers, example.where
        else:
            self._write_labelled(answers, self._last)
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
                self._report.only_label = self._kinds == {CHOSEN}
        self._writer.metadata.update(form=self._source.form, longest=self._longest)
        if self._given:
            with given_file(self._writer.path, len(self._given)) as out:
                out.append(0, np.array(self._given))

    def _keep_given(self, example: Example, encoded: Encoded, answers: Sequence[Answer]) -> None:
        """Remember the log-probabilities that the data give for answers that were not cut."""
        sides = (encoded, encoded.rejected or encoded)
        whole = all(int(each.mask.sum()) == int(answer.supervised.sum()) for each, answer in zip(sides, answers))
        if example.reference is None or not whole:
            self._given = None
        elif self._given is not None:
            self._given.append(example.reference)

    def _fitting(self, example: Example, answers: list[Answer]) -> list[Answer]:
        """Return the answers, cut if they must be; none if the example cannot be used, which is counted."""
        report = self._report
        if len(answers) == 2 and np.array_equal(answers[0].tokens, answers[1].tokens):
            report.equal += 1
            report.first_equal = report.first_equal or example.where
            return []
        longest = max(len(answer.tokens) for answer in answers)
        report.longest_chat = max(report.longest_chat, longest)
        length = report.seq_len if self._source.long != "keep" else longest
        if longest > length:
            report.first_truncated = report.first_truncated or example.where
            if self._source.long == "refuse":
                report.too_long += 1
                return []
            report.cut(sum(max(0, len(answer.tokens) - length) for answer in answers))
        answers = [answer.cut(length) for answer in answers]
        if all(answer.supervised[1:].any() for answer in answers):
            return answers
        report.dropped += 1
        report.first_dropped = report.first_dropped or example.where
        return []

    def _write_labelled(self, answers: Sequence[Answer], others: Sequence[Answer]) -> None:
        """Write each answer as an example, together with an answer to the prompt of another record."""
        for number, answer in enumerate(answers):
            other = others[min(number, len(others) - 1)].to(answer.prompt)
            self._write([answer, other if self._source.long == "keep" else other.cut(self._report.seq_len)])

    def _write(self, answers: Sequence[Answer]) -> None:
        tokens, marks = joined(answers, self._source.shares_prompts)
        self._longest = max(self._longest, longest_of(marks))
        self._writer.add_marked(tokens, marks, count_targets(marks))


def _answers(example: Example, encoded: Encoded) -> list[Answer]:
    """Return the answers of a record: chosen and rejected, or the labelled one."""
    if encoded.rejected is None:
        return [_answer(CHOSEN if example.label else REJECTED, encoded)]
    return [_answer(CHOSEN, encoded), _answer(REJECTED, encoded.rejected)]


def _answer(part: int, encoded: Encoded) -> Answer:
    return Answer(part, encoded.ids, encoded.mask)


def cut_answers(file: TokenFile, length: int, report: PrepareReport) -> None:
    """Cut each prompt with an answer to `length` tokens, drop examples without an answer left, and count both."""
    report.seq_len, longest = length, 0
    given_path(file.path).unlink(missing_ok=True)  # they are those of whole answers
    with TokenFileWriter(file.path) as writer:
        for i in range(len(file)):
            tokens, marks = file.seq(i)[0], file.marks(i)
            answers = answers_in(tokens, marks)
            share = len(prompts_of(marks)) < len(answers)
            if lost := sum(max(0, len(answer.tokens) - length) for answer in answers):
                report.cut(lost)
            answers = [answer.cut(length) for answer in answers]
            if not all(answer.supervised[1:].any() for answer in answers):
                report.dropped += 1
                continue
            tokens, marks = joined(answers, share)
            longest = max(longest, longest_of(marks))
            writer.add_marked(tokens, marks, count_targets(marks))
        if not writer.n_targets:
            raise FeatherbackError(report.nothing_within)
        report.sequences, report.tokens, report.supervised_tokens = (
            writer.n_sequences, writer.n_tokens, writer.n_targets,
        )  # fmt: skip
        writer.metadata.update({**file.metadata, "seq_len": length, "longest": longest, "report": encode(report)})
