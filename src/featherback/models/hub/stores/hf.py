"""The cache of Hugging Face's client, and what `featherback fetch` keeps in one of its own.

models--OWNER--NAME/refs/main names a revision, and snapshots/REVISION has its files, as far as they were downloaded. A
name is OWNER/NAME, or OWNER/NAME:FILE where there are several GGUF files; a part of the file's name will do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from featherback.core.files import cache_place, read_bytes
from featherback.errors import FeatherbackError
from featherback.models.hub.choose import choices, choose
from featherback.models.hub.stores.base import Store, files_below, is_plain, subfolders

PREFIX = "models--"
OWN = "hub"
"""The folder of our own cache that the client keeps for us."""
_DEPTH = 2  # of folders within a repository
_MOST_REVISION = 200  # bytes of its name


class HuggingFace(Store):
    title = "Hugging Face's cache"
    get = "featherback fetch OWNER/NAME"

    def folders(self) -> list[Path]:
        for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
            if configured := os.environ.get(variable):
                return [Path(configured), cache_place() / OWN]
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        home = Path(os.environ.get("HF_HOME") or caches / "huggingface")
        return [home / "hub", cache_place() / OWN]

    def names(self) -> Iterator[str]:
        for root in self.folders():
            for folder in subfolders(root):
                if folder.name.startswith(PREFIX) and (snapshot := _snapshot(folder)):
                    repository = folder.name.removeprefix(PREFIX).replace("--", "/")
                    yield from choices(repository, files_below(snapshot, _DEPTH))

    def path(self, name: str) -> Path | None:
        repository, _, file = name.partition(":")
        folder = PREFIX + repository.replace("/", "--")
        if not is_plain(folder):
            return None
        for root in self.folders():
            if snapshot := _snapshot(root / folder):
                found = files_below(snapshot, _DEPTH)
                chosen = choose(f"hf:{repository}", file or None, found)
                return snapshot / chosen[0] if chosen[0].endswith(".gguf") else snapshot
        return None


def _snapshot(folder: Path) -> Path | None:
    """The revision that "main" was last, or the newest that is there."""
    try:
        revision = read_bytes(folder / "refs" / "main", _MOST_REVISION).decode("ascii", "replace").strip()
    except FeatherbackError:
        revision = ""
    snapshots = folder / "snapshots"
    if is_plain(revision) and os.path.isdir(snapshots / revision):
        return snapshots / revision
    return max(subfolders(snapshots), key=lambda found: (found.stat().st_mtime, found.name), default=None)


STORE = HuggingFace()
