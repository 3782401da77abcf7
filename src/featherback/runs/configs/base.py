"""The parts that all tools share: what becomes of a key, and the keys that mean the same in every tool."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from featherback.core.options import described
from featherback.errors import FeatherbackError, excerpt
from featherback.runs.by_name import given
from featherback.runs.config import TrainConfig, unused_options
from featherback.runs.names import aliases, fields_by_name, known, usual_name
from featherback.runs.other_names import LACKING, REPLACED, SAME_AS
from featherback.runs.suggestions import with_options

SAME = ("lora_dropout", "weight_decay", "max_grad_norm", "seed", "packing", "label_smoothing")
"""Options that have the same name, and meaning, in every tool. Others of our names may mean something else there."""
_ANSWERS = {"completion_only_loss": True, "assistant_only_loss": True, "mask_prompt": True, "train_on_inputs": False}
"""Key -> the value with which only answers are trained, as Featherback does."""
_VALUES: Mapping[str, Mapping[str, str]] = {
    "optimizer": {
        **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf"), "adamw"),
        **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"), "adamw8bit"),
        "lion_32bit": "lion",
    },
    "schedule": {"constant_with_warmup": "constant"},
    "targets": {"all-linear": "all"},
}
"""Our option -> values that have another name in transformers -> ours."""
_STEPS = ("label_smoothing_factor", "warmup_steps", "warmup_ratio", "eval_steps", "save_steps", "max_steps")
"""Keys that 0 or -1 switch off."""
_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".txt", ".arrow", ".gz", ".zst")


class Computed(str):
    """The text of a value that a program computes."""


@dataclass
class Converted:
    """An option file that was made from another tool's, and what became of each key."""

    title: str
    """The tool."""
    values: dict[str, Any] = field(default_factory=dict)
    """Our options by their usual names, and "model"."""
    translated: dict[str, dict[str, str]] = field(default_factory=dict)
    """Key -> the options that it became, with their values as text."""
    unneeded: dict[str, str] = field(default_factory=dict)
    """Key that changes nothing here -> why."""
    lacking: dict[str, str] = field(default_factory=dict)
    """Key without a counterpart that changes what is learned -> what happens instead."""

    def set(self, key: str, name: str, value: Any) -> None:
        """Translate `key` into our option `name`; if the value cannot be translated, list the key as lacking."""
        if name != "model":
            option = fields_by_name()[name]
            if isinstance(value, str):
                value = _VALUES.get(option, {}).get(value, value)
            try:
                checked = given(option, value, key.partition(" ")[0])
            except FeatherbackError as error:
                self.lacking[key] = str(error)
                return
            own = isinstance(value, str) and checked is not None
            value, name = value if own else _written(option, checked), usual_name(option)
        self.values[name] = value
        self.translated.setdefault(key, {})[name] = _shown(value)

    def settle(self) -> None:
        """Remove options that have no effect beside others, as the tools do."""
        if self.values.get("train") == "full":
            for option in unused_options(TrainConfig, "full"):
                self._drop(usual_name(option), "train: full trains no adapter")
        if "steps" in self.values:
            self._drop("epochs", "steps replaces it")
        if self.values.get("dora") and self.values.get("lora_dropout"):
            dropped = next(key for key, options in self.translated.items() if "lora_dropout" in options)
            self._drop("lora_dropout", "")
            self.unneeded.pop(dropped, None)
            self.lacking[f"{dropped} (dropout)"] = (
                "DoRA has no dropout here, because it would also drop frozen weights."
            )
        if self.values.get("packing") is False and "batch_size" not in self.values:
            self.set("per_device_train_batch_size (not set)", "batch_size", 8)

    def _drop(self, name: str, reason: str) -> None:
        if self.values.pop(name, None) is None:
            return
        for key, options in list(self.translated.items()):
            if options.pop(name, None) is not None and not options:
                self.unneeded[key] = reason
                del self.translated[key]


Rule = Callable[[Converted, str, Any], None]
"""What is done with a key and its value."""


def as_option(name: str) -> Rule:
    """Return the rule for a key that means our option `name`. A null leaves the default."""

    def rule(found: Converted, key: str, value: Any) -> None:
        if value is None:
            found.unneeded[key] = "it is not set"
        else:
            found.set(key, name, value)

    return rule


def unneeded(reason: str) -> Rule:
    """Return the rule for a key that changes nothing here."""
    return lambda found, key, value: found.unneeded.update({key: reason})


def lacking(reason: str, usual: tuple[Any, ...] = ()) -> Rule:
    """Return the rule for a key without a counterpart. Switched off, or with a `usual` value, it has no effect."""

    def rule(found: Converted, key: str, value: Any) -> None:
        if is_off(value) or value in usual:
            found.unneeded[key] = "it is not used"
        else:
            found.lacking[key] = reason

    return rule


def chosen(table: Mapping[Any, Mapping[str, Any]], otherwise: str) -> Rule:
    """Return the rule for a key whose values mean options of ours. Other values are lacking, for the given reason."""

    def rule(found: Converted, key: str, value: Any) -> None:
        options = table.get(value) if isinstance(value, (str, bool, type(None))) else None
        if options is None:
            found.lacking[key] = f"{excerpt(value)}: {otherwise}"
            return
        for name, ours in options.items():
            found.set(key, name, ours)
        if not options:
            found.unneeded[key] = f"{_shown(value)} is the default"

    return rule


def share(found: Converted, key: str, value: Any) -> None:
    """The rule for held-out data as a share, or as a number of examples."""
    if is_off(value):
        found.set(key, "eval_share", 0.0)
    elif isinstance(value, float) and value < 1:
        found.set(key, "eval_share", value)
    else:
        found.lacking[key] = "A number of examples cannot be held out. Set eval_share to a share, such as 0.05."


def data(found: Converted, key: str, value: Any, name: str = "data") -> None:
    """The rule for files of data. The name of a data set, on a hub or in a list of data sets, does not count."""
    paths = value if isinstance(value, list) else [value]
    paths = [each.get("data_files") or each.get("path") if isinstance(each, dict) else each for each in paths]
    texts = [path for path in paths if isinstance(path, str)]
    if texts and len(texts) == len(paths) and all(map(is_file, texts)):
        found.set(key, name, texts if len(texts) > 1 else texts[0])
    else:
        found.lacking[key] = f"{excerpt(value)} is not a file. Download the data, and set {name} to the file."


def is_file(path: str) -> bool:
    """Whether a text names a file or a folder, and not a data set on a hub."""
    return Path(path).suffix.lower() in _FILES or path.startswith(("/", ".", "~")) or Path(path).exists()


def is_off(value: Any) -> bool:
    """Whether a value switches its option off."""
    return value in (None, False, "", 0, "none", "no", "false") or value in ([], {})


@dataclass(frozen=True)
class Tool:
    """The configuration files of one tool."""

    title: str
    signs: frozenset[str]
    """Keys by which a file is recognised."""
    own: Mapping[str, Rule]
    """Keys that mean something else, or more, than the options of the same names in `runs.names`."""
    read: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda keys: keys
    """Returns the keys with what other files of the tool say about them."""
    unset: Mapping[str, Callable[[Converted], None]] = field(default_factory=dict)
    """Key -> what to do if the file does not have it, because the tool's default is not ours."""
    is_program: bool = False

    def convert(self, keys: Mapping[str, Any]) -> Converted:
        """Translate all keys."""
        found = Converted(self.title)
        keys = self.read(keys)
        for key, value in keys.items():
            word = key.replace("-", "_")
            rule = self.own.get(word, _general)
            if not isinstance(value, Computed):
                rule(found, word, value)
                continue
            rule(trial := Converted(self.title), word, value)
            if word in trial.unneeded:
                found.unneeded[word] = trial.unneeded[word]
            else:
                found.lacking[word] = f"The program computes its value, `{value}`. Set it yourself."
        for key, default in self.unset.items():
            if key not in keys:
                default(found)
        found.settle()
        return found


def _general(found: Converted, key: str, value: Any) -> None:
    """Translate a key by the names that all tools share."""
    if key in _ANSWERS:
        if bool(value) != _ANSWERS[key]:
            found.lacking[key] = "Only answers are trained, never prompts."
        else:
            found.unneeded[key] = "only answers are trained"
    elif key == "label_smoothing_factor" and not is_off(value):
        found.set(key, "objective", "smoothed")
        found.set(key, "label_smoothing", value)
    elif key in REPLACED:
        found.unneeded[key] = "it is not used" if is_off(value) else with_options(REPLACED[key])
    elif key in LACKING:
        lacking(with_options(LACKING[key]), usual=(True,) if key == "init_lora_weights" else ())(found, key, value)
    elif key in _STEPS and value in (0, -1, None):
        found.unneeded[key] = "it is not used"
    elif key == "num_layers":
        found.set(key, "layers", "all" if value == -1 else f"last:{value}")
    elif option := aliases().get(key) or SAME_AS.get(key) or (key if key in SAME else None):
        as_option(option)(found, key, value)
    elif key.startswith(("wandb_", "comet_", "mlflow_", "swanlab_", "hub_", "dataloader_", "ddp_", "push_to_hub_")):
        found.unneeded[key] = "it does not change what is learned"
    else:
        lacking("Featherback does not know this option.")(found, key, value)


def _written(option: str, value: Any) -> Any:
    written = described(known()[option][0])[option].written
    return written(value) if written and value is not None else value


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
