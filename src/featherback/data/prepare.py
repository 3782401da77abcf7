"""Turn a data file into a token file.

    python -m featherback.data.prepare '{"model": ..., "data": ..., "out": ..., "seq_len": 256}'

A tokenizer takes tens of megabytes, so this runs as a process of its own that ends before training begins
(`launch.prepare_in_subprocess`). It writes one JSON object per line: {"progress": {"examples": n, "tokens": n,
"read": bytes, "of": bytes}} now and then, at last {"report": ...} or {"error": "a sentence"}. With "enough" reading
ends after so many tokens.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from featherback.data.encoder import Encoded, Encoder
from featherback.data.readers import detect, read_jsonl, read_text
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
    enough: int | None = None,
) -> PrepareReport:
    """Encode the data for a model into a token file of sequences of at most `seq_len` tokens.

    Conversations and prompt/completion pairs longer than that are cut at the end and counted; text is cut
    into sequences. The data set is streamed, and read no further than `enough` tokens need. Raises FeatherbackError,
    naming file and line, for data that cannot be used.
    """
    if seq_len < 2:
        raise FeatherbackError(
            f"The sequence length is {seq_len}; it must be at least 2 for a token to predict another."
        )
    began = time.monotonic()
    kind = detect(data_path)
    tokenizer = load_tokenizer(model_path)
    report = PrepareReport(str(data_path), seq_len, enough=enough, tokenizer_note=tokenizer.note)
    with TokenFileWriter(out_path) as writer, Encoder(tokenizer) as encoder:
        work = _Preparation(encoder, report, writer, Path(data_path), progress)
        if kind == "txt":
            work.add_text_file()
        else:
            work.add_examples()
        if writer.n_targets == 0:
            raise FeatherbackError(_nothing_to_train(report))
        report.sequences, report.tokens = writer.n_sequences, writer.n_tokens
        report.supervised_tokens = writer.n_targets
        report.renamed_roles = encoder.renamed
        report.seconds = time.monotonic() - began
        report.peak_rss_mb = _peak_rss_mb()
        writer.metadata.update(seq_len=seq_len, n_vocab=tokenizer.n_vocab, report=report.to_json())
    return report


class _Preparation:
    """Examples in, sequences out, everything counted."""

    def __init__(
        self,
        encoder: Encoder,
        report: PrepareReport,
        writer: TokenFileWriter,
        path: Path,
        progress: Progress | None,
    ) -> None:
        self.encoder, self.report, self.writer, self.path, self.progress = (
            encoder, report, writer, path, progress,
        )  # fmt: skip
        self._told = time.monotonic()
        self._read, self._size = 0, path.stat().st_size

    def add_examples(self) -> None:
        """A JSONL file."""
        where = ""
        for example, encoded in self.encoder.encode_all(read_jsonl(self.path, self._watch)):
            if self._is_enough():
                self.report.read_to = where
                return
            where = example.where
            if example.text is not None:
                self._add_document(encoded, where)
            else:
                shape = "messages" if example.messages is not None else "prompt"
                self._add_exchange(encoded, shape, where)
            self.report.spelled_control += encoded.spells_control
            self._tell()

    def add_text_file(self) -> None:
        """A text file as one document."""
        size = self.report.seq_len
        held = np.empty(0, np.uint32)
        length, spelled = 0, False
        for part, spells_control in self.encoder.stream(read_text(self.path, self._watch)):
            if self._is_enough():
                self.report.read_to = f"{self.path}, its first {self.writer.n_tokens} tokens"
                held = held[:0]
                break
            spelled = spelled or spells_control
            length += part.size
            held = np.concatenate([held, part])
            full = held.size // size * size
            if full:
                self.writer.add_text(held[:full], size)
            held = held[full:]
            self._tell()
        if held.size > 1:  # a single token left over predicts nothing
            self.writer.add_text(held, size)
        self._count("text", length)
        if length < 2:
            self._drop(str(self.path))
        self.report.spelled_control += spelled

    def _is_enough(self) -> bool:
        return self.report.enough is not None and self.writer.n_tokens >= self.report.enough

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
        """Add a conversation, cut at the end if it is too long."""
        report, ids, mask = self.report, encoded.ids, encoded.mask
        self._count(shape, ids.size)
        if ids.size > report.seq_len:
            report.truncated += 1
            report.truncated_tokens += ids.size - report.seq_len
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

    def _watch(self, size: int) -> None:
        self._read += size

    def _tell(self) -> None:
        now = time.monotonic()
        if self.progress and now - self._told > _PROGRESS_SECONDS:
            self._told = now
            self.progress(
                {
                    "examples": self.report.examples,
                    "tokens": self.writer.n_tokens,
                    "read": self._read,
                    "of": self._size,
                }
            )


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
