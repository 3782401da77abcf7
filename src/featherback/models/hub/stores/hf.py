"""The cache of Hugging Face's client, and the cache of the same form that `featherback fetch` uses.

models--OWNER--NAME/refs/main names a revision, and snapshots/REVISION has its downloaded files. A name is OWNER/NAME,
or OWNER/NAME:FILE if there are several GGUF files. FILE may be any unambiguous part of a file's name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from featherback.core.files import default_cache_folder, read_bytes
from featherback.errors import FeatherbackError
from featherback.models.hub.choose import choices, choose
from featherback.models.hub.stores.base import Store, files_below, is_plain, subfolders

PREFIX = "models--"
OWN = "hub"
"""The folder of Featherback's cache that Hugging Face's client manages."""
_DEPTH = 2  # levels of folders in a repository
_MOST_REVISION = 200  # bytes of a revision's name


class HuggingFace(Store):
    title = "Hugging Face's cache"
    get = "featherback fetch OWNER/NAME"

    def folders(self) -> list[Path]:
        for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
            if configured := os.environ.get(variable):
                return [Path(configured), default_cache_folder() / OWN]
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        home = Path(os.environ.get("HF_HOME") or caches / "huggingface")
        return [home / "hub", default_cache_folder() / OWN]

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
    """The folder of the revision "main", or else of the newest revision."""
    try:
        revision = read_bytes(folder / "refs" / "main", _MOST_REVISION).decode("ascii", "replace").strip()
    except FeatherbackError:
        revision = ""
    snapshots = folder / "snapshots"
    if is_plain(revision) and os.path.isdir(snapshots / revision):
        return snapshots / revision
    return max(subfolders(snapshots), key=lambda found: (found.stat().st_mtime, found.name), default=None)


STORE = HuggingFace()
