"""How the files of a model say that its embeddings are pooled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from featherback.core.files import read_json
from featherback.errors import FeatherbackError
from featherback.models.model import Model

FOLDER, FILE = "1_Pooling", "config.json"
MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
"""Entry of Sentence Transformers' configuration -> our name."""
_OTHERS = ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")
_GGUF = {1: "mean", 2: "cls", 3: "last"}


def stored_pooling(model: Model) -> str | None:
    """Return "mean", "cls" or "last"; None if the files do not say. Raises FeatherbackError for another pooling."""
    if model.source == "gguf":
        metadata: Mapping[str, Any] = getattr(model.store, "metadata", {})
        value = metadata.get(f"{model.family.architecture}.pooling_type")
        return _GGUF.get(value) if isinstance(value, int) else None
    path = Path(model.path) / FOLDER / FILE
    if not path.is_file():
        return None
    entries = read_json(path)
    chosen = {name for name, value in entries.items() if value is True} if isinstance(entries, dict) else set()
    found = [MODES[name] for name in MODES if name in chosen]
    if chosen & set(_OTHERS) or len(found) > 1:
        listed = ", ".join(sorted(chosen & {*MODES, *_OTHERS}))
        raise FeatherbackError(f"{path} asks for {listed}; supported is one of: {', '.join(MODES)}.")
    return found[0] if found else None


def pooling_entries(pooling: str, width: int) -> dict[str, Any]:
    """Return the configuration of Sentence Transformers for this pooling."""
    modes = {name: each == pooling for name, each in MODES.items()}
    return {"word_embedding_dimension": width, **modes, **dict.fromkeys(_OTHERS, False), "include_prompt": True}
