"""Download a model from the Hugging Face Hub, with its own client (the extra "hub")."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from featherback.core.cache import file_sha256, is_verified, record
from featherback.errors import FeatherbackError
from featherback.models.hub.choose import choose


def fetch_repository(
    repository: str, wanted: str | None, folder: Path, tell: Callable[[str], None], verify: bool
) -> Path:
    """Download a GGUF file of a repository, or its safetensors folder if it has no GGUF, and return the path.

    `wanted`: a file name, or a part of one that fits only one file ("Q4_K_M"). Large files are checked against the
    SHA-256 of the Hub. Without a connection, a file that was fetched before is found by its exact name.
    """
    try:
        import huggingface_hub as hub
    except ImportError:
        raise FeatherbackError(
            f"Fetching {repository} from Hugging Face needs its client: pip install 'featherback[hub]'."
        ) from None
    try:
        info = hub.HfApi().model_info(repository, files_metadata=True)
        files: dict[str, str | None] = {f.rfilename: _sha256(f) for f in info.siblings or ()}
        names = choose(repository, wanted, sorted(files))
        paths = []
        for name in names:
            tell(f"Fetching {repository}: {name}")
            paths.append(Path(hub.hf_hub_download(repository, name, revision=info.sha, cache_dir=folder)))
    except FeatherbackError:
        raise
    except Exception as error:  # the client has many exceptions, which differ between versions
        cached = hub.try_to_load_from_cache(repository, wanted, cache_dir=folder) if wanted else None
        if isinstance(cached, str):
            tell(f"Hugging Face cannot be reached; using the copy fetched earlier: {cached}")
            return Path(cached)
        if _no_connection(error):
            raise FeatherbackError(
                f"Cannot fetch {repository}: Hugging Face cannot be reached. Check the connection and try again, or "
                f"use a model that is already on this disk."
            ) from error
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise FeatherbackError(f"Cannot fetch {repository} from Hugging Face: {reason}") from error
    for name, path in zip(names, paths, strict=True):
        _check(path, files[name], verify)
    return paths[0] if names[0].endswith(".gguf") else paths[0].parent


def _no_connection(error: BaseException | None) -> bool:
    """Whether an error of the client, or one of its causes, means that the server did not answer."""
    while error is not None:
        named = type(error).__name__  # the HTTP library differs between versions of the client
        if isinstance(error, (ConnectionError, TimeoutError, socket.gaierror)) or any(
            word in named for word in ("Connect", "Timeout", "Proxy", "Offline")
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def _sha256(file: Any) -> str | None:
    """The SHA-256 of a large file; the Hub has none for small ones."""
    lfs = getattr(file, "lfs", None)
    return lfs.get("sha256") if isinstance(lfs, dict) else getattr(lfs, "sha256", None)


def _check(path: Path, sha256: str | None, verify: bool) -> None:
    if sha256 is None or is_verified(path, sha256, full=verify):
        return
    found = file_sha256(path)
    if found != sha256:
        path.resolve().unlink(missing_ok=True)  # `path` is the client's link to the content
        path.unlink(missing_ok=True)
        raise FeatherbackError(
            f"The download of {path.name} is damaged (SHA-256 {found}, expected {sha256}). It was deleted; try again."
        )
    record(path, sha256)
