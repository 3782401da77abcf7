"""Find the base model of an adapter or a run."""

from __future__ import annotations

from pathlib import Path

from featherback import models
from featherback.core.files import read_json
from featherback.core.naming import argument, argument_is
from featherback.core.private import RUN_FILE
from featherback.engine.formats import fingerprint
from featherback.errors import FeatherbackError, excerpt
from featherback.exports.base_model import MOST_RECORD, recorded_names
from featherback.models.hub.locate import locate
from featherback.models.model import Model


def model_path(adapter: Path, named: str | None) -> Path:
    """Return the path of the base model: `named` by the user, or recorded in the run or the adapter.

    Raises FeatherbackError, which asks for the name, if no recorded model is on this machine.
    """
    if named is not None:
        return locate(named)
    found = recorded_names(adapter)
    for name in found:
        if _exists(name):
            return Path(name)
    if found:
        raise FeatherbackError(
            f"{adapter} was trained on {excerpt(found[0])}, which is not on this machine. If the model is elsewhere, "
            f"add {argument('model', 'PATH')}."
        )
    raise FeatherbackError(
        f"{adapter} does not say which model it was trained on. Add the model: {argument('model', 'PATH')}."
    )


def base_of_run(run: Path, named: str | None) -> Model | None:
    """Open the model that the training in `run` began with; None if it is not on this machine or has changed.

    `named`: the user's name of that model. Raises FeatherbackError if it is another model.
    """
    record = read_json(run / RUN_FILE, MOST_RECORD) if (run / RUN_FILE).is_file() else {}
    known = record.get("model") if isinstance(record, dict) else None
    found = [locate(named)] if named is not None else [Path(name) for name in recorded_names(run) if _exists(name)]
    for path in found:
        try:
            base = models.load(path)
            if fingerprint.of_store(base.store) == known:
                return base
        except FeatherbackError:
            if named is not None:
                raise
    if named is not None:
        raise FeatherbackError(
            f"{argument_is('model', named)}, but {run} was trained from another model. Give the model that it was "
            f"trained from."
        )
    return None


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:  # not a valid file name
        return False
