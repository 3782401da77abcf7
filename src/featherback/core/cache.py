"""The model cache: where it is, and which files in it have been checked."""

from __future__ import annotations

import json
import os
from pathlib import Path

from featherback.core import private
from featherback.core.files import cache_place, write_json
from featherback.errors import FeatherbackError


def cache_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder given, else the cache. It is made."""
    return made(cache_place() if given is None else Path(given))


def made(folder: Path) -> Path:
    """The folder, which is made if it is missing."""
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
    """SHA-256 of a file, in hexadecimal."""
    import hashlib  # with OpenSSL, 3 MB that a preparation is spared

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def record(path: Path, sha256: str) -> None:
    """Note beside a file that it has this SHA-256."""
    write_json(_record_path(path), {"sha256": sha256, "size": path.stat().st_size})


def is_verified(path: Path, sha256: str, full: bool = False) -> bool:
    """Whether `path` was recorded with this SHA-256 and its present size. `full` hashes it again."""
    try:
        noted = json.loads(_record_path(path).read_bytes())
        known = noted == {"sha256": sha256, "size": path.stat().st_size}
        return known and (not full or file_sha256(path) == sha256)
    except (OSError, ValueError):
        return False


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + ".verified.json")
