"""The model cache: its folder, and the record of which files in it have been verified."""

from __future__ import annotations

import json
import os
from pathlib import Path

from featherback.core import private
from featherback.core.files import default_cache_folder, write_json
from featherback.errors import FeatherbackError


def cache_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """Return `given`, or the default cache folder if it is None. The folder is created if it is missing."""
    return made(default_cache_folder() if given is None else Path(given))


def made(folder: Path) -> Path:
    """Create the folder if it is missing, and return it. Raises FeatherbackError if it cannot be created."""
    try:
        private.make_folder(folder)
    except OSError as error:
        raise unwritable(folder, error) from error
    return folder


def unwritable(folder: Path, error: OSError) -> FeatherbackError:
    return FeatherbackError(
        f"Cannot write to the cache folder {folder}: {error.strerror}. Set FEATHERBACK_CACHE to another folder."
    )


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    import hashlib  # loads OpenSSL: 3 MB that preparing data does not need

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def record(path: Path, sha256: str) -> None:
    """Write a small file beside `path` that records its SHA-256 and size."""
    write_json(_record_path(path), {"sha256": sha256, "size": path.stat().st_size})


def is_verified(path: Path, sha256: str, full: bool = False) -> bool:
    """Return whether `path` was recorded with this SHA-256 and still has the same size.

    `full` hashes the file again.
    """
    try:
        noted = json.loads(_record_path(path).read_bytes())
        known = noted == {"sha256": sha256, "size": path.stat().st_size}
        return known and (not full or file_sha256(path) == sha256)
    except (OSError, ValueError):
        return False


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + ".verified.json")
