"""A model's tokenizer, wherever the model keeps it."""

from __future__ import annotations

import os
from pathlib import Path

from featherback.data.tokenizer import Tokenizer
from featherback.data.tokenizer_folder import check_present, from_folder
from featherback.data.tokenizer_gguf import check_known, from_gguf


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
