"""MODEL and data named in each other's place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from featherback.errors import FeatherbackError


def check_not_swapped(command: str, model: str, data: str | Sequence[str] | None, out: object = None) -> None:
    """FeatherbackError, with the command as it was meant, if `model` is a file of data and `data` a model.

    `out`: the --out that the user named, if any.
    """
    paths = [data] if isinstance(data, str) else list(data or ())
    if len(paths) == 1 and _is_data(Path(model)) and _is_model(paths[0]):
        from featherback.core.terminal import quoted

        meant = quoted("featherback", command, paths[0], "--data", model, *([] if out is None else ["--out", out]))
        raise FeatherbackError(f"MODEL and data seem swapped: {meant}")


def _is_data(path: Path) -> bool:
    """Whether a path is of data by its name, or by its first bytes."""
    from featherback.data.containers import is_name_of_data, seems_data

    if path.is_dir():
        return not (path / "config.json").exists() and seems_data(path, b"")
    head = _head(path)
    return head is not None and not head.startswith(b"GGUF") and (is_name_of_data(path.name) or seems_data(path, head))


def _is_model(name: str) -> bool:
    """Whether a name is that of a GGUF file, a model's folder, or a model of the cache or a store."""
    from featherback.models.hub.catalogue import CATALOGUE
    from featherback.models.hub.stores import STORES

    path = Path(name)
    if path.exists():
        return (path / "config.json").exists() or (_head(path) or b"").startswith(b"GGUF")
    return name.lower() in CATALOGUE or (":" in name and name.partition(":")[0] in STORES.names)


def _head(path: Path) -> bytes | None:
    """The first bytes of a regular file."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            return file.read(4096)
    except OSError:
        return None
