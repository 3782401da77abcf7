"""Turn data into a token file.

    python -m featherback.data.prepare '{"model": ..., "data": {"paths": [...], ...}, "out": ..., "seq_len": 256}'

A tokenizer takes tens of megabytes, so this runs in a process that does not train: the one that `featherback train`
is until training takes its place, or one of its own (`launch.prepare_in_subprocess`). The latter writes one JSON object
per line: {"progress": {"examples": n, "tokens": n, "read": bytes, "of": bytes}} now and then, at last {"report": ...}
or {"error": "a sentence"}. With "enough" reading ends after so many tokens.
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

from featherback.core.failure import sentence
from featherback.core.naming import argument
from featherback.core.sizes import MB
from featherback.core.terminal import PROGRESS_SECONDS
from featherback.data.containers.base import Document
from featherback.data.duplicates import Duplicates, marked
from featherback.data.encoder import Encoded, Encoder, document_of
from featherback.data.example import Bad, Example
from featherback.data.inputs import keep_stdin
from featherback.data.readers import DataFile, data_files
from featherback.data.record_size import RecordRoom
from featherback.data.report import PrepareReport, too_long
from featherback.data.source import STDIN, Source
from featherback.data.token_file import TokenFileWriter
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError

Progress = Callable[[dict[str, Any]], None]
REHEARSED = 16  # examples, or blocks of a text


class Watch(RecordRoom, Protocol):
    """Who sees to it that a preparation takes no more than it may."""

    def check(self) -> None:
        """FeatherbackError if what was seen was too much."""

    def conclude(self) -> None:
        """FeatherbackError if a record was refused, with what all of them need: everything was looked at."""


def prepare(
    model_path: str | os.PathLike[str],
    data: Source | str | os.PathLike[str],
    out_path: str | os.PathLike[str],
    seq_len: int,
    progress: Progress | None = None,
    enough: int | None = None,
    watch: Watch | None = None,
) -> PrepareReport:
    """Encode the data for a model into a token file of sequences of at most `seq_len` tokens.

    What becomes of conversations and prompt/completion pairs longer than that says `data.long`: a path alone means that
    they are counted, and refused in the end. Text is cut into sequences. The data are streamed, and read no further
    than `enough` tokens need. `watch` sees a rehearsal with the first of the data, and then all. Raises
    FeatherbackError, naming file and line, for data that cannot be used.
    """
    if seq_len < 2:
        raise FeatherbackError(
            f"The sequence length is {seq_len}; it must be at least 2 for a token to predict another."
        )
    began = time.monotonic()
    source = Source.of(data)
    if STDIN in source.paths:
        keep_stdin(Path(out_path).parent)
    data_files(source)
    tokenizer = load_tokenizer(model_path)
    names = [source.title] if source.title else list(source.paths)
    report = PrepareReport(names, seq_len, enough=enough, tokenizer_note=tokenizer.note)
    if watch:
        _rehearse(tokenizer, source, watch)
    with TokenFileWriter(out_path) as writer, Encoder(tokenizer) as encoder:
        work = _Preparation(encoder, report, writer, source, progress, watch)
        work.run()
        if report.too_long:
            raise FeatherbackError(_too_long(report))
        if writer.n_targets == 0:
            raise FeatherbackError(_nothing_to_train(report))
        report.sequences, report.tokens = writer.n_sequences, writer.n_tokens
        report.supervised_tokens = writer.n_targets
        report.renamed_roles = encoder.renamed
        report.duplicates, report.duplicates_exact = work.duplicates.count, work.duplicates.is_exact
        report.enough = work.enough
        report.seconds = time.monotonic() - began
        report.peak_rss_mb = _peak_rss_mb()
        writer.metadata.update(seq_len=seq_len, n_vocab=tokenizer.n_vocab, report=report.to_json())
    return report


def _rehearse(tokenizer: Tokenizer, source: Source, watch: Watch) -> None:
    """Have `watch` see the tokenizer, the template's process and the encoder at work; what they make is dropped."""
    with Encoder(tokenizer) as encoder:
        encoder.start()
        watch.look(now=True)
        for file in data_files(source, room=watch):
            for item in islice(_encoded(encoder, file), REHEARSED):
                watch.look(now=True)
                if isinstance(item, Bad) and not source.skip_bad:
                    break  # which the preparation itself ends with
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
    """How much was read. By itself, as the files refer to it: a circle would keep the tokenizer in memory."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, size: int) -> None:
        self.count += size


class _Preparation:
    """Examples in, sequences out, everything counted."""

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
        self._told = time.monotonic()
        self._read = _Bytes()
        self.duplicates = Duplicates()
        self._files = data_files(source, self._read.add, watch)
        self._size = sum(file.size for file in self._files)
        report.not_read += [said for file in self._files if (said := file.not_read)]

    def run(self) -> None:
        """Read everything, or as far as is needed."""
        for file in self._files:
            if self._ends_behind(file.data.name):
                return
            if not file.holds_texts:
                self._add_examples(file)
                continue
            for document in file.documents():
                if self._ends_behind(document.where):
                    return
                self._add_stream(document)
        if self.watch:
            self.watch.conclude()

    def _ends_behind(self, where: str) -> bool:
        """Whether what was read before `where` is enough."""
        if enough := self._is_enough():
            self.report.read_to = self.report.read_to or f"the beginning of {where}"
        return enough

    def _add_examples(self, file: DataFile) -> None:
        where = ""
        for item in self.encoder.encode_all(file.examples()):
            if self._is_enough():
                self.report.read_to = where
                return
            if isinstance(item, Bad):
                self._skip(item)
            elif isinstance(item, Example):
                self.report.use(item)
                self._add_stream(document_of(item))
            else:
                self._add(*item)
            where = item[0].where if isinstance(item, tuple) else item.where
            self._tell()

    def _skip(self, bad: Bad) -> None:
        """Count a record that cannot be used, or end with what is wrong with it."""
        if not self.source.skip_bad:
            raise bad.refused(first=not self.report.examples)
        self.report.skip(f"{bad.where}: {bad.problem}")

    def _add(self, example: Example, encoded: Encoded) -> None:
        self.report.use(example)
        self.duplicates.add(marked(encoded.mask.tobytes(), marked(encoded.ids.tobytes())))
        if example.text is not None:
            self._add_document(encoded, example.where)
        else:
            self._add_exchange(encoded, example.shape, example.where)
        self.report.spelled_control += encoded.spells_control

    def _add_stream(self, document: Document) -> None:
        """A text of any length, cut into sequences as it comes."""
        size = self.report.seq_len
        held = np.empty(0, np.uint32)
        length, mark, spelled = 0, 0, False
        for part, spells_control in self.encoder.stream(document.pieces):
            if self._is_enough():
                self.report.read_to = f"{document.where}, its first {length - held.size} tokens"
                held = held[:0]
                break
            spelled = spelled or spells_control
            mark = marked(part.tobytes(), mark)
            length += part.size
            held = np.concatenate([held, part])
            full = held.size // size * size
            if full:
                self.writer.add_text(held[:full], size)
            held = held[full:]
            self._tell()
        if held.size > 1:  # a single token left over predicts nothing
            self.writer.add_text(held, size)
        self.duplicates.add(mark)
        self._count("text", length)
        if length < 2:
            self._drop(document.where)
        self.report.spelled_control += spelled

    @property
    def enough(self) -> int | None:
        """Tokens that are enough if batches are as long as what was kept whole."""
        enough, size = self.report.enough, self.report.seq_len
        return None if enough is None else -(-enough * max(size, self.writer.max_length) // size)

    def _is_enough(self) -> bool:
        return (enough := self.enough) is not None and self.writer.n_tokens >= enough

    def _add_document(self, encoded: Encoded, where: str) -> None:
        """Cut a document into sequences of seq_len tokens, all supervised."""
        length = encoded.ids.size
        kept = length - (length % self.report.seq_len == 1)  # a single token left over predicts nothing
        if kept:
            self.writer.add_text(encoded.ids[:kept], self.report.seq_len)
        self._count("text", length)
        if length < 2:
            self._drop(where)

    def _add_exchange(self, encoded: Encoded, shape: str, where: str) -> None:
        """Add a conversation; one that is too long as the source wants it."""
        report, ids, mask = self.report, encoded.ids, encoded.mask
        self._count(shape, ids.size)
        report.longest_chat = max(report.longest_chat, ids.size)
        if ids.size > report.seq_len and self.source.long != "keep":
            if self.source.long == "refuse":
                report.too_long += 1
                report.first_truncated = report.first_truncated or where
                return
            report.cut(ids.size - report.seq_len)
            report.first_truncated = report.first_truncated or where
            ids, mask = ids[: report.seq_len], mask[: report.seq_len]
        if mask[1:].any():
            self.writer.add(ids, mask)
        else:
            self._drop(where)

    def _count(self, shape: str, length: int) -> None:
        self.report.examples += 1
        self.report.shapes[shape] = self.report.shapes.get(shape, 0) + 1
        self.report.count_length(length)

    def _drop(self, where: str) -> None:
        self.report.dropped += 1
        self.report.first_dropped = self.report.first_dropped or where

    def _tell(self) -> None:
        if self.watch:
            self.watch.look()
            self.watch.check()
        now = time.monotonic()
        if self.progress and now - self._told > PROGRESS_SECONDS:
            self._told = now
            self.progress(
                {
                    "examples": self.report.examples,
                    "tokens": self.writer.n_tokens,
                    "read": self._read.count,
                    "of": self._size,
                }
            )


def _too_long(report: PrepareReport) -> str:
    beyond, change = (f"{report.seq_len} tokens", f"{argument('seq_len', report.longest_chat)} takes them whole")
    data = f"{report.data} (first: {report.first_truncated})"
    return too_long(report.too_long, report.examples, data, beyond, report.longest_chat, change)


def _nothing_to_train(report: PrepareReport) -> str:
    if not report.examples and report.skipped:
        return f"{report.data} has no example that can be used; the first: {report.first_skipped[0]}"
    if not report.examples:
        return f"{report.data} holds no text."
    if report.truncated == report.examples:
        return f"{report.nothing_within} Raise the sequence length."
    return f"{report.data} has no supervised token at all: it holds no assistant turn to train on."


def _peak_rss_mb() -> float:
    """Resident peak of this process in MB (10^6 bytes)."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / MB
    except (OSError, IndexError):  # not Linux; there getrusage would also count the parent from before exec
        try:
            import resource
        except ImportError:
            return 0.0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / MB if sys.platform == "darwin" else peak * 1024 / MB


def main(argv: list[str]) -> int:
    """The process: configuration as JSON in argv[0], or on standard input."""

    def say(**message: Any) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    try:
        config = json.loads(argv[0] if argv else sys.stdin.read())
        report = prepare(
            config["model"],
            Source.from_json(config["data"]),
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
    say(report=report.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
