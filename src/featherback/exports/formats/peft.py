"""PEFT directories: adapter_config.json and adapter_model.safetensors (https://github.com/huggingface/peft).

Experts and routers are parameters in PEFT, not modules: see `peft_parameters`.

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

import numpy as np

from featherback.core.files import make_folder, read_json, write_json
from featherback.engine.formats.mapping import reading
from featherback.engine.formats.safetensors import SafetensorsFile
from featherback.engine.formats.store import floats
from featherback.engine.formats.types import TensorInfo
from featherback.errors import FeatherbackError, excerpt
from featherback.exports.base_model import base_model_name
from featherback.exports.formats.base import (
    Factor,
    Float32,
    MisfitError,
    RunFormat,
    StoredAdapter,
    check_modules,
    finite_factor,
    form_of,
    module_names,
    named_projections,
)
from featherback.exports.formats.peft_parameters import GATE_UP, Parameter, halved, kind_of, parameters, routers, stems
from featherback.exports.safetensors_writer import write_safetensors
from featherback.models.adapter import Adapter
from featherback.models.architecture.names import on_request
from featherback.models.form import Form, LayerTarget
from featherback.models.model import Model
from featherback.nn.adapters import KINDS
from featherback.nn.adapters.base import Kind, Part
from featherback.nn.adapters.lora import LoRAKind
from featherback.nn.block import adaptable
from featherback.nn.score import SCORE

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
LABELS_FILE = "labels.json"
"""The names of a classifier's labels: id2label and label2id, as transformers has them in the config.json of a model."""
PICKLE = "adapter_model.bin"
PREFIX = "base_model.model."
_MARKS = ("lora_", "ia3_")  # in the names of an adapter's tensors
_HEAD = f"{PREFIX}{SCORE}.weight"
_HEADS = ("classifier", SCORE)  # PEFT's modules_to_save of a classifier

# Entries of adapter_config.json that affect every kind of adapter, with the values that have no effect.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "layers_pattern": (None, [], "", "layers", ["layers"]),
    "trainable_token_indices": (None, [], {}),
}
_OFF: tuple[Any, ...] = (None, False, {}, [])
# Unknown entries use_... and ..._config are assumed to have an effect; these have none.
_INERT = ("runtime_config",)
_SWITCH = re.compile(r"use_.*|.*_config")


class PEFT(RunFormat):
    title = f"a PEFT directory ({CONFIG_FILE}, {WEIGHTS_FILE})"
    files = (CONFIG_FILE, WEIGHTS_FILE, LABELS_FILE)

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
        with reading(SafetensorsFile(path / WEIGHTS_FILE)) as file:
            where = f"The adapter in {path}"
            modules = [module.rsplit(".", 1)[-1] for _, module in _modules_of(model)]
            held = [stem.rsplit(".", 1)[-1] for stem in config.joined]
            check_modules(where, model, file.tensors, config.kind.peft_mark, [*modules, *held])
            names = config.names(model)
            there = {names[name].place for name in file.tensors if name in names}
            kinds = config.kinds(model, there)
            outputs = _outputs(where, path, model, file.tensors)
            others = {name: info for name, info in file.tensors.items() if name != _HEAD}
            _check_tensors(where, model, others, names, kinds, config)
            stored = _Stored(file, {**names, _HEAD: Factor((len(model.blocks), SCORE), "weight")}, config.joined)
            for parameter, kind in config.joined.values():
                own = halved(kind) if parameter.called == GATE_UP and stored.diagonal else kind
                kinds |= dict.fromkeys(parameter.places, own)
            stored.form = replace(form_of(where, model, kinds, config.usual), outputs=outputs)
            yield stored

    def save(self, adapter: Adapter, directory: Path, base_model: str | None = None) -> None:
        make_folder(directory)
        write_safetensors(directory / WEIGHTS_FILE, _shapes(adapter), _tensors(adapter), {"format": "pt"})
        base = base_model or base_model_name(adapter.model)
        write_json(directory / CONFIG_FILE, _configuration(adapter, base))
        if adapter.outputs:
            ids = {name: number for number, name in enumerate(adapter.outputs)}
            write_json(directory / LABELS_FILE, {"id2label": dict(enumerate(adapter.outputs)), "label2id": ids})

    def remove(self, directory: Path) -> None:
        files = [CONFIG_FILE, WEIGHTS_FILE]
        if (directory / CONFIG_FILE).is_file() and read_json(directory / CONFIG_FILE).get("modules_to_save"):
            files.append(LABELS_FILE)
        for name in files:
            (directory / name).unlink(missing_ok=True)


Joined = Mapping[str, tuple[Parameter, LoRAKind]]
"""The beginning of the names of a joined pair -> the parameter, and the pair's rank and alpha."""


class _Stored(StoredAdapter):
    form: Form

    def __init__(self, file: SafetensorsFile, names: Mapping[str, Factor], joined: Joined) -> None:
        self._file = file
        self._names = {factor: name for name, factor in names.items()}
        self._joined = {
            place: (stem, parameter, number)
            for stem, (parameter, _) in joined.items()
            for number, place in enumerate(parameter.places)
        }
        both = [(stem, parameter) for stem, (parameter, _) in joined.items() if parameter.called == GATE_UP]
        self.diagonal = bool(both) and all(each.is_diagonal(self._of(stem, "B")) for stem, each in both)
        """Whether every joined pair of gate and up consists of a pair for each."""

    def factor(self, factor: Factor) -> Float32:
        if factor.place not in self._joined:
            return floats(self._file, self._names[factor])
        stem, parameter, number = self._joined[factor.place]
        split = self.diagonal and parameter.called == GATE_UP
        return parameter.parted(factor.part, self._of(stem, factor.part), number, split)

    def _of(self, stem: str, part: str) -> Float32:
        return floats(self._file, _tensor_name(stem, part))


def _tensor_name(stem: str, part: str) -> str:
    """The name of PEFT's lora_A or lora_B of a parameter."""
    return f"{PREFIX}{stem}.lora_{part}.weight"


def _modules_of(model: Model) -> Iterator[tuple[LayerTarget, str]]:
    """Yield the projections that are modules in PEFT, or wrapped as if they were, with their names: all but stacks."""
    for place, module in named_projections(model):
        if place[1] not in model.blocks[place[0]].stacks:
            yield place, module


def _outputs(where: str, path: Path, model: Model, tensors: Mapping[str, TensorInfo]) -> tuple[str, ...]:
    """Return the names of the scores of an adapter's trained head; empty without one. Raises MisfitError."""
    if _HEAD not in tensors:
        return ()
    shape, width = tensors[_HEAD].shape, model.config.hidden_size
    if len(shape) != 2 or shape[1] != width or not shape[0]:
        raise MisfitError(where, model, [f"{_HEAD} has shape {shape}, not (number of labels, {width})"])
    return _label_names(path / LABELS_FILE, shape[0])


def _label_names(file: Path, count: int) -> tuple[str, ...]:
    """Return the names of `count` labels: those in `file` if it has them, else transformers' LABEL_0, LABEL_1, ..."""
    entries = read_json(file) if file.is_file() else {}
    named = entries.get("id2label") if isinstance(entries, dict) else None
    known = named if isinstance(named, dict) else {}
    found = tuple(name for number in range(count) if isinstance(name := known.get(str(number)), str))
    if len(set(found)) == count:
        return found
    return tuple(f"LABEL_{number}" for number in range(count))


def _check_tensors(
    where: str,
    model: Model,
    tensors: Mapping[str, TensorInfo],
    names: Mapping[str, Factor],
    kinds: Mapping[LayerTarget, Kind],
    config: _Configuration,
) -> None:
    """Raise MisfitError, listing every tensor that is missing, unknown or of another shape."""
    by_factor = {factor: name for name, factor in names.items()}
    wanted = {
        by_factor[Factor(place, name)]: part.stored
        for place, kind in kinds.items()
        for name, part in _parts(model, place, kind).items()
    }
    joined = {
        _tensor_name(stem, part): shape
        for stem, (parameter, pair) in config.joined.items()
        for part, shape in zip("AB", parameter.shapes(pair.rank))
    }
    wanted |= joined
    unknown = [name for name in tensors if name not in names and name not in joined]
    if whole := [name for name in unknown if not any(mark in name for mark in _MARKS)]:
        raise FeatherbackError(
            f"{where} holds whole weights of a model, such as {excerpt(whole[0])}. Featherback opens adapters "
            "only. Merge it into its model with PEFT (merge_and_unload), and use the merged model."
        )
    problems = [f"{name} is missing" for name in wanted if name not in tensors]
    for name, info in tensors.items():
        if name not in names and name not in joined:
            problems.append(f"{name} is not a {config.kind.title} tensor of this model")
        elif name not in wanted:
            problems.append(f"{name} belongs to a module that the configuration leaves out")
        elif info.shape != wanted[name]:
            problems.append(f"{name} has shape {info.shape}, not {wanted[name]}")
    if problems:
        raise MisfitError(where, model, problems)


def _parts(model: Model, place: LayerTarget, kind: Kind) -> dict[str, Part]:
    layer, target = place
    return kind.parts(target, model.blocks[layer].shape(target))


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
        saved = entries.get("modules_to_save") or []
        if not isinstance(saved, list) or not set(map(str, saved)) <= set(_HEADS):
            raise FeatherbackError(
                f"{file} has modules_to_save = {excerpt(saved)}; only the head of a classifier is supported: [{SCORE}]."
            )
        self.usual = self.kind.from_peft(self)
        known = [*(each.name for each in parameters(model)), *(name for _, name in routers(model))]
        self.parameters = self._target_parameters(known)
        self.joined = self._joined()

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
            for (_, target), module in _modules_of(self._model)
            if any(f".{module}".endswith(f".{name}") for name in names)
        }

    def names(self, model: Model) -> dict[str, Factor]:
        """PEFT's name -> factor, for every tensor that an adapter of this kind can have."""
        return {
            f"{PREFIX}{module}.{part.peft}": Factor(place, name)
            for place, module in _modules_of(model)
            for name, part in _parts(model, place, self.usual).items()
        }

    def kinds(self, model: Model, there: set[LayerTarget]) -> dict[LayerTarget, Kind]:
        """The kind of each adapted projection. `there`: the projections in the file, used if the configuration has a
        regular expression instead of a list."""
        wanted, own = self._wanted(model, there), dict(routers(model))
        named = {own.get(place, module): place for place, module in _modules_of(model) if place in wanted}
        return {named[module]: kind for module, kind in self._own_kinds(named).items()}

    def _own_kinds(self, names: Iterable[str]) -> dict[str, Kind]:
        """Return the kind of each of these modules or parameters, with the settings of its own."""
        names = list(names)
        own = {
            setting: _by_name(
                names,
                (
                    (key, self.kind.peft_setting(self.where, setting, f"{setting} {key}", value))
                    for key, value in self._entries(entry)
                ),
            )
            for setting, entry in self.kind.peft_patterns.items()
        }
        return {
            name: replace(self.usual, **{setting: found[name] for setting, found in own.items() if name in found})
            for name in names
        }

    def _joined(self) -> Joined:
        """Return the adapted parameters of experts."""
        experts = {each.name: each for each in parameters(self._model) if each.name in self.parameters}
        kinds = self._own_kinds(experts)
        found = {experts[name]: kind for name, kind in kinds.items() if isinstance(kind, LoRAKind)}
        return {stem: (parameter, found[parameter]) for stem, parameter in stems(found).items()}

    def _target_parameters(self, names: Sequence[str]) -> set[str]:
        """The full names of the parameters in the entry target_parameters, of these `names`."""
        entry = self.entries.get("target_parameters") or []
        if not (isinstance(entry, list) and all(isinstance(each, str) for each in entry)):
            raise FeatherbackError(
                f"The entry target_parameters of {self.where} is {excerpt(entry)}; it must be a list of names."
            )
        if entry and not self.usual.adapts_experts:
            raise FeatherbackError(
                f"{self.where} has target_parameters, which Featherback does not support for {self.kind.title}."
            )
        found = {each: [name for name in names if f".{name}".endswith(f".{each}")] for each in entry}
        if strange := [each for each, matches in found.items() if not matches]:
            raise FeatherbackError(
                f"{self.where} has target_parameters {excerpt(strange[0])}, but experts and routers are the only "
                f"parameters that Featherback adapts, and {self._model.path} has none of this name."
            )
        return {name for matches in found.values() for name in matches}

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
        own = dict(routers(model))
        wanted = {place for place, name in own.items() if name in self.parameters}
        for place, module in _modules_of(model):
            if place in own:
                continue
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


def _by_name(names: Iterable[str], entries: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Name of a module or parameter -> value of the first entry whose key matches it."""
    by_key: dict[str, list[str]] = {}
    for name in names:
        for key in (f"^{name}", *_ends(name)):
            by_key.setdefault(key, []).append(name)
    found: dict[str, Any] = {}
    for key, value in entries:
        for name in by_key.get(key, ()):
            found.setdefault(name, value)
    return found


def _adapted_parameters(adapter: Adapter) -> dict[Parameter, LoRAKind]:
    """The parameters of experts that the adapter changes, with the rank and alpha of the joined pair."""
    found = {}
    for parameter in parameters(adapter.model):
        pairs = [adapter.form.at(*place) for place in parameter.places]
        if (kind := kind_of(pair for pair in pairs if isinstance(pair, LoRAKind))) is not None:
            found[parameter] = kind
    return found


def _shapes(adapter: Adapter) -> dict[str, tuple[int, ...]]:
    """Name -> shape of each stored tensor, in the order of `_tensors`."""
    adapted, shapes = _adapted_parameters(adapter), dict[str, tuple[int, ...]]()
    stacks = {place for parameter in adapted for place in parameter.places}
    for layer in adapter.layout.adapted:
        for target in adapter.layout.targets(layer):
            if (layer, target) not in stacks:
                for name, part in adapter.layout.parts(layer, target).items():
                    shapes[PREFIX + adapter.name(layer, target, name)] = part.stored
        for stem, parameter in stems([each for each in adapted if each.layer == layer]).items():
            for name, shape in zip("AB", parameter.shapes(adapted[parameter].rank)):
                shapes[_tensor_name(stem, name)] = shape
    return shapes


def _tensors(adapter: Adapter) -> Iterator[tuple[str, Float32]]:
    adapted = _adapted_parameters(adapter)
    stacks = {place for parameter in adapted for place in parameter.places}
    for layer in adapter.layout.adapted:
        for target in adapter.layout.targets(layer):
            if (layer, target) not in stacks:
                for part in adapter.layout.parts(layer, target):
                    yield (
                        PREFIX + adapter.name(layer, target, part),
                        finite_factor(adapter, Factor((layer, target), part)),
                    )
        for stem, parameter in stems([each for each in adapted if each.layer == layer]).items():
            for part in "AB":
                yield _tensor_name(stem, part), _joined(adapter, parameter, part, adapted[parameter])


def _joined(adapter: Adapter, parameter: Parameter, part: str, kind: LoRAKind) -> Float32:
    """PEFT's lora_A or lora_B of a parameter. The factors of its stacks are freed."""
    return parameter.joined(part, [_own(adapter, Factor(place, part), kind) for place in parameter.places])


def _own(adapter: Adapter, factor: Factor, joined: LoRAKind) -> Float32 | None:
    """A factor of a stack, with the scale of the `joined` pair; None if the stack is not adapted."""
    kind = adapter.form.at(*factor.place)
    if not isinstance(kind, LoRAKind):
        return None
    values = finite_factor(adapter, factor)
    if factor.part == "B" and kind.scale != joined.scale:
        values *= np.float32(kind.scale / joined.scale)
    return values


def _configuration(adapter: Adapter, base_model: str) -> dict[str, Any]:
    form, layers = adapter.form, adapter.layers
    some = len(layers) < len(adapter.model.blocks) and form.kind.peft_layers
    exceptions = {
        place: kind
        for place, kind in form.exceptions.items()
        if (not some or place[0] in layers) and not on_request(place[1])
    }
    unusual = {adapter.module(*place): kind for place, kind in exceptions.items()}
    own = [target for target in form.targets if not on_request(target)]
    modules = {module_names(adapter.model, [target])[0]: target for target in own}
    rest = (target for target in adaptable(adapter.model.blocks) if target not in own and not on_request(target))
    others = module_names(adapter.model, rest)
    if None in unusual.values() or not modules.keys().isdisjoint(others):  # short names would match too many modules
        modules, some = _modules(adapter), False
    chosen: dict[str, Any] = {"target_modules": list(modules)}
    if some:
        chosen["layers_to_transform"] = list(layers)
    if named := _named_parameters(adapter):
        chosen["target_parameters"] = list(named)
        unusual |= {name: kind for name, kind in named.items() if kind != form.kind}
    targets = {**chosen, **_excluded(adapter.model.naming.others)}
    return {
        "peft_type": form.kind.peft_type,
        "task_type": "SEQ_CLS" if form.outputs else "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        **form.kind.peft_entries(unusual, targets, modules),
        **({"modules_to_save": [SCORE]} if form.outputs else {}),
    }


def _excluded(others: tuple[str, ...]) -> dict[str, str]:
    """The entry that excludes modules with the same names in other parts of the model, such as a vision model."""
    parts = "|".join(re.escape(name) for name in others)
    return {"exclude_modules": rf"(.*\.)?({parts}).*"} if parts else {}


def _named_parameters(adapter: Adapter) -> dict[str, Kind]:
    """The entries of target_parameters with the kind of each: ends of names if every layer has the same, else names."""
    found: dict[str, Kind] = {each.name: kind for each, kind in _adapted_parameters(adapter).items()}
    for place, name in routers(adapter.model):
        if (kind := adapter.form.at(*place)) is not None:
            found[name] = kind
    known = [*(each.name for each in parameters(adapter.model)), *(name for _, name in routers(adapter.model))]
    ends: dict[str, set[Kind | None]] = {}
    for name in known:
        ends.setdefault(_end(name), set()).add(found.get(name))
    if all(len(kinds) == 1 for end, kinds in ends.items() if kinds != {None}):
        return {_end(name): kind for name, kind in found.items()}
    return found


def _end(name: str) -> str:
    """The end of a parameter's name that is the same in every layer: "mlp.experts.down_proj"."""
    return name.split(".layers.", 1)[1].split(".", 1)[1]


def _modules(adapter: Adapter) -> dict[str, str]:
    """Full name of each adapted module -> its target."""
    return {
        adapter.module(layer, target): target
        for layer in adapter.layers
        for target in adapter.layout.kinds(layer)
        if not on_request(target)
    }


FORMAT = PEFT()
