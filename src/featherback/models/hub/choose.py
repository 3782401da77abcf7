"""Which files of a repository, or of a folder, make up the model that is meant."""

from __future__ import annotations

from collections.abc import Iterable

from featherback.engine.formats.split import part_names
from featherback.errors import FeatherbackError, shown

_FOLDER_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_FOLDER_ENDINGS = (".safetensors", ".safetensors.index.json", ".jinja")
_PROJECTOR = "mmproj"  # what turns images into a model's inputs lies beside it, and is no model
_MOST_LISTED = 20


def choose(repository: str, wanted: str | None, names: Iterable[str], join: str = ":") -> list[str]:
    """The names of the files of a model: one GGUF file, all parts of a split one, or those of a Hugging Face folder.

    `wanted` is a file name or an unambiguous part of one ("Q4_K_M"). FeatherbackError if that leaves several, or none;
    it says that one is named as `repository`, `join` and the file.
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
        found = f"fits {len(matching)} of its GGUF files"
        raise FeatherbackError(f"{repository}: {shown(wanted)} {found}; name one exactly. They are: {listing}.")
    if len(ggufs) == 1:
        return part_names(ggufs[0])
    if ggufs:
        one = f"choose one as {repository}{join}FILE"
        raise FeatherbackError(f"{repository} holds several GGUF files; {one}. They are: {listing}.")
    chosen = _folder(names)
    if not chosen:
        raise FeatherbackError(f"{repository} holds neither a GGUF file nor safetensors.")
    return chosen


def choices(repository: str, names: Iterable[str], join: str = ":") -> list[str]:
    """What can be named to have each model among the files: the repository alone if there is one."""
    names = list(names)
    ggufs = _models(names)
    if len(ggufs) > 1:
        return [f"{repository}{join}{name}" for name in ggufs]
    return [repository] if ggufs or _folder(names) else []


def _models(names: list[str]) -> list[str]:
    """The GGUF files that are models. Of a split one the first part stands for all."""
    return [
        name
        for name in names
        if name.endswith(".gguf") and part_names(name)[0] == name and not name.rpartition("/")[2].startswith(_PROJECTOR)
    ]


def _folder(names: list[str]) -> list[str]:
    """The files of a Hugging Face folder, if there is one."""
    top = [name for name in names if "/" not in name]
    chosen = [name for name in top if name in _FOLDER_FILES or name.endswith(_FOLDER_ENDINGS)]
    return chosen if any(name.endswith(".safetensors") for name in chosen) else []
