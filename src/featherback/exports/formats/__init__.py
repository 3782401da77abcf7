"""Formats of adapter files: each module here is one, and holds it as `FORMAT`. Adding a format is adding a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from featherback.core import private
from featherback.core.naming import arguments
from featherback.core.registry import Registry
from featherback.core.terminal import quoted
from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.safetensors import CONFIG
from featherback.errors import FeatherbackError
from featherback.exports.base_model import is_base, recorded_names
from featherback.exports.formats.base import Factor, Format, MisfitError, StoredAdapter
from featherback.models.form import Form
from featherback.models.loader import results
from featherback.models.lora import Adapter
from featherback.models.model import Model

FORMATS: Registry[Format] = Registry(__name__, "FORMAT", "adapter format", shared=("base",))


LOADED = 3
"""Times a layer of an adapter that is held while it is read: as stored, as float32, and laid out."""


def detect(path: Path) -> Format:
    """The format of the adapter at `path`; FeatherbackError if there is none, or more than one, or a model."""
    if is_model(path):
        raise FeatherbackError(
            f"{path} is a model, not an adapter: train one with "
            f"`{quoted('featherback', 'train', path, '--data', 'DATA', '--out', 'RUN')}`, and name RUN here."
        )
    found = [FORMATS[name] for name in FORMATS.names if FORMATS[name].recognises(path)]
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        raise FeatherbackError(
            f"{path} holds adapters of several formats: {', '.join(each.title for each in found)}; keep one of them."
        )
    titles = ", ".join(FORMATS[name].title for name in FORMATS.names)
    if not path.exists():
        raise FeatherbackError(f"There is no adapter {path}; name one of: {titles}.")
    if trained := next((each for each in results(path) if each.exists()), None):
        raise FeatherbackError(
            f"{path} holds no adapter, but a trained model: open {trained} as one, without "
            f"{arguments('adapter', 'from')}."
        )
    raise FeatherbackError(f"{path} is not an adapter that Featherback reads: {titles}.")


def is_model(path: Path) -> bool:
    """Whether a whole model is at `path`: a GGUF file that says so, or a folder with a model's configuration alone."""
    if path.is_dir():
        adapters = (FORMATS[name].recognises(path) for name in FORMATS.names)
        return (path / CONFIG).is_file() and not any(adapters)
    if not FORMATS["gguf"].recognises(path):
        return False
    try:
        file = GGUFFile(path)
    except FeatherbackError:  # told when it is opened
        return False
    metadata = dict(file.metadata)
    file.close()
    return metadata.get("general.type", "model") == "model" and "adapter.type" not in metadata


def place_of(path: Path) -> Path:
    """Where the adapter lies that `path` names: the directory of a .safetensors file, else `path` itself.

    FeatherbackError if that is a run with a link out of it.
    """
    place = path.parent if path.suffix == ".safetensors" and path.is_file() else path
    private.check_run(place)
    return place


def form(model: Model, path: str | Path) -> Form:
    """What the adapter of `model` at `path` is, its values unread; FeatherbackError naming all that does not fit."""
    path = place_of(Path(path))
    with _opened(detect(path), path, model) as stored:
        return stored.form


def load(model: Model, path: str | Path, file: str | Path | None = None, format: Format | None = None) -> Adapter:
    """Read the adapter of `model` at `path`, in the format `format` or in that which it has.

    `file`: for its parameters (None: in RAM). Beside them LOADED times a layer is held, and nothing stays of it.
    FeatherbackError naming everything that does not fit.
    """
    path = place_of(Path(path))
    with _opened(format or detect(path), path, model) as stored:
        adapter = Adapter(model, stored.form, None, file)
        for layer in range(adapter.parameters.layers):
            state = {}
            for target in adapter.layout.kinds(layer):
                for part in adapter.layout.parts(layer, target):
                    name = adapter.name(layer, target, part)
                    state[name] = stored.factor(Factor((layer, target), part))
                    if not np.isfinite(state[name]).all():
                        raise FeatherbackError(f"The adapter in {path} is broken: {name} holds NaN or infinity.")
            if state:
                adapter.load_layer_state(layer, state)
            stored.give_back()
    return adapter


@contextmanager
def _opened(format: Format, path: Path, model: Model) -> Iterator[StoredAdapter]:
    """The adapter at `path`. One that does not fit names the model that it was trained on, if it says which."""
    try:
        with format.open(path, model) as stored:
            yield stored
    except MisfitError as error:
        base = next((name for name in recorded_names(path) if not is_base(model, name)), None)
        raise error if base is None else error.trained_on(base) from None
