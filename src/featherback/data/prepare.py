"""Encode data into a token file.

    python -m featherback.data.prepare '{"model": ..., "data": {"paths": [...], ...}, "out": ..., "seq_len": 256}'

A tokenizer takes tens of megabytes, so this runs in a process that does not train: a child of `featherback train`
(`cli/launcher.py`), or a separate process (`launch.prepare_in_subprocess`). A separate process prints one
JSON object per line: {"progress": {"examples": n, "tokens": n, "read": bytes, "of": bytes}} from time to time, and
finally {"report": ...} or {"error": "message"}. With "enough", reading stops after that many tokens.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from featherback.core.decode import decode, encode
from featherback.core.failure import sentence
from featherback.core.naming import argument, as_flags
from featherback.core.sizes import MB
from featherback.core.system import machine
from featherback.core.terminal import PROGRESS_SECONDS
from featherback.data.containers.base import Document
from featherback.data.duplicates import DuplicateCounter, hash_part
from featherback.data.encoder import Encoded, Encoder, document_of
from featherback.data.example import Bad, Example
from featherback.data.forms import FORMS
from featherback.data.inputs import spool_stdin
from featherback.data.readers import DataFile, data_files
from featherback.data.record_size import RecordRoom
from featherback.data.report import PrepareReport, too_long
from featherback.data.source import STDIN, Source
from featherback.data.templates.renderer import Renderer
from featherback.data.token_file import TokenFileWriter
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError

Progress = Callable[[dict[str, Any]], None]
REHEARSED = 16  # examples, or blocks of a text, that are encoded to measure memory


class Watch(RecordRoom, Protocol):
    """Keeps the preparation within its memory budget."""

    def check(self) -> None:
        """Raise FeatherbackError if the measured memory exceeds the budget."""

    def conclude(self) -> None:
        """After the last record, raise FeatherbackError if any was refused, with the memory that all records need."""


def prepare(
    model_path: str | os.PathLike[str],
    data: Source | str | os.PathLike[str],
    out_path: str | os.PathLike[str],
    seq_len: int,
    progress: Progress | None = None,
    enough: int | None = None,
    watch: Watch | None = None,
    renderer: Renderer | None = None,
) -> PrepareReport:
    """Encode the data for a model into a token file of sequences of at most `seq_len` tokens.

    `data.long` decides about conversations and prompt/completion pairs that are longer; for a plain path they are
    counted and then rejected. Text is split into sequences. The data are streamed, and reading stops once there are
    `enough` tokens. With `watch`, a few examples are encoded first to measure the memory. Data that cannot be used
    raise FeatherbackError with file and line. `renderer`: as for `Encoder`.
    """
    renderer = renderer or Renderer()
    if seq_len < 2:
        raise FeatherbackError(
            f"The sequence length is {seq_len}; it must be at least 2, so that a token can predict the next one."
        )
    began = time.monotonic()
    source = Source.of(data)
    if STDIN in source.paths:
        spool_stdin(Path(out_path).parent)
    data_files(source)
    form = FORMS[source.form]
    tokenizer = load_tokenizer(model_path)
    names = [source.title] if source.title else list(source.paths)
    report = PrepareReport(names, seq_len, enough=enough, tokenizer_notes=tokenizer.notes)
    if watch:
        _rehearse(tokenizer, source, watch, renderer)
    with TokenFileWriter(out_path) as writer, Encoder(tokenizer, form.ends, renderer) as encoder:
        work = _Preparation(encoder, report, writer, source, progress, watch)
        work.run()
        report.not_read += [said for file in work.files if (said := file.left_out)]
        if report.too_long:
            raise FeatherbackError(_too_long(report))
        work.examples.finish()
        if writer.n_targets == 0:
            raise FeatherbackError(_nothing_to_train(report))
        report.sequences, report.tokens = writer.n_sequences, writer.n_tokens
        report.supervised_tokens = writer.n_targets
        report.renamed_roles, report.split = encoder.renamed, encoder.split
        report.written_date = encoder.written_date
        report.duplicates, report.duplicates_exact = work.duplicates.count, work.duplicates.is_exact
        report.enough = work.enough
        report.seconds = time.monotonic() - began
        report.peak_rss_mb = machine.peak_rss() / MB
        writer.metadata.update(seq_len=seq_len, n_vocab=tokenizer.n_vocab, report=encode(report))
    return report


def _rehearse(tokenizer: Tokenizer, source: Source, watch: Watch, renderer: Renderer) -> None:
    """Encode a few examples and discard the result, so that `watch` can measure the memory that encoding takes."""
    files = data_files(source, room=watch)
    with Encoder(tokenizer, renderer=renderer) as encoder:
        if not all(file.holds_texts for file in files):
            encoder.start()
        watch.sample_memory(now=True)
        for file in files:
            for count, item in enumerate(islice(_encoded(encoder, file), REHEARSED), 1):
                watch.sample_memory(now=count & (count - 1) == 0)  # the first ones add the most
                if isinstance(item, Bad) and not source.skip_bad:
                    break  # the preparation itself will report it
    watch.conclude()
    watch.check()


def _encoded(encoder: Encoder, file: DataFile) -> Iterator[object]:
    if not file.holds_texts:
        for item in encoder.encode_all(file.examples()):
            yield item
            if isinstance(item, Example):
                yield from encoder.stream(document_of(item).pieces)
        return
    for document in file.documents():
        yield from encoder.stream(document.pieces)


class _Bytes:
    """Counts bytes read. It is a separate object because a reference cycle would keep the tokenizer in memory."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, size: int) -> None:
        self.count += size


class _Preparation:
    """Writes the sequences of all examples and fills the report."""

    def __init__(
        self,
        encoder: Encoder,
        report: PrepareReport,
        writer: TokenFileWriter,
        source: Source,
        progress: Progress | None,
        watch: Watch | None,
    ) -> None:
        self.encoder, self.report, self.writer, self.source, self.progress, self.watch = (
            encoder, report, writer, source, progress, watch,
        )  # fmt: skip
        self.form = FORMS[source.form]
        self.examples = self.form.writer(writer, source, report)
        self._reported = time.monotonic()
        self._read = _Bytes()
        self.duplicates = DuplicateCounter()
        self.files = data_files(source, self._read.add, watch)
        self._size = sum(file.size for file in self.files)
        report.not_read += [said for file in self.files if (said := file.not_read)]

    def run(self) -> None:
        """Read all data, or until there are enough tokens."""
        for file in self.files:
            if self._stops_before(file.data.name):
                return
            if not file.holds_texts:
                self._add_examples(file)
                continue
            for document in file.documents():
                if self._stops_before(document.where):
                    return
                self._add_stream(document)
        if self.watch:
            self.watch.conclude()

    def _stops_before(self, where: str) -> bool:
        """Whether there were enough tokens before `where`; if so, the report notes the place."""
        if enough := self._is_enough():
            self.report.read_to = self.report.read_to or f"the start of {where}"
        return enough

    def _add_examples(self, file: DataFile) -> None:
        where = ""
        for item in self.encoder.encode_all(file.examples()):
            if self._is_enough():
                self.report.read_to = where
                return
            if isinstance(item, Bad):
                self._skip(item)
            elif isinstance(item, Example) and self.form.streams:  # a long text
                self.report.use(item)
                self._add_stream(document_of(item))
            elif isinstance(item, Example):
                self._add(item, self.encoder.encode(item))
            else:
                self._add(*item)
            where = item[0].where if isinstance(item, tuple) else item.where
            self._report_progress()

    def _skip(self, bad: Bad) -> None:
        """Count a record that cannot be used, or raise its error."""
        if not self.source.skip_bad:
            raise bad.refused(first=not self.report.examples)
        self.report.skip(f"{bad.where}: {bad.problem}")

    def _add(self, example: Example, encoded: Encoded) -> None:
        self.report.use(example)
        mark = hash_part(encoded.mask.tobytes(), hash_part(encoded.ids.tobytes()))
        self.duplicates.add(mark if encoded.rejected is None else hash_part(encoded.rejected.ids.tobytes(), mark))
        self._count(example.shape, max(each.ids.size for each in (encoded, encoded.rejected) if each))
        self.examples.add(example, encoded)
        self.report.spelled_control += any(each.spells_control for each in (encoded, encoded.rejected) if each)

    def _add_stream(self, document: Document) -> None:
        """Split a text of any length into sequences while it is encoded."""
        size = self.report.seq_len
        held = np.empty(0, np.uint32)
        length, mark, spelled = 0, 0, False
        for part, spells_control in self.encoder.stream(self.report.begin(document.pieces)):
            if self._is_enough():
                self.report.read_to = f"token {length - held.size} of {document.where}"
                held = held[:0]
                break
            spelled = spelled or spells_control
            mark = hash_part(part.tobytes(), mark)
            length += part.size
            held = np.concatenate([held, part])
            full = held.size // size * size
            if full:
                self.writer.add_text(held[:full], size)
            held = held[full:]
            self._report_progress()
        if held.size > 1:  # a single token left over predicts nothing
            self.writer.add_text(held, size)
        self.duplicates.add(mark)
        self._count("text", length)
        if length < 2:
            self.report.drop(document.where)
        self.report.spelled_control += spelled

    @property
    def enough(self) -> int | None:
        """The number of tokens to read, scaled up if examples longer than seq_len were kept whole."""
        enough, size = self.report.enough, self.report.seq_len
        return None if enough is None else -(-enough * max(size, self.writer.max_length) // size)

    def _is_enough(self) -> bool:
        return (enough := self.enough) is not None and self.writer.n_tokens >= enough

    def _count(self, shape: str, length: int) -> None:
        self.report.examples += 1
        self.report.shapes[shape] = self.report.shapes.get(shape, 0) + 1
        self.report.count_length(length)

    def _report_progress(self) -> None:
        if self.watch:
            self.watch.sample_memory()
            self.watch.check()
        now = time.monotonic()
        if self.progress and now - self._reported > PROGRESS_SECONDS:
            self._reported = now
            self.progress(
                {
                    "examples": self.report.examples,
                    "tokens": self.writer.n_tokens,
                    "read": self._read.count,
                    "of": self._size,
                }
            )


def _too_long(report: PrepareReport) -> str:
    beyond, change = (f"{report.seq_len} tokens", f"{argument('seq_len', report.longest_chat)} keeps them whole")
    data = f"{report.data} (first: {report.first_truncated})"
    return too_long(report.too_long, report.examples, data, beyond, report.longest_chat, change)


def _nothing_to_train(report: PrepareReport) -> str:
    if not report.examples and report.skipped:
        return f"{report.data} contains no usable examples. The first problem: {report.first_skipped[0]}"
    if not report.examples or report.shapes.keys() == {"text"}:
        return f"{report.data} contains no text."
    if report.truncated == report.examples:
        return f"{report.nothing_within} Raise the sequence length."
    return f"{report.data} has no supervised tokens: it contains no assistant answers to train on."


def main(argv: list[str]) -> int:
    """Run the separate process. The configuration is JSON in argv[0] or on standard input."""

    def say(**message: Any) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    try:
        config = json.loads(argv[0] if argv else sys.stdin.read())
        with as_flags(config.get("flags", False)):
            report = prepare(
                config["model"],
                decode(Source, config["data"], "data"),
                config["out"],
                config["seq_len"],
                lambda progress: say(progress=progress),
                config.get("enough"),
            )
    except Exception as error:
        if (said := sentence(error)) is None:
            raise
        say(error=said)
        return 2
    say(report=encode(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
