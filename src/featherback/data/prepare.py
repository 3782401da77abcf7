"""Turn a data file into a token file.

    python -m featherback.data.prepare '{"model": ..., "data": ..., "out": ..., "seq_len": 256}'

A tokenizer takes tens of megabytes, so this runs as a process of its own that ends before training begins
(`launch.prepare_in_subprocess`). It writes one JSON object per line: {"progress": ...} now and then, at last
{"report": ...} or {"error": "a sentence"}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from featherback.data.encoder import Encoder
from featherback.data.readers import Example, detect, read_jsonl, read_text
from featherback.data.report import PrepareReport
from featherback.data.token_file import TokenFileWriter
from featherback.data.tokenizer_loader import load_tokenizer
from featherback.errors import FeatherbackError
from featherback.failure import sentence

Progress = Callable[[dict[str, Any]], None]
_PROGRESS_SECONDS = 0.5


def prepare(
    model_path: str | os.PathLike[str],
    data_path: str | os.PathLike[str],
    out_path: str | os.PathLike[str],
    seq_len: int,
    progress: Progress | None = None,
) -> PrepareReport:
    """Encode the data for a model into a token file of sequences of at most `seq_len` tokens.

    Conversations and prompt/completion pairs longer than that are cut at the end and counted; text is cut
    into sequences. The data set is streamed. Raises FeatherbackError, naming file and line, for data that
    cannot be used.
    """
    if seq_len < 2:
        raise FeatherbackError(
            f"The sequence length is {seq_len}; it must be at least 2 for a token to predict another."
        )
    began = time.monotonic()
    kind = detect(data_path)
    tokenizer = load_tokenizer(model_path)
    report = PrepareReport(str(data_path), seq_len)
    with TokenFileWriter(out_path) as writer:
        work = _Preparation(Encoder(tokenizer), report, writer, progress)
        if kind == "txt":
            work.add_file(Path(data_path))
        else:
            for example in read_jsonl(data_path):
                work.add(example)
        if writer.n_targets == 0:
            raise FeatherbackError(_nothing_to_train(report))
        report.sequences, report.tokens = writer.n_sequences, writer.n_tokens
        report.supervised_tokens = writer.n_targets
        report.renamed_roles = work.encoder.renamed
        report.seconds = time.monotonic() - began
        report.peak_rss_mb = _peak_rss_mb()
        writer.metadata.update(seq_len=seq_len, n_vocab=tokenizer.n_vocab, report=report.to_json())
    return report


class _Preparation:
    """Examples in, sequences out, everything counted."""

    def __init__(
        self, encoder: Encoder, report: PrepareReport, writer: TokenFileWriter, progress: Progress | None
    ) -> None:
        self.encoder, self.report, self.writer, self.progress = encoder, report, writer, progress
        self._told = time.monotonic()

    def add(self, example: Example) -> None:
        """One line of a JSONL file."""
        try:
            if example.text is not None:
                document = list(self.encoder.document(example.text))
            else:
                ids, mask = self.encoder.encode(example)
        except FeatherbackError as error:
            raise FeatherbackError(f"{example.where}: {error}") from None
        if example.text is not None:
            self._add_document(iter(document), example.where)
        else:
            shape = "messages" if example.messages is not None else "prompt"
            self._add_exchange(ids, mask, shape, example.where)
        self.report.spelled_control += self.encoder.spells_control(example)

    def add_file(self, path: Path) -> None:
        """A text file as one document."""
        spelled = False

        def lines() -> Iterator[str]:
            nonlocal spelled
            for line in read_text(path):
                spelled = spelled or self.encoder.spells_control(Example("", text=line))
                yield line

        self._add_document(self.encoder.stream(lines()), str(path))
        self.report.spelled_control += spelled

    def _add_document(self, parts: Iterator[list[int]], where: str) -> None:
        """Cut a document into sequences of seq_len tokens, all supervised."""
        size = self.report.seq_len
        held: list[int] = []
        length = 0
        for part in parts:
            length += len(part)
            held.extend(part)
            full = len(held) // size * size
            for start in range(0, full, size):
                self.writer.add(held[start : start + size], [True] * size)
            del held[:full]
            self._tell()
        if len(held) > 1:  # a single token left over predicts nothing
            self.writer.add(held, [True] * len(held))
        self._count("text", length)
        if length < 2:
            self._drop(where)

    def _add_exchange(self, ids: list[int], mask: list[bool], shape: str, where: str) -> None:
        """Add a conversation, cut at the end if it is too long."""
        report = self.report
        self._count(shape, len(ids))
        if len(ids) > report.seq_len:
            report.truncated += 1
            report.truncated_tokens += len(ids) - report.seq_len
            report.first_truncated = report.first_truncated or where
            ids, mask = ids[: report.seq_len], mask[: report.seq_len]
        if any(mask[1:]):
            self.writer.add(ids, mask)
        else:
            self._drop(where)
        self._tell()

    def _count(self, shape: str, length: int) -> None:
        self.report.examples += 1
        self.report.shapes[shape] = self.report.shapes.get(shape, 0) + 1
        self.report.count_length(length)

    def _drop(self, where: str) -> None:
        self.report.dropped += 1
        self.report.first_dropped = self.report.first_dropped or where

    def _tell(self) -> None:
        now = time.monotonic()
        if self.progress and now - self._told > _PROGRESS_SECONDS:
            self._told = now
            self.progress({"examples": self.report.examples, "tokens": self.writer.n_tokens})


def _nothing_to_train(report: PrepareReport) -> str:
    if report.truncated == report.examples:
        return (
            f"{report.data} has no supervised token within {report.seq_len} tokens: every example is longer "
            f"(up to {report.longest}) and is cut before its answer. Raise the sequence length."
        )
    return f"{report.data} has no supervised token at all: it holds no assistant turn to train on."


def _peak_rss_mb() -> float:
    """Resident peak of this process in MB (10^6 bytes)."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6
    except (OSError, IndexError):  # not Linux; there getrusage would also count the parent from before exec
        try:
            import resource
        except ImportError:
            return 0.0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def main(argv: list[str]) -> int:
    """The process: configuration as JSON in argv[0], or on standard input."""

    def say(**message: Any) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    try:
        config = json.loads(argv[0] if argv else sys.stdin.read())
        report = prepare(
            config["model"],
            config["data"],
            config["out"],
            config["seq_len"],
            lambda progress: say(progress=progress),
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
