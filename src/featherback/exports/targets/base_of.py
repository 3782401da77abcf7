"""Which model an adapter belongs to."""

from __future__ import annotations

from pathlib import Path

from featherback import models
from featherback.core.files import read_json
from featherback.core.naming import argument, argument_is
from featherback.engine.formats import fingerprint
from featherback.errors import FeatherbackError, shown
from featherback.exports.base_model import MOST_RECORD, RUN_FILE, recorded_names
from featherback.models.hub.locate import locate
from featherback.models.model import Model


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
    told = f"it names {shown(found[0])}, which is not here" if found else "it does not say on which it was trained"
    raise FeatherbackError(f"Name the model of {adapter} with {argument('model')}: {told}.")


def base_of_run(run: Path, named: str | None) -> Model | None:
    """What the model of `run` was trained from, opened, if it is here and is what it was then.

    `named`: what the user says it is: FeatherbackError if that is another model.
    """
    record = read_json(run / RUN_FILE, MOST_RECORD) if (run / RUN_FILE).is_file() else {}
    known = record.get("model") if isinstance(record, dict) else None
    found = [locate(named)] if named is not None else [Path(name) for name in recorded_names(run) if _is_here(name)]
    for path in found:
        try:
            base = models.load(path)
            if fingerprint.of_store(base.store) == known:
                return base
        except FeatherbackError:
            if named is not None:
                raise
    if named is not None:
        raise FeatherbackError(f"{argument_is('model', named)}, which is not the model that {run} was trained from.")
    return None


def _is_here(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:  # a name that no file can have
        return False
