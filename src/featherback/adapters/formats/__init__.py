"""Formats of adapter files: each module here is one, and holds it as `FORMAT`. Adding a format is adding a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from featherback import private
from featherback.adapters.formats.base import Factor, Format
from featherback.adapters.lora import Form, LoRA
from featherback.errors import FeatherbackError
from featherback.models.loader import results
from featherback.models.model import Model
from featherback.registry import Registry

FORMATS: Registry[Format] = Registry(__name__, "FORMAT", "adapter format", shared=("base",))


def detect(path: Path) -> Format:
    """The format of the adapter at `path`; FeatherbackError if there is none, or more than one."""
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
            f"{path} holds no adapter, but a trained model: open {trained} as one, without --adapter or --from."
        )
    raise FeatherbackError(f"{path} is not an adapter that Featherback reads: {titles}.")


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
    with detect(path).open(path, model) as stored:
        return stored.form


def load(
    model: Model, path: str | Path, file: str | Path | None = None, format: Format | None = None
) -> LoRA:
    """Read the adapter of `model` at `path`, in the format `format` or in that which it has.

    `file`: for its parameters (None: in RAM). FeatherbackError naming everything that does not fit.
    """
    path = place_of(Path(path))
    with (format or detect(path)).open(path, model) as stored:
        shape = stored.form
        adapter = LoRA(
            model,
            shape.rank,
            shape.alpha,
            shape.targets,
            None,
            file,
            rslora=shape.rslora,
            exceptions=shape.exceptions,
            dora=shape.dora,
        )
        for layer in range(adapter.parameters.layers):
            state = {}
            for target in adapter.layout.adapted(layer):
                for part in shape.parts:
                    name = adapter.name(layer, target, part)
                    state[name] = stored.factor(Factor((layer, target), part))
                    if not np.isfinite(state[name]).all():
                        raise FeatherbackError(
                            f"The adapter in {path} is broken: {name} holds NaN or infinity."
                        )
            if state:
                adapter.load_layer_state(layer, state)
    return adapter
