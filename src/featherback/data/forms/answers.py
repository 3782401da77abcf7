"""What pairs and labelled answers have in common: they are prompts with several answers (`data.pairs`)."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from featherback.core.decode import encode
from featherback.data.batch import CHOSEN, REJECTED
from featherback.data.example import Example
from featherback.data.forms.base import DataForm
from featherback.data.logp_file import given_path
from featherback.data.pairs import Answer, MarkedFile, answers_in, count_targets, joined, longest_of, prompts_of
from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from featherback.data.encoder import Encoded
    from featherback.data.report import PrepareReport
    from featherback.data.source import Source


class AnswerWriter(ABC):
    """Writes examples with answers. A prompt with an answer has at most `report.seq_len` tokens."""

    def __init__(self, writer: TokenFileWriter, source: Source, report: PrepareReport) -> None:
        self.writer, self.source, self.report = writer, source, report
        self._longest = 0

    def add(self, example: Example, encoded: Encoded) -> None:
        """Add a record, unless none of its answers can be used."""
        if answers := self._fitting(example, _answers(example, encoded)):
            self.add_answers(answers, example, encoded)

    @abstractmethod
    def add_answers(self, answers: list[Answer], example: Example, encoded: Encoded) -> None:
        """Write the answers of an example, which are cut already."""

    def finish(self) -> None:
        """Write the metadata."""
        self.writer.metadata.update(form=self.source.form, longest=self._longest)

    def write(self, answers: Sequence[Answer]) -> None:
        """Write answers as one example."""
        tokens, marks = joined(answers, self.source.shares_prompts)
        self._longest = max(self._longest, longest_of(marks))
        self.writer.add_marked(tokens, marks, count_targets(marks))

    def _fitting(self, example: Example, answers: list[Answer]) -> list[Answer]:
        """Return the answers, cut if they must be; none if the example cannot be used, which is counted."""
        report = self.report
        if len(answers) == 2 and np.array_equal(answers[0].tokens, answers[1].tokens):
            report.equal += 1
            report.first_equal = report.first_equal or example.where
            return []
        length = report.length_within([len(answer.tokens) for answer in answers], self.source.long, example.where)
        if length is None:
            return []
        answers = [answer.cut(length) for answer in answers]
        if all(answer.supervised[1:].any() for answer in answers):
            return answers
        report.drop(example.where)
        return []


def _answers(example: Example, encoded: Encoded) -> list[Answer]:
    """Return the answers of a record: chosen and rejected, or the labelled one."""
    if encoded.rejected is None:
        return [_answer(CHOSEN if example.label else REJECTED, encoded)]
    return [_answer(CHOSEN, encoded), _answer(REJECTED, encoded.rejected)]


def _answer(part: int, encoded: Encoded) -> Answer:
    return Answer(part, encoded.ids, encoded.mask)


class WithAnswers(DataForm):
    """Each example is a prompt with answers."""

    record = '{"prompt": ..., "chosen": ..., "rejected": ...}'

    def open(
        self, path: str | os.PathLike[str], labels: Sequence[str] = (), with_prompts: bool = False, scored: bool = False
    ) -> TokenFile:
        return MarkedFile(path, with_prompts, scored)

    def count_longer(self, file: TokenFile, length: int) -> int:
        return sum(longest_of(file.marks(i)) > length for i in range(len(file)))

    def cut(self, file: TokenFile, length: int, report: PrepareReport) -> None:
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

    def shown(self, file: TokenFile, i: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]] | None:
        """The first answer, if it is wanted."""
        answer = answers_in(file.seq(i)[0], file.marks(i))[0]
        return (answer.tokens, answer.supervised) if answer.part == CHOSEN else None
