"""Choose the files of a repository or a folder that make up a model."""

from __future__ import annotations

from collections.abc import Iterable

from featherback.engine.formats.split import part_names
from featherback.errors import FeatherbackError, excerpt

_FOLDER_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_FOLDER_ENDINGS = (".safetensors", ".safetensors.index.json", ".jinja")
_PROJECTOR = "mmproj"  # prefix of image projectors, which lie beside models but are none
_MOST_LISTED = 20


def choose(repository: str, wanted: str | None, names: Iterable[str], join: str = ":") -> list[str]:
    """Return the files of a model: one GGUF file, all parts of a split one, or the files of a Hugging Face folder.

    `wanted`: a file name, or a part of one that fits only one file ("Q4_K_M"). Raises FeatherbackError if no file fits,
    or several; the message names a file as `repository` + `join` + file.
    """
    names = list(names)
    if wanted in names and wanted.endswith(".gguf"):
        return part_names(wanted)
    ggufs = _models(names)
    listing = ", ".join(ggufs[:_MOST_LISTED]) + (", ..." if len(ggufs) > _MOST_LISTED else "") or "none"
    if wanted is not None:
        matching = [name for name in ggufs if wanted.lower() in name.lower()]
        if len(matching) == 1:
            return part_names(matching[0])
        found = f"{len(matching)} GGUF files" if matching else "no GGUF file"
        raise FeatherbackError(f"{excerpt(wanted)} matches {found} of {repository}; it must match one of: {listing}.")
    if len(ggufs) == 1:
        return part_names(ggufs[0])
    if ggufs:
        one = f"choose one as {repository}{join}FILE"
        raise FeatherbackError(f"{repository} holds several GGUF files; {one}. The files: {listing}.")
    chosen = _folder(names)
    if not chosen:
        raise FeatherbackError(f"{repository} holds neither a GGUF file nor safetensors.")
    return chosen


def choices(repository: str, names: Iterable[str], join: str = ":") -> list[str]:
    """The names of the models among the files: the repository's name if it holds one model, else a name per GGUF."""
    names = list(names)
    ggufs = _models(names)
    if len(ggufs) > 1:
        return [f"{repository}{join}{name}" for name in ggufs]
    return [repository] if ggufs or _folder(names) else []


def _models(names: list[str]) -> list[str]:
    """The GGUF files that are models, with only the first part of a split one."""
    return [
        name
        for name in names
        if name.endswith(".gguf") and part_names(name)[0] == name and not name.rpartition("/")[2].startswith(_PROJECTOR)
    ]


def _folder(names: list[str]) -> list[str]:
    """The files of a Hugging Face folder; empty if there are no safetensors."""
    top = [name for name in names if "/" not in name]
    chosen = [name for name in top if name in _FOLDER_FILES or name.endswith(_FOLDER_ENDINGS)]
    return chosen if any(name.endswith(".safetensors") for name in chosen) else []
