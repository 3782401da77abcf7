"""What a user means by MODEL."""

from __future__ import annotations

import os
from pathlib import Path

from featherback.errors import FeatherbackError
from featherback.hub import stores
from featherback.hub.cache import cache_place, is_verified
from featherback.hub.catalogue import CATALOGUE


def locate(model: str | os.PathLike[str]) -> Path:
    """The path of a model: a GGUF file, a Hugging Face folder, the name of a model in the cache, or "STORE:NAME".

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
        cached = cache_place() / name / known.filename
        if is_verified(cached, known.sha256):
            return cached
        raise FeatherbackError(
            f"The model {name} has not been fetched; get it with: featherback fetch {name}"
        )
    if (found := stores.find(str(model))) is not None:
        return found
    elsewhere = ", ".join(f"{prefix}:NAME" for prefix in stores.STORES.names)
    raise FeatherbackError(
        f"There is no model {model}: name a GGUF file, a Hugging Face folder, {', '.join(CATALOGUE)}, or a model of "
        f"another program as {elsewhere}; `featherback models` lists those on this machine."
    )
