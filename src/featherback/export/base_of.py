"""Which model an adapter belongs to."""

from __future__ import annotations

from pathlib import Path

from featherback.adapters.base_model import recorded_names
from featherback.errors import FeatherbackError, shown
from featherback.hub.locate import locate


def model_path(adapter: Path, named: str | None) -> Path:
    """The model that the user `named`, or that the run or the adapter's configuration names, if it is here.

    FeatherbackError asking for its name otherwise.
    """
    if named is not None:
        return locate(named)
    found = recorded_names(adapter)
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
