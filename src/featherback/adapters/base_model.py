"""What an adapter calls the model that it belongs to."""

from __future__ import annotations

import re
from pathlib import Path

from featherback.models.model import Model
from featherback.weights.gguf import GGUFFile

HUB = "https://huggingface.co/"
_SOURCES = ("general.source.huggingface.repository", "general.source.repo_url", "general.repo_url")
_PARENT = "general.base_model.0.repo_url"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def base_model_name(model: Model) -> str:
    """The name of `model` on the Hub, if its file tells, or its path."""
    return hub_name(model) or str(model.path.absolute())


def hub_name(model: Model) -> str | None:
    """The name of `model` on the Hub, "Qwen/Qwen2.5-0.5B-Instruct", if a GGUF's metadata tell it.

    They name its source, or a parent. What a model was tuned from is also a parent, so one counts only if it bears the
    model's own name.
    """
    if model.source != "gguf":
        return None
    file = GGUFFile(Path(model.path))
    found = [file.metadata.get(key) for key in _SOURCES]
    parent, own = file.metadata.get(_PARENT), file.metadata.get("general.name")
    file.close()
    if isinstance(own, str) and isinstance(parent, str) and _plain(parent.rpartition("/")[2]) == _plain(own):
        found.append(parent)
    for source in found:
        if isinstance(source, str) and _REPOSITORY.fullmatch(name := source.removeprefix(HUB).rstrip("/")):
            return name
    return None


def _plain(name: str) -> str:
    """A name without what the converter changes in it: "Qwen2.5 0.5B Instruct" and "Qwen2.5-0.5B-Instruct" agree."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
