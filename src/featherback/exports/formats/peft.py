"""PEFT directories: adapter_config.json and adapter_model.safetensors (https://github.com/huggingface/peft).

PEFT treats the keys of rank_pattern and alpha_pattern as regular expressions, and also exclude_modules and
target_modules if they are strings. Regular expressions of a foreign file are not run: keys must be names of modules,
and anything else is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from featherback.core.files import make_folder, read_json, write_json
from featherback.engine.formats.safetensors import SafetensorsFile
from featherback.engine.formats.store import floats
from featherback.engine.formats.types import TensorInfo
from featherback.errors import FeatherbackError, excerpt
from featherback.exports.base_model import base_model_name
from featherback.exports.formats.base import (
    Factor,
    Float32,
    Format,
    MisfitError,
    StoredAdapter,
    check_modules,
    factors,
    form_of,
    module_names,
    named_projections,
)
from featherback.exports.safetensors_writer import write_safetensors
from featherback.models.form import Form, LayerTarget
from featherback.models.lora import Adapter
from featherback.models.model import Model
from featherback.nn.adapters import KINDS
from featherback.nn.adapters.base import Kind, Part
from featherback.nn.block import adaptable

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
PREFIX = "base_model.model."

# Entries of adapter_config.json that affect every kind of adapter, with the values that have no effect.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "layers_pattern": (None, [], "", "layers", ["layers"]),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
}
_OFF: tuple[Any, ...] = (None, False, {}, [])
# Unknown entries use_... and ..._config are assumed to have an effect; these have none.
_INERT = ("runtime_config",)
_SWITCH = re.compile(r"use_.*|.*_config")


class PEFT(Format):
    title = f"a PEFT directory ({CONFIG_FILE}, {WEIGHTS_FILE})"

    def recognises(self, path: Path) -> bool:
        return (path / WEIGHTS_FILE).is_file() or (path / PICKLE).is_file()

    @contextmanager
    def open(self, path: Path, model: Model) -> Iterator[StoredAdapter]:
        if not (path / CONFIG_FILE).is_file():
            raise FeatherbackError(f"{path} is not an adapter directory (it has no {CONFIG_FILE}).")
        configuration = read_json(path / CONFIG_FILE)
        if not isinstance(configuration, dict):
            raise FeatherbackError(f"{path / CONFIG_FILE} does not describe an adapter: it is not a JSON object.")
        if not (path / WEIGHTS_FILE).is_file() and (path / PICKLE).is_file():
            raise FeatherbackError(
                f"{path / PICKLE} is a pickle, which Featherback never loads; open the adapter with PEFT and save it "
                f"as {WEIGHTS_FILE}: save_pretrained(folder, safe_serialization=True)."
            )
        config = _Configuration(path / CONFIG_FILE, configuration, model)
        file = SafetensorsFile(path / WEIGHTS_FILE)
        try:
            where = f"The adapter in {path}"
            check_modules(where, model, file.tensors, config.kind.peft_mark)
            names = config.names(model)
            there = {names[name].place for name in file.tensors if name in names}
            kinds = config.kinds(model, there)
            _check_tensors(where, model, file.tensors, names, kinds, config.kind.title)
            yield _Stored(form_of(where, model, kinds, config.usual), file, names)
        finally:
            file.close()

    def save(self, adapter: Adapter, directory: Path, base_model: str | None = None) -> None:
        """Write the adapter into `directory`, which is created if needed. Each file is written atomically.

        `base_model`: the base model's name in the configuration; default: `base_model_name`. Raises FeatherbackError if
        writing fails, or if a value is not finite; the files that were there before stay unchanged.
        """
        make_folder(directory)
        shapes = {PREFIX + name: shape for name, shape in adapter.shapes().items()}
        write_safetensors(directory / WEIGHTS_FILE, shapes, _tensors(adapter), {"format": "pt"})
        base = base_model or base_model_name(adapter.model)
        write_json(directory / CONFIG_FILE, _configuration(adapter, base))

    def remove(self, directory: Path) -> None:
        """Delete the adapter in `directory`, if one is there."""
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            (directory / name).unlink(missing_ok=True)


class _Stored(StoredAdapter):
    def __init__(self, form: Form, file: SafetensorsFile, names: Mapping[str, Factor]) -> None:
        self.form, self._file = form, file
        self._names = {factor: name for name, factor in names.items()}

    def factor(self, factor: Factor) -> Float32:
        return floats(self._file, self._names[factor])


def _check_tensors(
    where: str,
    model: Model,
    tensors: Mapping[str, TensorInfo],
    names: Mapping[str, Factor],
    kinds: Mapping[LayerTarget, Kind],
    title: str,
) -> None:
    """Raise MisfitError, listing every tensor that is missing, unknown or of another shape."""
    by_factor = {factor: name for name, factor in names.items()}
    wanted = {
        by_factor[Factor(place, name)]: part.stored
        for place, kind in kinds.items()
        for name, part in _parts(model, place, kind).items()
    }
    problems = [f"{name} is missing" for name in wanted if name not in tensors]
    for name, info in tensors.items():
        if name not in names:
            problems.append(f"{name} is not a {title} tensor of this model")
        elif name not in wanted:
            problems.append(f"{name} belongs to a module that the configuration leaves out")
        elif info.shape != wanted[name]:
            problems.append(f"{name} has shape {info.shape}, not {wanted[name]}")
    if problems:
        raise MisfitError(where, model, problems)


def _parts(model: Model, place: LayerTarget, kind: Kind) -> dict[str, Part]:
    layer, target = place
    return kind.parts(target, model.blocks[layer].projections[target])


class _Configuration:
    """An adapter_config.json. Raises FeatherbackError if it describes an unsupported adapter."""

    def __init__(self, file: Path, entries: Mapping[str, Any], model: Model) -> None:
        self.where, self.entries, self._model = str(file), entries, model
        self.kind = kind_in(entries)
        neutral = {**_NEUTRAL, **self.kind.peft_neutral}
        inert = (*_INERT, *self.kind.peft_read)
        strange = [
            f"{key} = {excerpt(value)}"
            for key, value in entries.items()
            if (key in neutral and value not in neutral[key])
            or (_SWITCH.fullmatch(key) and key not in inert and value not in _OFF)
        ]
        if strange:
            raise FeatherbackError(
                f"{file} has settings that Featherback does not support for {self.kind.title}: {', '.join(strange)}."
            )
        self.usual = self.kind.from_peft(self)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an entry."""
        return self.entries.get(name, default)

    def switch(self, name: str) -> bool:
        """Return an entry that must be true or false."""
        value = self.entries.get(name)
        if value is not None and not isinstance(value, bool):
            raise FeatherbackError(f"The entry {name} of {self.where} is {excerpt(value)}; it must be true or false.")
        return bool(value)

    def targets(self, names: Sequence[str]) -> set[str]:
        """The projections whose modules' names equal one of these names, or end with one after a dot."""
        return {
            target
            for (_, target), module in named_projections(self._model)
            if any(f".{module}".endswith(f".{name}") for name in names)
        }

    def names(self, model: Model) -> dict[str, Factor]:
        """PEFT's name -> factor, for every tensor that an adapter of this kind can have."""
        return {
            f"{PREFIX}{module}.{part.peft}": Factor(place, name)
            for place, module in named_projections(model)
            for name, part in _parts(model, place, self.usual).items()
        }

    def kinds(self, model: Model, there: set[LayerTarget]) -> dict[LayerTarget, Kind]:
        """The kind of each adapted projection. `there`: the projections in the file, used if the configuration has a
        regular expression instead of a list."""
        own = {
            setting: _by_module(
                model,
                (
                    (key, self.kind.peft_setting(self.where, setting, f"{setting} {key}", value))
                    for key, value in self._entries(entry)
                ),
            )
            for setting, entry in self.kind.peft_patterns.items()
        }
        wanted = self._wanted(model, there)
        return {
            place: replace(self.usual, **{name: found[module] for name, found in own.items() if module in found})
            for place, module in named_projections(model)
            if place in wanted
        }

    def _wanted(self, model: Model, there: set[LayerTarget]) -> set[LayerTarget]:
        targets, excluded = self.entries.get("target_modules"), self.entries.get("exclude_modules")
        if isinstance(targets, str) or isinstance(excluded, str):
            return there
        layers = self.entries.get("layers_to_transform")
        layers = [layers] if isinstance(layers, int) else layers
        for name, value, kind in (
            ("target_modules", targets, str),
            ("exclude_modules", excluded, str),
            ("layers_to_transform", layers, int),
        ):
            if value is not None and not (isinstance(value, list) and all(type(x) is kind for x in value)):
                listed = "names" if kind is str else "numbers"
                raise FeatherbackError(
                    f"The entry {name} of {self.where} is {excerpt(value)}; it must be a list of {listed}."
                )
        if targets is None:
            targets = [target for _, target in there]
        targeted, left_out, some = frozenset(targets), frozenset(excluded or []), frozenset(layers or [])
        wanted = set()
        for place, module in named_projections(model):
            named, ends = module in targeted, _ends(module)
            chosen = named or (not targeted.isdisjoint(ends) and (not some or place[0] in some))
            if chosen and left_out.isdisjoint(ends):
                wanted.add(place)
        return wanted

    def _entries(self, name: str) -> Iterator[tuple[str, Any]]:
        """Yield the entries of rank_pattern or alpha_pattern: (end of a module's name, or "^" and the name, value)."""
        pattern = self.entries.get(name) or {}
        if not isinstance(pattern, dict):
            raise FeatherbackError(f"The entry {name} of {self.where} is {excerpt(pattern)}; it must be a JSON object.")
        for key, value in pattern.items():
            plain = key.replace(r"\.", ".")
            if not re.fullmatch(r"\^?[\w.-]+", plain):
                raise FeatherbackError(
                    f"The entry {name} of {self.where} holds the regular expression {excerpt(key)}; only names of "
                    f"modules are supported."
                )
            yield plain, value


def kind_in(entries: Mapping[str, Any]) -> type[Kind]:
    """The kind of adapter that a configuration describes; LoRA if it describes no known kind."""
    return next((KINDS[name] for name in KINDS.names if KINDS[name].in_peft(entries)), KINDS["lora"])


def _ends(module: str) -> list[str]:
    """A module's name and every end of it that begins after a dot. PEFT accepts each of them as the name."""
    parts = module.split(".")
    return [".".join(parts[first:]) for first in range(len(parts))]


def _by_module(model: Model, entries: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Module -> value of the first entry whose key matches the module."""
    modules: dict[str, list[str]] = {}
    for _, module in named_projections(model):
        for key in (f"^{module}", *_ends(module)):
            modules.setdefault(key, []).append(module)
    found: dict[str, Any] = {}
    for key, value in entries:
        for module in modules.get(key, ()):
            found.setdefault(module, value)
    return found


def _tensors(adapter: Adapter) -> Iterator[tuple[str, Float32]]:
    for (place, part), values in factors(adapter):
        yield PREFIX + adapter.name(*place, part), values


def _configuration(adapter: Adapter, base_model: str) -> dict[str, Any]:
    form, layers = adapter.form, adapter.layers
    some = len(layers) < adapter.parameters.layers and form.kind.peft_layers
    exceptions = {place: kind for place, kind in form.exceptions.items() if not some or place[0] in layers}
    unusual = {adapter.module(*place): kind for place, kind in exceptions.items()}
    modules = {module_names(adapter.model, [target])[0]: target for target in form.targets}
    others = module_names(adapter.model, set(adaptable(adapter.model.blocks)).difference(form.targets))
    if None in unusual.values() or not modules.keys().isdisjoint(others):  # short names would match too many modules
        modules, some = _modules(adapter), False
    chosen: dict[str, Any] = {"target_modules": list(modules)}
    if some:
        chosen["layers_to_transform"] = list(layers)
    targets = {**chosen, **_excluded(adapter.model.naming.others)}
    return {
        "peft_type": form.kind.peft_type,
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        **form.kind.peft_entries(unusual, targets, modules),
    }


def _excluded(others: tuple[str, ...]) -> dict[str, str]:
    """The entry that excludes modules with the same names in other parts of the model, such as a vision model."""
    parts = "|".join(re.escape(name) for name in others)
    return {"exclude_modules": rf"(.*\.)?({parts}).*"} if parts else {}


def _modules(adapter: Adapter) -> dict[str, str]:
    """Full name of each adapted module -> its target."""
    return {
        adapter.module(layer, target): target
        for layer in range(adapter.parameters.layers)
        for target in adapter.layout.kinds(layer)
    }


FORMAT = PEFT()
