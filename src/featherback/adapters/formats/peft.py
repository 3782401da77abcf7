"""PEFT directories: adapter_config.json and adapter_model.safetensors (https://github.com/huggingface/peft).

PEFT takes the keys of rank_pattern and alpha_pattern, and exclude_modules and target_modules where they are text, for
regular expressions. Those of a foreign file are not run; names are, and what else is there is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from featherback.adapters.base_model import base_model_name
from featherback.adapters.formats.base import (
    Factor,
    Float32,
    Format,
    Layout,
    StoredAdapter,
    check_alpha,
    check_modules,
    factors,
    form_of,
    places,
    ranks_of,
)
from featherback.adapters.lora import PARTS, Form, LoRA, Pair, Place
from featherback.adapters.safetensors_writer import write_safetensors
from featherback.errors import FeatherbackError, shown
from featherback.files import make_folder, read_json, write_json
from featherback.models.model import Model
from featherback.weights.safetensors import SafetensorsFile
from featherback.weights.store import floats

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
PREFIX = "base_model.model."

# Entries of adapter_config.json that change what the adapter computes, with the values that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "lora_bias": (False, None),
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "layers_pattern": (None, [], "", "layers", ["layers"]),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    # PiSSA, OLoRA, CorDA and LoftQ also change the base model, so their adapters do not fit it.
    "init_lora_weights": (None, True, False, "gaussian", "orthogonal", "eva"),
}
_OFF: tuple[Any, ...] = (None, False, {}, [])
# Of what stands in use_... or ..._config, unknown entries are taken to change what is computed; these do not, or are
# read.
_INERT = ("use_rslora", "use_dora", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "runtime_config")
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
            raise FeatherbackError(f"{path / CONFIG_FILE} describes no adapter: it is not a JSON object.")
        if not (path / WEIGHTS_FILE).is_file() and (path / PICKLE).is_file():
            raise FeatherbackError(
                f"{path / PICKLE} is a pickle, which is never loaded; save the adapter as {WEIGHTS_FILE} with PEFT."
            )
        config = _Configuration(path / CONFIG_FILE, configuration)
        file = SafetensorsFile(path / WEIGHTS_FILE)
        try:
            where = f"The adapter in {path}"
            check_modules(where, model, file.tensors, ".lora_")
            layout = Layout(
                {
                    f"{PREFIX}{module}.{PARTS[part]}": Factor(place, part)
                    for place, module in places(model)
                    for part in PARTS
                    if part != "m" or config.dora
                }
            )
            there = {layout.names[name].place for name in file.tensors if name in layout.names}
            pairs = config.pairs(model, there)
            ranks_of(where, model, file.tensors, layout, {place: pair.rank for place, pair in pairs.items()})
            form = form_of(where, model, pairs, config.usual, config.rslora, config.dora)
            yield _Stored(form, file, layout)
        finally:
            file.close()

    def save(self, adapter: LoRA, directory: Path, base_model: str | None = None) -> None:
        """Write the adapter into `directory`, which is made if need be; each file appears whole or not at all.

        `base_model`: what the configuration calls the base (default: `base_model_name`). FeatherbackError if it cannot
        be written, or holds NaN or infinity: what was there before is untouched.
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
    def __init__(self, form: Form, file: SafetensorsFile, layout: Layout) -> None:
        self.form, self._file = form, file
        self._names = {factor: name for name, factor in layout.names.items()}

    def factor(self, factor: Factor) -> Float32:
        return floats(self._file, self._names[factor])


class _Configuration:
    """An adapter_config.json; FeatherbackError if it describes anything but LoRA or DoRA."""

    def __init__(self, file: Path, entries: Mapping[str, Any]) -> None:
        self.file, self.entries = file, entries
        strange = [
            f"{key} = {shown(value)}"
            for key, value in entries.items()
            if (key in _NEUTRAL and value not in _NEUTRAL[key])
            or (_SWITCH.fullmatch(key) and key not in _INERT and value not in _OFF)
        ]
        if strange:
            raise FeatherbackError(f"{file} describes an adapter that is not a plain LoRA ({', '.join(strange)}).")
        self.usual = Pair(self._rank("rank", entries.get("r")), self._alpha(entries.get("lora_alpha", 8)))
        self.rslora, self.dora = self._switch("use_rslora"), self._switch("use_dora")

    def _switch(self, name: str) -> bool:
        value = self.entries.get(name)
        if value is not None and not isinstance(value, bool):
            raise FeatherbackError(f"{self.file} has {name} {shown(value)}; it must be true or false.")
        return bool(value)

    def pairs(self, model: Model, there: set[Place]) -> dict[Place, Pair]:
        """The pairs that the file must have; `there`: those that it has, where the configuration is no list."""
        ranks = _by_module(
            model, ((key, self._rank(f"rank {key}", rank)) for key, rank in self._entries("rank_pattern"))
        )
        alphas = _by_module(model, ((key, self._alpha(alpha)) for key, alpha in self._entries("alpha_pattern")))
        wanted = self._wanted(model, there)
        return {
            place: Pair(ranks.get(module, self.usual.rank), alphas.get(module, self.usual.alpha))
            for place, module in places(model)
            if place in wanted
        }

    def _wanted(self, model: Model, there: set[Place]) -> set[Place]:
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
                raise FeatherbackError(f"{self.file} has {name} {shown(value)}, which cannot be read.")
        if targets is None:
            targets = [target for _, target in there]
        targeted, left_out, some = frozenset(targets), frozenset(excluded or []), frozenset(layers or [])
        wanted = set()
        for place, module in places(model):
            named, ends = module in targeted, _ends(module)
            chosen = named or (not targeted.isdisjoint(ends) and (not some or place[0] in some))
            if chosen and left_out.isdisjoint(ends):
                wanted.add(place)
        return wanted

    def _entries(self, name: str) -> Iterator[tuple[str, Any]]:
        """The entries of rank_pattern or alpha_pattern, each a module's name, or the end of one; "^": all of it."""
        pattern = self.entries.get(name) or {}
        if not isinstance(pattern, dict):
            raise FeatherbackError(f"{self.file} has {name} {shown(pattern)}, which cannot be read.")
        for key, value in pattern.items():
            plain = key.replace(r"\.", ".")
            if not re.fullmatch(r"\^?[\w.-]+", plain):
                raise FeatherbackError(
                    f"{self.file} has the regular expression {shown(key)} in {name}; only names of modules are read."
                )
            yield plain, value

    def _rank(self, name: str, rank: Any) -> int:
        if type(rank) is not int or rank < 1:
            raise FeatherbackError(f"{self.file} has {name} {shown(rank)}; it must be a positive whole number.")
        return rank

    def _alpha(self, alpha: Any) -> float:
        return check_alpha(str(self.file), "alpha", alpha)


def _ends(module: str) -> list[str]:
    """A module's name, and every end of it that begins behind a dot: what PEFT takes for its name."""
    parts = module.split(".")
    return [".".join(parts[first:]) for first in range(len(parts))]


def _by_module(model: Model, entries: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Module -> the value of the first entry of rank_pattern or alpha_pattern whose key matches it."""
    modules: dict[str, list[str]] = {}
    for _, module in places(model):
        for key in (f"^{module}", *_ends(module)):
            modules.setdefault(key, []).append(module)
    found: dict[str, Any] = {}
    for key, value in entries:
        for module in modules.get(key, ()):
            found.setdefault(module, value)
    return found


def _tensors(adapter: LoRA) -> Iterator[tuple[str, Float32]]:
    for (place, part), values in factors(adapter):
        yield PREFIX + adapter.name(*place, part), values


def _configuration(adapter: LoRA, base_model: str) -> dict[str, Any]:
    form = adapter.form
    unusual = {adapter.module(*place): pair for place, pair in form.exceptions.items()}
    complete = None not in unusual.values()
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": form.rank,
        "lora_alpha": _number(form.alpha),
        "rank_pattern": {name: pair.rank for name, pair in unusual.items() if pair},
        "alpha_pattern": {name: _number(pair.alpha) for name, pair in unusual.items() if pair},
        "target_modules": list(form.targets) if complete else _modules(adapter),
        **_excluded(adapter.model.naming.others),
        "lora_dropout": adapter.dropout,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": form.rslora,
        "use_dora": form.dora,
        "modules_to_save": None,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _excluded(others: tuple[str, ...]) -> dict[str, str]:
    """The entry that keeps PEFT from adapting modules of the same names in the model's other parts."""
    parts = "|".join(re.escape(name) for name in others)
    return {"exclude_modules": rf"(.*\.)?({parts}).*"} if parts else {}


def _modules(adapter: LoRA) -> list[str]:
    """The whole names of the modules that are adapted."""
    return [
        adapter.module(layer, target)
        for layer in range(adapter.parameters.layers)
        for target in adapter.layout.adapted(layer)
    ]


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() else value


FORMAT = PEFT()
