"""LM Studio's store: PUBLISHER/MODEL/ holds GGUF files, or a folder of safetensors.

A name is PUBLISHER/MODEL, or PUBLISHER/MODEL/FILE if there are several files. FILE may be any unambiguous part of a
file's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from featherback.models.hub.choose import choices, choose
from featherback.models.hub.stores.base import Store, files_below, is_plain, subfolders

_DEPTH = 1  # levels of folders in a model's folder


class LMStudio(Store):
    title = "LM Studio's store"
    get = "lms get NAME"

    def folders(self) -> list[Path]:
        return [Path.home() / ".lmstudio" / "models", Path.home() / ".cache" / "lm-studio" / "models"]

    def names(self) -> Iterator[str]:
        for folder in self.folders():
            for publisher in subfolders(folder):
                for model in subfolders(publisher):
                    yield from choices(f"{publisher.name}/{model.name}", files_below(model, _DEPTH), join="/")

    def path(self, name: str) -> Path | None:
        publisher, model, file = (*name.split("/", 2), "", "")[:3]
        if not (is_plain(publisher) and is_plain(model)):
            return None
        for root in self.folders():
            folder = root / publisher / model
            if found := files_below(folder, _DEPTH):
                chosen = choose(f"lmstudio:{publisher}/{model}", file or None, found, join="/")
                return folder / chosen[0] if chosen[0].endswith(".gguf") else folder
        return None


STORE = LMStudio()
