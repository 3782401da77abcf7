"""Show which tokens of an example are trained, for `featherback inspect`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from featherback.data.containers.base import Document
from featherback.data.encoder import Encoder, document_of
from featherback.data.example import Bad, Example
from featherback.data.readers import data_files
from featherback.data.source import Source
from featherback.data.templates.renderer import Renderer
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.data.tokenizers.tokenizer import Ids, Tokenizer
from featherback.errors import FeatherbackError


@dataclass(frozen=True)
class Preview:
    """An example as it is trained."""

    where: str
    runs: list[tuple[str, bool]]
    """Pieces of the text with control tokens, and whether each piece is supervised."""
    n_tokens: int
    n_supervised: int
    truncated: int
    """Tokens cut off because they are beyond the sequence length."""


def preview(
    model_path: str | os.PathLike[str],
    data: Source | str | os.PathLike[str],
    seq_len: int = 256,
    count: int = 1,
    start: int = 0,
    renderer: Renderer | None = None,
) -> list[Preview]:
    """Return `count` examples of the data from number `start` on. A text file counts as one example.

    Each preview shows the example's first sequence. `renderer`: as for `Encoder`.
    """
    tokenizer, source = load_tokenizer(model_path), Source.of(data)
    with Encoder(tokenizer, renderer=renderer) as encoder:
        return list(islice(_previews(tokenizer, encoder, source, seq_len), start, start + count))


def _previews(tokenizer: Tokenizer, encoder: Encoder, source: Source, seq_len: int) -> Iterator[Preview]:
    for file in data_files(source):
        if file.holds_texts:
            for document in file.documents():
                yield _text(tokenizer, encoder, document, seq_len)
        else:
            for item in encoder.encode_all(file.examples()):
                if isinstance(item, Example):
                    yield _text(tokenizer, encoder, document_of(item), seq_len)
                elif not isinstance(item, Bad):
                    example, encoded = item
                    most = encoded.ids.size if source.long == "keep" and example.text is None else seq_len
                    yield _preview(tokenizer, example.where, encoded.ids, encoded.mask, most)
                elif not source.skip_bad:
                    raise FeatherbackError(f"{item.where}: {item.problem}")


def _text(tokenizer: Tokenizer, encoder: Encoder, document: Document, seq_len: int) -> Preview:
    ids = np.empty(0, np.uint32)
    for part, _ in encoder.stream(document.pieces):
        ids = np.concatenate([ids, part[: seq_len - ids.size]])
        if ids.size == seq_len:
            break
    return _preview(tokenizer, document.where, ids, np.ones(ids.size, np.bool_), seq_len)


def _preview(tokenizer: Tokenizer, where: str, ids: Ids, mask: NDArray[np.bool_], most: int) -> Preview:
    trained = mask[:most].copy()
    trained[:1] = False  # nothing predicts the first token
    runs = list(_runs(tokenizer, ids[:most], trained))
    return Preview(where, runs, trained.size, int(trained.sum()), ids.size - trained.size)


def _runs(tokenizer: Tokenizer, ids: Ids, trained: NDArray[np.bool_]) -> Iterator[tuple[str, bool]]:
    ends = [*(np.flatnonzero(np.diff(trained)) + 1).tolist(), ids.size]
    start = shown = 0
    for end in ends if ids.size else ():
        # decoded from the start, because a piece by itself may lose its leading space
        text = tokenizer.decode(ids[:end].tolist(), special=True)
        yield text[shown:], bool(trained[start])
        start, shown = end, len(text)
