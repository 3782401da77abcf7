"""What a user means by MODEL."""

from __future__ import annotations

import os
from pathlib import Path

from featherback.errors import FeatherbackError
from featherback.hub.cache import cache_folder, is_verified
from featherback.hub.catalogue import CATALOGUE


def locate(model: str | os.PathLike[str]) -> Path:
    """The path of a model: a GGUF file, a Hugging Face folder, or the name of a model in the cache.

    FeatherbackError if there is none, saying how to get it.
    """
    path = Path(model)
    try:
        if path.exists():
            return path
    except OSError as error:  # a name that no file can have
        raise FeatherbackError(f"Cannot read {model}: {error.strerror}.") from error
    name = str(model).lower()
    if known := CATALOGUE.get(name):
        cached = cache_folder() / name / known.filename
        if is_verified(cached, known.sha256):
            return cached
        raise FeatherbackError(
            f"The model {name} has not been fetched; get it with: featherback fetch {name}"
        )
    raise FeatherbackError(
        f"There is no model {model}: name a GGUF file, a Hugging Face folder, or {', '.join(CATALOGUE)}."
    )
