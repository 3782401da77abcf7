"""The tokens at which programs stop: generation_config.json of a Hugging Face folder, and what is missing there.

A base model's configuration often stops only at the end of a document. A model trained on chats ends its answers with
another token, and would go on after it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from featherback.core.files import atomic_file, read_json
from featherback.errors import FeatherbackError

GENERATION = "generation_config.json"


@dataclass(frozen=True)
class Stops:
    """End tokens by id and name."""

    ids: list[int]
    """All of them, those that the folder names first."""
    missing: list[str]
    """The names of those at which the folder's configuration does not stop."""
    notes: list[str] = field(default_factory=list)
    """Why they are unknown, if the tokenizer cannot be read."""


def find_stops(folder: Path) -> Stops:
    """Return the end tokens of a Hugging Face folder; none if it has no tokenizer."""
    from featherback.data.tokenizers.folder import FILE, named_ends  # only here: training does not need it
    from featherback.data.tokenizers.loader import load_tokenizer

    if not (folder / FILE).is_file():
        return Stops([], [])
    try:
        tokenizer = load_tokenizer(folder)
    except FeatherbackError as error:
        return Stops([], [], [f"the model's end tokens are unknown: {error}"])
    named, _ = named_ends(folder, tokenizer.n_vocab)
    others = sorted(tokenizer.end_ids - set(named))
    return Stops([*named, *others], [tokenizer.decode([i], special=True) for i in others])


def write_stops(folder: Path) -> list[str]:
    """Name all end tokens in a written folder's generation_config.json, and return a note if that changed it."""
    stops = find_stops(folder)
    if not stops.missing:
        return stops.notes
    path = folder / GENERATION
    values = read_json(path) if path.is_file() else _defaults(folder)
    values["eos_token_id"] = stops.ids
    with atomic_file(path) as file:
        file.write((json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode())
    return [f"{GENERATION} stops at {_listed(stops.missing)} too, because the model's texts and answers end there"]


def stop_note(base: Path) -> list[str]:
    """Return a note for an adapter if its base model, a folder, does not stop at all end tokens."""
    stops = find_stops(base) if base.is_dir() else Stops([], [])
    if not stops.missing:
        return stops.notes
    return [
        f"the base model's configuration does not stop at {_listed(stops.missing)}, where answers end. With "
        f"transformers, give model.generate eos_token_id={stops.ids}; give mlx-lm the names as extra end tokens"
    ]


def _defaults(folder: Path) -> dict[str, object]:
    """Return what transformers takes from config.json if there is no generation_config.json."""
    config = folder / "config.json"
    values = read_json(config) if config.is_file() else {}
    return {key: values[key] for key in ("bos_token_id", "pad_token_id") if values.get(key) is not None}


def _listed(names: list[str]) -> str:
    return ", ".join(names)
