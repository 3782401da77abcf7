"""A model's tokenizer, wherever the model keeps it."""

from __future__ import annotations

import os
from pathlib import Path

from featherback.data.tokenizers.folder import check_present, from_folder
from featherback.data.tokenizers.gguf import check_known, from_gguf
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.engine.formats.split import open_gguf

TIMES_GGUF, TIMES_JSON, BESIDE = 2.25, 3.25, 500_000
"""Bytes held for each byte in which a vocabulary is stored, measured with 49,000 and 152,000 tokens, and for code."""


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a model: a GGUF file, or a Hugging Face folder with a tokenizer.json."""
    path = Path(path)
    if not path.is_dir():
        return from_gguf(path)
    return from_folder(path)


def check_tokenizer(path: str | os.PathLike[str]) -> None:
    """FeatherbackError if the model's tokenizer is missing, or of an unknown kind. Its vocabulary is not read."""
    path = Path(path)
    (check_present if path.is_dir() else check_known)(path)


def tokenizer_bytes(path: str | os.PathLike[str]) -> int:
    """Bytes that a process comes to hold at most when it loads the model's tokenizer.

    They grow with the vocabulary as it is stored: the mapped pages, and the tables that are made of it. Where the
    `tokenizers` library has to read it (`Tokenizer.note`) it is more. FeatherbackError as from `check_tokenizer`.
    """
    path = Path(path)
    if path.is_dir():
        return BESIDE + round(TIMES_JSON * check_present(path).stat().st_size)
    file = open_gguf(path)
    try:
        return BESIDE + round(TIMES_GGUF * file.header_bytes)
    finally:
        file.close()
