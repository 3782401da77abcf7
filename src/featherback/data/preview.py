"""Show which tokens of an example are trained, for `featherback inspect`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice

from featherback.data.encoder import Encoder
from featherback.data.readers import detect, read_jsonl, read_text
from featherback.data.tokenizer import Tokenizer
from featherback.data.tokenizer_loader import load_tokenizer


@dataclass(frozen=True)
class Preview:
    """An example as training sees it."""

    where: str
    runs: list[tuple[str, bool]]
    """The text, control tokens included, in stretches that are supervised or not."""
    n_tokens: int
    n_supervised: int
    truncated: int
    """Tokens cut off because they are beyond the sequence length."""


def preview(
    model_path: str | os.PathLike[str],
    data_path: str | os.PathLike[str],
    seq_len: int = 256,
    count: int = 1,
    start: int = 0,
) -> list[Preview]:
    """`count` examples of a data file from number `start` on (a text file has one)."""
    tokenizer = load_tokenizer(model_path)
    with Encoder(tokenizer) as encoder:
        if detect(data_path) == "txt":
            ids: list[int] = []
            for part, _ in encoder.stream(read_text(data_path)):
                ids += part.tolist()
                if len(ids) >= seq_len:
                    break
            return [_preview(tokenizer, str(data_path), ids[:seq_len], [True] * seq_len, seq_len)]
        chosen = islice(read_jsonl(data_path), start, start + count)
        return [
            _preview(tokenizer, example.where, encoded.ids.tolist(), encoded.mask.tolist(), seq_len)
            for example, encoded in encoder.encode_all(chosen)
        ]


def _preview(tokenizer: Tokenizer, where: str, ids: list[int], mask: list[bool], seq_len: int) -> Preview:
    kept = ids[:seq_len]
    trained = [False, *mask[1 : len(kept)]]  # nothing predicts the first token
    return Preview(
        where, list(_runs(tokenizer, kept, trained)), len(kept), sum(trained), len(ids) - len(kept)
    )


def _runs(tokenizer: Tokenizer, ids: list[int], mask: list[bool]) -> Iterator[tuple[str, bool]]:
    end = told = 0
    for supervised, run in groupby(mask):
        end += len(list(run))
        text = tokenizer.decode(
            ids[:end], special=True
        )  # from the start: a piece alone may lose a leading space
        yield text[told:], supervised
        told = len(text)
