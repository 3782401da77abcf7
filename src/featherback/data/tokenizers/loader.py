"""Load the tokenizer of a GGUF file or a Hugging Face folder."""

from __future__ import annotations

import os
from pathlib import Path

from featherback.data.tokenizers.folder import check_present, from_folder
from featherback.data.tokenizers.gguf import check_known, from_gguf
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.engine.formats.mapping import reading
from featherback.engine.formats.split import open_gguf

TIMES_GGUF, TIMES_JSON, BESIDE = 2.25, 3.25, 500_000
"""Bytes of memory per byte of stored vocabulary, measured with 49,000 and 152,000 tokens, and bytes for the code."""


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Load the tokenizer of a model: a GGUF file, or a Hugging Face folder with a tokenizer.json."""
    path = Path(path)
    if not path.is_dir():
        return from_gguf(path)
    return from_folder(path)


def check_tokenizer(path: str | os.PathLike[str]) -> None:
    """Raise FeatherbackError if the model's tokenizer is missing or of unknown type. The vocabulary is not read."""
    path = Path(path)
    (check_present if path.is_dir() else check_known)(path)


def tokenizer_bytes(path: str | os.PathLike[str]) -> int:
    """Estimate the most bytes of memory that loading the model's tokenizer takes.

    The estimate grows with the stored size of the vocabulary, for its mapped pages and the tables built from it. If the
    `tokenizers` library has to read it (`Tokenizer.note`), it takes more. Raises the same errors as `check_tokenizer`.
    """
    path = Path(path)
    if path.is_dir():
        return BESIDE + round(TIMES_JSON * check_present(path).stat().st_size)
    with reading(open_gguf(path)) as file:
        return BESIDE + round(TIMES_GGUF * file.header_bytes)
