"""Featherback's own directories, for adapters that PEFT does not have: adapter_config.json and adapter.safetensors.

The configuration has the entries `peft_type` (FEATHERBACK_SPARTAN, which PEFT rejects by name), `settings` (the options
of the kind), `layers`, `targets` (if it is no branch) and `base_model_name_or_path`. Tensors are float32, named
"model.layers.3.memory.keys".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from featherback.core.files import make_folder, read_json, write_json
from featherback.engine.formats.mapping import reading
from featherback.engine.formats.safetensors import SafetensorsFile
from featherback.errors import FeatherbackError, excerpt
from featherback.exports.base_model import base_model_name
from featherback.exports.formats.base import Factor, Format, MisfitError, StoredAdapter, factors
from featherback.exports.formats.peft_configuration import type_of
from featherback.exports.safetensors_writer import write_safetensors
from featherback.models.adapter import Adapter
from featherback.models.architecture.layer_choice import layer_words
from featherback.models.architecture.names import hf_module
from featherback.models.form import Form, Layout
from featherback.models.model import Model
from featherback.nn.adapters import KINDS, OPTIONS

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter.safetensors"
TYPE = "FEATHERBACK_"
"""The beginning of the entry `peft_type`."""


class Own(Format):
    title = f"a Featherback directory ({CONFIG_FILE}, {WEIGHTS_FILE})"
    files = (WEIGHTS_FILE, CONFIG_FILE)

    @contextmanager
    def open(self, path: Path, model: Model) -> Iterator[StoredAdapter]:
        form = _form(path / CONFIG_FILE, read_json(path / CONFIG_FILE))
        with reading(SafetensorsFile(path / WEIGHTS_FILE)) as file:
            names, shapes = _tensors(model, Layout(model.blocks, form))
            problems = [f"{name} is missing" for name in names if name not in file.tensors]
            for name, info in file.tensors.items():
                if name not in names:
                    problems.append(f"{name} is not a {form.kind.title} tensor of this model")
                elif info.shape != shapes[name]:
                    problems.append(f"{name} has shape {info.shape}, not {shapes[name]}")
            if problems:
                raise MisfitError(f"The adapter in {path}", model, problems)
            yield StoredAdapter(form, file, names)

    def save(self, adapter: Adapter, path: Path, base_model: str | None = None) -> None:
        make_folder(path)
        tensors = ((adapter.name(*place, part), values) for (place, part), values in factors(adapter))
        write_safetensors(path / WEIGHTS_FILE, adapter.shapes(), tensors)
        options = adapter.form.kind.options()
        configuration = {
            "peft_type": f"{TYPE}{options['adapter'].upper()}",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base_model or base_model_name(adapter.model),
            "layers": list(adapter.layers),
            "settings": {entry.name: options[entry.name] for entry in fields(adapter.form.kind.settings)},
        }
        if not adapter.form.kind.is_branch:
            configuration["targets"] = list(adapter.targets)
        write_json(path / CONFIG_FILE, configuration)


def _form(file: Path, entries: Any) -> Form:
    """Return the form that a configuration describes. Raises FeatherbackError if it describes none."""
    if not isinstance(entries, dict):
        raise FeatherbackError(f"{file} does not describe an adapter: it is not a JSON object.")
    named, layers, settings = (entries.get(name) for name in ("peft_type", "layers", "settings"))
    known = {f"{TYPE}{name.upper()}": name for name in KINDS.names if type_of(KINDS[name]) is None}
    if named not in known:
        raise FeatherbackError(f"{file} has peft_type {excerpt(named)}; expected one of: {', '.join(known)}.")
    if not (isinstance(layers, list) and all(type(layer) is int for layer in layers)):
        raise FeatherbackError(f"{file} has layers {excerpt(layers)}; it must be a list of numbers.")
    if not isinstance(settings, dict):
        raise FeatherbackError(f"{file} has settings {excerpt(settings)}; it must be a JSON object.")
    kind = known[named]
    OPTIONS.make(kind, settings)  # rejects unknown options and values
    targets = entries.get("targets", ["all"])
    if not (isinstance(targets, list) and all(isinstance(target, str) for target in targets)):
        raise FeatherbackError(f"{file} has targets {excerpt(targets)}; it must be a list of names.")
    return Form.of(adapter=kind, layers=layer_words(layers), targets=tuple(targets), **settings)


def _tensors(model: Model, layout: Layout) -> tuple[dict[str, Factor], dict[str, tuple[int, ...]]]:
    """Return name -> factor, and name -> shape, of every tensor of an adapter."""
    names, shapes = {}, {}
    for layer in layout.adapted:
        for target in layout.kinds(layer):
            for slot, part in layout.parts(layer, target).items():
                name = f"{hf_module(model.naming.modules, layer, target)}.{slot}"
                names[name], shapes[name] = Factor((layer, target), slot), part.stored
    return names, shapes


FORMAT = Own()
