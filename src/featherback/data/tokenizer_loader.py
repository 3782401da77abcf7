"""A model's tokenizer, wherever the model keeps it."""

from __future__ import annotations

import os
from pathlib import Path

from featherback.data.tokenizer import Tokenizer
from featherback.data.tokenizer_folder import from_folder
from featherback.data.tokenizer_gguf import from_gguf


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a model: a GGUF file, or a Hugging Face folder with a tokenizer.json."""
    path = Path(path)
    if not path.is_dir():
        return from_gguf(path)
    return from_folder(path)
