"""adapter_config.json of PEFT: read into adapter kinds, and written from an adapter.

PEFT treats the keys of rank_pattern and alpha_pattern as regular expressions, and also exclude_modules and
target_modules if they are strings. Regular expressions of a foreign file are not run: keys must be names of modules,
and anything else is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from featherback.errors import FeatherbackError, excerpt
from featherback.exports.formats.base import LAYER, Factor, module_names
from featherback.exports.formats.pairs import check_alpha
from featherback.exports.formats.peft_parameters import (
    Parameter,
    adapted_parameters,
    modules,
    parameters,
    routers,
    stems,
)
from featherback.models.adapter import PEFT_NAMES, Adapter
from featherback.models.architecture.names import on_request
from featherback.models.form import LayerTarget
from featherback.models.model import Model
from featherback.nn.adapters.base import Kind, Part
from featherback.nn.adapters.dora import DoRAKind
from featherback.nn.adapters.ia3 import IA3Kind
from featherback.nn.adapters.lora import LoRAKind
from featherback.nn.block import adaptable
from featherback.nn.score import SCORE

PREFIX = "base_model.model."
MARKS = {"LORA": ".lora_", "IA3": ".ia3_"}
"""The entry peft_type -> the text that follows a module's name in the names of tensors."""
_HEADS = ("classifier", SCORE)  # modules_to_save of a classifier

# Entries that affect the computation, with the values that have no effect.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "lora_bias": (False, None),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
    # PiSSA, OLoRA, CorDA and LoftQ also change the base model, so their adapters do not fit the original one.
    "init_lora_weights": (None, True, False, "gaussian", "orthogonal", "eva"),
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "layers_pattern": (None, [], "", "layers", ["layers"]),
    "trainable_token_indices": (None, [], {}),
}
_OFF: tuple[Any, ...] = (None, False, {}, [])
# Unknown entries use_... and ..._config are assumed to have an effect; these are read, or have none.
_LORA_CONFIGS = ("loftq_config", "eva_config", "corda_config", "lora_ga_config")
_INERT = {"LORA": ("runtime_config", "use_rslora", "use_dora", *_LORA_CONFIGS), "IA3": ("runtime_config",)}
_SWITCH = re.compile(r"use_.*|.*_config")
_PATTERNS = {"LORA": {"rank": "rank_pattern", "alpha": "alpha_pattern"}, "IA3": {}}
"""Setting -> the entry that holds its exceptions by module."""

Joined = Mapping[str, tuple[Parameter, LoRAKind]]
"""The beginning of the names of a joined pair -> the parameter, and the pair's rank and alpha."""


def kind_in(entries: Mapping[str, Any]) -> type[Kind]:
    """The kind of adapter that a configuration describes; LoRA if it describes no known kind."""
    if entries.get("peft_type") == "IA3":
        return IA3Kind
    return DoRAKind if entries.get("use_dora") else LoRAKind


def type_of(kind: type[Kind]) -> str | None:
    """The entry peft_type of a kind; None if PEFT does not have it."""
    return "LORA" if issubclass(kind, LoRAKind) else "IA3" if issubclass(kind, IA3Kind) else None


def tensor_name(stem: str, part: str) -> str:
    """The name of PEFT's tensor for a part of a module, or of a parameter."""
    return f"{PREFIX}{stem}.{PEFT_NAMES.get(part, part)}"


def parts_of(model: Model, place: LayerTarget, kind: Kind) -> dict[str, Part]:
    """The trained tensors of a projection."""
    layer, target = place
    return kind.parts(target, model.blocks[layer].shape(target))


class Configuration:
    """An adapter_config.json. Raises FeatherbackError if it describes an unsupported adapter."""

    def __init__(self, file: Path, entries: Mapping[str, Any], model: Model) -> None:
        self.where, self.entries, self._model = str(file), entries, model
        self.kind = kind_in(entries)
        self.type = type_of(self.kind) or ""
        neutral = {**_NEUTRAL, "peft_type": (self.type,)}
        strange = [
            f"{key} = {excerpt(value)}"
            for key, value in entries.items()
            if (key in neutral and value not in neutral[key])
            or (_SWITCH.fullmatch(key) and key not in _INERT[self.type] and value not in _OFF)
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
        self.usual = self._ia3() if self.type == "IA3" else self._lora()
        known = [*(each.name for each in parameters(model)), *(name for _, name in routers(model))]
        self.parameters = self._target_parameters(known)
        self.joined = self._joined()

    def _lora(self) -> LoRAKind:
        """Return LoRA's settings, without the exceptions of single modules."""
        rank = self._checked("rank", "rank", self.entries.get("r"))
        alpha = self._checked("alpha", "alpha", self.entries.get("lora_alpha", 8))
        rslora, dora = self._switch("use_rslora"), self._switch("use_dora")
        return (DoRAKind if dora else LoRAKind)(rank=rank, alpha=alpha, rslora=rslora)

    def _ia3(self) -> IA3Kind:
        named = self.entries.get("feedforward_modules")
        if named is None:  # PEFT's default for the model families supported here
            return IA3Kind()
        if not (isinstance(named, list) and all(isinstance(name, str) for name in named)):
            raise FeatherbackError(
                f"{self.where} has feedforward_modules {excerpt(named)}; it must be a list of module names."
            )
        found = {target for (_, target), module in modules(self._model) if not set(_ends(module)).isdisjoint(named)}
        return IA3Kind(feedforward=tuple(sorted(found)))

    def _checked(self, setting: str, name: str, value: Any) -> Any:
        """Return a rank or an alpha. `name`: its name in messages."""
        if setting == "alpha":
            return check_alpha(self.where, name, value)
        if type(value) is not int or value < 1:
            raise FeatherbackError(f"{self.where} has {name} {excerpt(value)}; it must be a positive whole number.")
        return value

    def _switch(self, name: str) -> bool:
        """Return an entry that must be true or false."""
        value = self.entries.get(name)
        if value is not None and not isinstance(value, bool):
            raise FeatherbackError(f"The entry {name} of {self.where} is {excerpt(value)}; it must be true or false.")
        return bool(value)

    def names(self, model: Model) -> dict[str, Factor]:
        """PEFT's name -> factor, for every tensor that an adapter of this kind can have."""
        return {
            tensor_name(module, name): Factor(place, name)
            for place, module in modules(model)
            for name in parts_of(model, place, self.usual)
        }

    def kinds(self, model: Model, there: set[LayerTarget]) -> dict[LayerTarget, Kind]:
        """The kind of each adapted projection. `there`: the projections in the file, used if the configuration has a
        regular expression instead of a list."""
        wanted, own = self._wanted(model, there), dict(routers(model))
        named = {own.get(place, module): place for place, module in modules(model) if place in wanted}
        return {named[module]: kind for module, kind in self._own_kinds(named).items()}

    def _own_kinds(self, names: Iterable[str]) -> dict[str, Kind]:
        """Return the kind of each of these modules or parameters, with the settings of its own."""
        names = list(names)
        own = {
            setting: _by_name(
                names, ((key, self._checked(setting, f"{setting} {key}", value)) for key, value in self._entries(entry))
            )
            for setting, entry in _PATTERNS[self.type].items()
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
        for place, module in modules(model):
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


def configuration(adapter: Adapter, base_model: str) -> dict[str, Any]:
    """Return the entries of adapter_config.json."""
    form, layers = adapter.form, adapter.layers
    some = len(layers) < len(adapter.model.blocks) and not isinstance(form.kind, IA3Kind)
    exceptions = {
        place: kind
        for place, kind in form.exceptions.items()
        if (not some or place[0] in layers) and not on_request(place[1])
    }
    unusual = {adapter.module(*place): kind for place, kind in exceptions.items()}
    own = [target for target in form.targets if not on_request(target)]
    short = {module_names(adapter.model, [target])[0]: target for target in own}
    rest = (target for target in adaptable(adapter.model.blocks) if target not in own and not on_request(target))
    others = module_names(adapter.model, rest)
    if None in unusual.values() or not short.keys().isdisjoint(others):  # short names would match too many modules
        short, some = _modules(adapter), False
    chosen: dict[str, Any] = {"target_modules": list(short)}
    if some:
        chosen["layers_to_transform"] = list(layers)
    if named := _named_parameters(adapter):
        chosen["target_parameters"] = list(named)
        unusual |= {name: kind for name, kind in named.items() if kind != form.kind}
    targets = {**chosen, **_excluded(adapter.model.naming.others)}
    return {
        "peft_type": type_of(type(form.kind)),
        "task_type": _task(adapter),
        "base_model_name_or_path": base_model,
        **_settings(form.kind, unusual, targets, short),
        **({"modules_to_save": [SCORE]} if form.outputs else {}),
    }


def _excluded(others: tuple[str, ...]) -> dict[str, str]:
    """The entry that excludes modules with the same names in other parts of the model, such as a vision model."""
    parts = "|".join(re.escape(name) for name in others)
    return {"exclude_modules": rf"(.*\.)?({parts}).*"} if parts else {}


def _named_parameters(adapter: Adapter) -> dict[str, Kind]:
    """The entries of target_parameters with the kind of each: ends of names if every layer has the same, else names."""
    found: dict[str, Kind] = {each.name: kind for each, kind in adapted_parameters(adapter).items()}
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


def _task(adapter: Adapter) -> str:
    """The class of PEFT that opens the adapter."""
    if adapter.model.family.is_encoder:
        return "FEATURE_EXTRACTION"
    return "SEQ_CLS" if adapter.outputs else "CAUSAL_LM"


def _end(name: str) -> str:
    """The end of a parameter's name that is the same in every layer: "mlp.experts.down_proj"."""
    return LAYER.split(name, maxsplit=1)[1].split(".", 1)[1]


def _modules(adapter: Adapter) -> dict[str, str]:
    """Full name of each adapted module -> its target."""
    return {
        adapter.module(layer, target): target
        for layer in adapter.layers
        for target in adapter.layout.kinds(layer)
        if not on_request(target)
    }


def _settings(
    kind: Kind, unusual: Mapping[str, Kind | None], targets: Mapping[str, Any], short: Mapping[str, str]
) -> dict[str, Any]:
    """The entries that follow the base model's name, including `targets`.

    `unusual`: the exceptions by module, None for a module that is not adapted. `short`: the projection that each name
    in target_modules refers to.
    """
    if isinstance(kind, IA3Kind):
        return {
            **targets,
            "feedforward_modules": [name for name, target in short.items() if target in kind.feedforward],
            "fan_in_fan_out": False,
            "modules_to_save": None,
            "init_ia3_weights": True,
            "inference_mode": True,
        }
    assert isinstance(kind, LoRAKind)
    pairs = {name: each for name, each in unusual.items() if isinstance(each, LoRAKind)}
    return {
        "r": kind.rank,
        "lora_alpha": _number(kind.alpha),
        "rank_pattern": {name: each.rank for name, each in pairs.items()},
        "alpha_pattern": {name: _number(each.alpha) for name, each in pairs.items()},
        **targets,
        "lora_dropout": kind.dropout,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": kind.rslora,
        "use_dora": isinstance(kind, DoRAKind),
        "modules_to_save": None,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() else value
