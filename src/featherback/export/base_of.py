"""Which model an adapter belongs to."""

from __future__ import annotations

from pathlib import Path

from featherback.errors import FeatherbackError, shown
from featherback.files import read_json
from featherback.hub.locate import locate
from featherback.private import RUN_FILE

CONFIG_FILE = "adapter_config.json"
MOST_RECORD = 64 << 20


def model_path(adapter: Path, named: str | None) -> Path:
    """The model that the user `named`, or that the run or the adapter's configuration names, if it is here.

    FeatherbackError asking for its name otherwise.
    """
    if named is not None:
        return locate(named)
    folder = adapter if adapter.is_dir() else adapter.parent
    found = [*_recorded(folder), *_configured(folder)] if adapter.suffix != ".gguf" else []
    for name in found:
        if _is_here(name):
            return Path(name)
    told = (
        f"it names {shown(found[0])}, which is not here"
        if found
        else "it does not say on which it was trained"
    )
    raise FeatherbackError(f"Name the model of {adapter} with --model: {told}.")


def _is_here(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:  # a name that no file can have
        return False


def _recorded(folder: Path) -> list[str]:
    """What a run says."""
    if not (folder / RUN_FILE).is_file():
        return []
    record = read_json(folder / RUN_FILE, MOST_RECORD)
    configuration = record.get("configuration") if isinstance(record, dict) else None
    return _texts(configuration, "model")


def _configured(folder: Path) -> list[str]:
    """What PEFT's configuration says, or MLX's."""
    if not (folder / CONFIG_FILE).is_file():
        return []
    return _texts(read_json(folder / CONFIG_FILE), "base_model_name_or_path", "model")


def _texts(entries: object, *names: str) -> list[str]:
    values = [entries.get(name) for name in names] if isinstance(entries, dict) else []
    return [value for value in values if isinstance(value, str) and value.isprintable() and value]
