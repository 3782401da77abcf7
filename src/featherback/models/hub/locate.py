"""What a user means by MODEL."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from featherback.core.cache import is_verified
from featherback.core.files import cache_place
from featherback.errors import FeatherbackError, did_you_mean, near
from featherback.models.hub import stores
from featherback.models.hub.catalogue import CATALOGUE, is_repository
from featherback.models.hub.stores.base import MOST_ENTRIES

_CONFIG = "config.json"  # of a Hugging Face or MLX folder


def locate(model: str | os.PathLike[str]) -> Path:
    """The path of a model: a GGUF file, a Hugging Face folder, the name of a model in the cache, the
    OWNER/NAME of a fetched one, or "STORE:NAME".

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
        raise FeatherbackError(f"The model {name} has not been fetched; get it with: featherback fetch {name}")
    if (found := stores.find(str(model))) is not None:
        return found
    if is_repository(str(model)):
        if (fetched := stores.STORES["hf"].path(str(model))) is not None:
            return fetched
        raise FeatherbackError(
            f"There is no model {model} on this machine; get it from Hugging Face with: featherback fetch {model}"
        )
    elsewhere = ", ".join(f"{prefix}:NAME" for prefix in stores.STORES.names)
    unknown = (
        f"There is no model {model}: name a GGUF file, a Hugging Face folder, {', '.join(CATALOGUE)}, or a model of "
        f"another program as {elsewhere}; `featherback models` lists those on this machine."
    )
    raise FeatherbackError(unknown + did_you_mean(_near(str(model))))


def _near(model: str) -> list[str]:
    """What may have been meant by a name that no model has: a known name, a store's, or what lies in that folder."""
    named = {name: name for name in CATALOGUE}
    named |= {name.partition(":")[2]: name for name in stores.names()}  # "qwen2.5:0.5b": "ollama:qwen2.5:0.5b"
    path = Path(model)
    beside = {entry.name: str(path.parent / entry.name) for entry in _models_in(path.parent)}
    found = [named[each] for each in near(model, named)]
    return found + [beside[each] for each in near(path.name, beside)]


def _models_in(folder: Path) -> list[Path]:
    """The GGUF files of a folder, and the folders in it that hold a model; none where it cannot be read."""
    try:
        entries = list(islice(folder.iterdir(), MOST_ENTRIES))
        return [each for each in entries if each.suffix == ".gguf" or (each / _CONFIG).is_file()]
    except OSError:
        return []
