"""Prompts that the model answers itself. The rest of each record is handed to what judges the answers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from featherback.core.decode import encode
from featherback.core.naming import argument
from featherback.data.containers.base import Record
from featherback.data.example import Bad, Example
from featherback.data.forms.base import DataForm, ExampleWriter
from featherback.data.prompts import PromptFile, with_record
from featherback.data.shapes import Columns, example_of, renamed_columns
from featherback.data.shapes.base import columns_shown, structure
from featherback.data.shapes.usual import usual_columns
from featherback.data.token_file import TokenFile, TokenFileWriter, as_whole_file, selecting
from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from featherback.data.encoder import Encoded
    from featherback.data.report import PrepareReport
    from featherback.data.source import Source

_ANSWER = "?"
"""Stands for the model's answer while a prompt is encoded: the prompt ends where an answer would begin."""
_BESIDE = ("system", "tools")


class PromptWriter:
    """Writes prompts with their records."""

    def __init__(self, writer: TokenFileWriter, source: Source, report: PrepareReport) -> None:
        self._writer, self._source, self._report = writer, source, report
        self._longest = 0

    def add(self, example: Example, encoded: Encoded) -> None:
        """Add a prompt, if an answer fits behind it."""
        prompt = encoded.ids[: int(np.argmax(encoded.mask))]
        size, report = prompt.size + self._source.room, self._report
        cut = self._source.long == "cut" and size > report.seq_len
        if not prompt.size or cut:  # a prompt is never cut
            report.drop(example.where)
            return
        if report.length_within([size], self._source.long, example.where) is None:
            return
        self._longest = max(self._longest, size)
        self._writer.add(*with_record(prompt, example.record))

    def finish(self) -> None:
        """Write the metadata."""
        self._writer.metadata.update(form=self._source.form, longest=self._longest, room=self._source.room)


class Prompts(DataForm):
    """Each example is a prompt, or a conversation that the model continues, with anything else beside it."""

    called, counted = "prompts", "prompts"
    record = '{"prompt": ..., "answer": ...}'
    ends = False

    def read(self, record: Record, columns: Columns) -> Example | Bad:
        try:
            asked = _asked(renamed_columns(record.values, columns))
        except FeatherbackError as error:
            return Bad(record.where, str(error))
        found = self.fitted(example_of(Record(record.where, asked), {}))
        return found if isinstance(found, Bad) else replace(found, record=record.values)

    def fit(self, example: Example) -> Example | str:
        return example

    def writer(self, writer: TokenFileWriter, source: Source, report: PrepareReport) -> ExampleWriter:
        return PromptWriter(writer, source, report)

    def open(
        self, path: str | os.PathLike[str], labels: Sequence[str] = (), with_prompts: bool = False, scored: bool = False
    ) -> TokenFile:
        return PromptFile(path)

    def count_longer(self, file: TokenFile, length: int) -> int:
        return int(np.count_nonzero(_sizes(file) > length))

    def cut(self, file: TokenFile, length: int, report: PrepareReport) -> None:
        """Prompts are not cut: those that leave no room for an answer are dropped."""
        report.seq_len, sizes = length, _sizes(file)
        kept = np.flatnonzero(sizes <= length)
        if not kept.size:
            raise FeatherbackError(report.nothing_within)
        with selecting(as_whole_file(file), file.path) as chosen:
            chosen.metadata.update({**file.metadata, "seq_len": length, "longest": int(sizes[kept].max())})
            chosen.add(file.starts[kept], file.ends[kept])
            chosen.n_targets = sum(int(np.count_nonzero(file.seq(int(i))[1])) for i in kept)
            report.dropped += sizes.size - kept.size
            report.sequences, report.tokens, report.supervised_tokens = (
                chosen.n_sequences, chosen.n_tokens, chosen.n_targets,
            )  # fmt: skip
            chosen.metadata.update(report=encode(report))

    def shown(self, file: TokenFile, i: int) -> None:
        return None


FORM = Prompts()


def _sizes(file: TokenFile) -> Any:
    """Return the tokens of each prompt with an answer (S,)."""
    room = int((file.whole or file).metadata["room"])
    return np.array([int(np.argmax(file.seq(i)[1])) + room for i in range(len(file))])


def _asked(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a row that make the prompt, with a stand-in for the answer."""
    found = {key: row[key] for key in _BESIDE if row.get(key) is not None}
    if row.get("messages") is not None:
        return {**found, "messages": _open_conversation(structure(row, "messages"))}
    prompt = row.get("prompt")
    if prompt is None and isinstance(row.get("instruction"), str):
        prompt = "\n\n".join(filter(None, (row["instruction"], row.get("input"))))
    if prompt is None:
        usual = usual_columns(row) or usual_columns({**row, "completion": _ANSWER})
        if "prompt" not in usual:
            raise FeatherbackError(
                f'expected "prompt" or "messages"; found {columns_shown(row)}. To read another column: '
                f"{argument('map', 'prompt=COLUMN')}."
            )
        prompt = row[usual["prompt"]]
    prompt = structure({"prompt": prompt}, "prompt")
    if isinstance(prompt, str) and not prompt.strip():
        raise FeatherbackError('"prompt" is empty.')
    if isinstance(prompt, list):
        return {**found, "messages": _open_conversation(prompt)}
    return {**found, "prompt": prompt, "completion": _ANSWER}


def _open_conversation(messages: Any) -> list[Any]:
    """Return a conversation whose last message stands for the model's answer, instead of an answer that it has."""
    if not isinstance(messages, list) or not all(isinstance(each, Mapping) for each in messages):
        raise FeatherbackError('"messages" must be a list of messages, each with "role" and "content".')
    if messages and messages[-1].get("role") == "assistant":
        messages = messages[:-1]
    before = [{**each, "weight": 0} if each.get("role") == "assistant" else each for each in messages]
    return [*before, {"role": "assistant", "content": _ANSWER}]
