"""Detect MODEL and data in each other's place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from featherback.errors import FeatherbackError


def check_not_swapped(command: str, model: str, data: str | Sequence[str] | None, out: object = None) -> None:
    """Raise FeatherbackError, with the corrected command, if `model` is a data file and `data` a model.

    `out`: the value of --out, if any.
    """
    paths = [data] if isinstance(data, str) else list(data or ())
    if len(paths) == 1 and _is_data(Path(model)) and _is_model(paths[0]):
        from featherback.core.terminal import quoted

        meant = quoted("featherback", command, paths[0], "--data", model, *([] if out is None else ["--out", out]))
        raise FeatherbackError(f"MODEL and --data seem to be swapped. Did you mean `{meant}`?")


def _is_data(path: Path) -> bool:
    """Whether a path is a data file or folder, by its name or its first bytes."""
    from featherback.data.containers import has_data_suffix, looks_like_data

    if path.is_dir():
        return not (path / "config.json").exists() and looks_like_data(path, b"")
    head = _head(path)
    return (
        head is not None
        and not head.startswith(b"GGUF")
        and (has_data_suffix(path.name) or looks_like_data(path, head))
    )


def _is_model(name: str) -> bool:
    """Whether a name is a GGUF file, a model folder, or a model of the cache or another program's store."""
    from featherback.models.hub.catalogue import CATALOGUE
    from featherback.models.hub.stores import STORES

    path = Path(name)
    if path.exists():
        return (path / "config.json").exists() or (_head(path) or b"").startswith(b"GGUF")
    return name.lower() in CATALOGUE or (":" in name and name.partition(":")[0] in STORES.names)


def _head(path: Path) -> bytes | None:
    """The first bytes of a regular file; None for anything else."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            return file.read(4096)
    except OSError:
        return None
