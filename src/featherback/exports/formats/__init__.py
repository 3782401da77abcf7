"""Formats of adapters and of models with adapters in them, one module for each program, which defines it as `FORMAT`.

A module says what is read and what is written. To add a format, add a module, and name it in `READ` if it is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from featherback.core import private
from featherback.core.files import atomic_folder
from featherback.core.naming import argument, arguments
from featherback.core.terminal import quoted
from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.mapping import reading
from featherback.engine.formats.safetensors import CONFIG
from featherback.errors import FeatherbackError
from featherback.exports.base_model import check_not_base, is_base, recorded_names
from featherback.exports.formats import gguf, mlx, own, peft, peft_configuration
from featherback.exports.formats.base import Factor, Format, MisfitError, StoredAdapter
from featherback.models import adapter as models_adapter
from featherback.models.adapter import Adapter
from featherback.models.form import Form
from featherback.models.loader import results
from featherback.models.model import Model

READ: tuple[Format, ...] = (gguf.FORMAT, mlx.FORMAT, peft.FORMAT, own.FORMAT)
"""The formats of adapters that can be read."""
LOADED = 3
"""Copies of a layer that are in memory while an adapter is read: as stored, as float32, and in the layout."""


class SavedAdapter(Adapter):
    """An adapter that can be written to a folder, and was perhaps read from one."""

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write the adapter into the folder `path`, in PEFT's format (of Featherback's own kinds, in our format).

        Featherback and PEFT read it from there. `force`: replace another adapter in the folder. Returns the folder.
        Raises FeatherbackError if the folder holds other files, or cannot be written.
        """
        place, format = Path(path), of_run(self.form)
        if place.exists() and not place.is_dir():
            raise FeatherbackError(f"{place} is a file; name a new folder for the adapter.")
        there = set(os.listdir(place)) if place.is_dir() else set()
        if there.difference(peft.FORMAT.files, own.FORMAT.files):
            raise FeatherbackError(f"{place} holds other files than an adapter; name a new folder.")
        if there and not force:
            raise FeatherbackError(
                f"{place} already exists; name a new folder, or replace the adapter with {argument('force', True)}."
            )
        for other in (own.FORMAT, peft.FORMAT):
            if there and other is not format:
                other.remove(place)
        with atomic_folder(place) as folder:
            format.save(self, folder)
        return place


class LoRA(models_adapter.LoRA, SavedAdapter):
    __doc__ = models_adapter.LoRA.__doc__


def of_run(form: Form) -> Format:
    """Return the format in which a run keeps an adapter of this form: PEFT's, or ours if PEFT has no such kind."""
    return own.FORMAT if peft_configuration.type_of(type(form.kind)) is None else peft.FORMAT


def formats_of(path: Path) -> list[Format]:
    """Return the formats of the adapters at `path`."""
    return [format for format in READ if format.recognises(path)]


def detect(path: Path) -> Format:
    """Find the format of the adapter at `path`. Raises FeatherbackError if it is none, several, or a model."""
    if is_model(path):
        raise FeatherbackError(
            f"{path} is a model, not an adapter; train an adapter with "
            f"`{quoted('featherback', 'train', path, '--data', 'DATA', '--out', 'RUN')}`, then name RUN here."
        )
    found = formats_of(path)
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        raise FeatherbackError(
            f"{path} holds adapters in several formats: {', '.join(each.title for each in found)}; remove all but one."
        )
    titles = ", ".join(each.title for each in READ)
    if not path.exists():
        raise FeatherbackError(f"There is no adapter {path}; expected one of: {titles}.")
    if trained := next((each for each in results(path) if each.exists()), None):
        raise FeatherbackError(
            f"{path} holds a trained model, not an adapter: name {trained} as the model, and remove "
            f"{arguments('adapter', 'from')}."
        )
    raise FeatherbackError(f"{path} is not an adapter; expected one of: {titles}.")


def is_model(path: Path) -> bool:
    """Whether `path` is a whole model: a GGUF model, or a folder with a model's config.json and no adapter."""
    if path.is_dir():
        return (path / CONFIG).is_file() and not formats_of(path)
    if not gguf.FORMAT.recognises(path):
        return False
    try:
        with reading(GGUFFile(path)) as file:
            metadata = dict(file.metadata)
    except FeatherbackError:  # reported when the file is opened
        return False
    return metadata.get("general.type", "model") == "model" and "adapter.type" not in metadata


def check_out(format: Format, out: Path, source: Path | None, model: Model, force: bool) -> None:
    """Raise FeatherbackError if `out` is the adapter or its base model, or exists and `force` is not set.

    So it does if `out` holds an adapter in another format, whose files have the same names.
    `source`: the adapter's place; None: it is in memory. In an existing folder, the export replaces its own files one
    by one and leaves others unchanged.
    """
    if other := next((each for each in formats_of(out) if format.files and each is not format), None):
        raise FeatherbackError(
            f"{out} holds an adapter in another format ({other.title}), which this one would damage; choose another "
            f"{argument('out')}."
        )
    check_not_base(out, model)
    if source is not None and out.exists() and out.resolve() == source.resolve():
        raise FeatherbackError(f"{out} is the adapter itself; choose another {argument('out')}.")
    there = any(out.iterdir()) if out.is_dir() else out.exists()
    if there and not force:
        raise FeatherbackError(
            f"{out} already exists; choose another {argument('out')}, or replace it with {argument('force', True)}."
        )


def place_of(path: Path) -> Path:
    """The place of the adapter that `path` names: the directory of a .safetensors file, else `path` itself.

    Raises FeatherbackError if the place is a run with a link out of it.
    """
    place = path.parent if path.suffix == ".safetensors" and path.is_file() else path
    private.check_run(place)
    return place


def form(model: Model, path: str | Path) -> Form:
    """Read the form of the adapter at `path`, but not its values.

    Raises FeatherbackError, which names every tensor that does not fit `model`.
    """
    path = place_of(Path(path))
    with _opened(detect(path), path, model) as stored:
        return stored.form


def load(model: Model, path: str | Path, file: str | Path | None = None, format: Format | None = None) -> SavedAdapter:
    """Read the adapter of `model` at `path`.

    `file`: the file for its parameters; None: in RAM. `format`: its format; None: detect it. While reading, LOADED
    copies of a layer are in memory. Raises FeatherbackError, which names every tensor that does not fit.
    """
    path = place_of(Path(path))
    with _opened(format or detect(path), path, model) as stored:
        adapter = SavedAdapter(model, stored.form, None, file)
        for layer in range(adapter.parameters.layers):
            state = {}
            for target in adapter.layout.targets(layer):
                for part in adapter.layout.parts(layer, target):
                    name = adapter.name(layer, target, part)
                    state[name] = stored.factor(Factor((layer, target), part))
                    if not np.isfinite(state[name]).all():
                        raise FeatherbackError(f"The adapter in {path} is broken: {name} holds NaN or infinity.")
            if state:
                adapter.load_layer_state(layer, state)
            stored.unmap_pages()
    return adapter


@contextmanager
def _opened(format: Format, path: Path, model: Model) -> Iterator[StoredAdapter]:
    """Open the adapter at `path`. If it does not fit, the error names the base model that the adapter records."""
    try:
        with format.open(path, model) as stored:
            yield stored
    except MisfitError as error:
        base = next((name for name in recorded_names(path) if not is_base(model, name)), None)
        raise error if base is None else error.trained_on(base) from None
