"""Find the model that a user named."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from featherback.core.cache import is_verified
from featherback.core.files import default_cache_folder
from featherback.errors import FeatherbackError, did_you_mean, near
from featherback.models.hub import stores
from featherback.models.hub.catalogue import CATALOGUE, is_repository
from featherback.models.hub.stores.base import MOST_ENTRIES

_CONFIG = "config.json"  # marks a Hugging Face or MLX folder


def locate(model: str | os.PathLike[str]) -> Path:
    """Return the path of a model.

    `model`: a GGUF file, a Hugging Face folder, the short name or the OWNER/NAME of a fetched model, or "STORE:NAME".
    Raises FeatherbackError if there is no such model; the message says how to get it.
    """
    path = Path(model)
    try:
        if path.exists():
            return path
    except OSError as error:  # not a valid file name
        raise FeatherbackError(f"Cannot read {model}: {error.strerror}.") from error
    name = str(model).lower()
    if known := CATALOGUE.get(name):
        cached = default_cache_folder() / name / known.filename
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
        f"There is no model {model}. MODEL is a GGUF file, a Hugging Face folder, {', '.join(CATALOGUE)}, or another "
        f"program's model as {elsewhere}; `featherback models` lists the models on this machine."
    )
    raise FeatherbackError(unknown + did_you_mean(_near(str(model))))


def _near(model: str) -> list[str]:
    """Names of models that resemble an unknown name: short names, models of stores, and files of the same folder."""
    named = {name: name for name in CATALOGUE}
    named |= {name.partition(":")[2]: name for name in stores.names()}  # "qwen2.5:0.5b": "ollama:qwen2.5:0.5b"
    path = Path(model)
    beside = {entry.name: str(path.parent / entry.name) for entry in models_in(path.parent)}
    found = [named[each] for each in near(model, named)]
    return found + [beside[each] for each in near(path.name, beside)]


def models_in(folder: Path) -> list[Path]:
    """The GGUF files and model folders in a folder; empty if it cannot be read."""
    try:
        entries = list(islice(folder.iterdir(), MOST_ENTRIES))
        return [each for each in sorted(entries) if each.suffix == ".gguf" or (each / _CONFIG).is_file()]
    except OSError:
        return []
