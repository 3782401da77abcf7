"""YAML files of `mlx_lm.lora`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from featherback.runs.configs.base import Converted, Tool, as_option, chosen, lacking, unneeded


def _folder(found: Converted, key: str, value: Any) -> None:
    """A folder has train.jsonl and valid.jsonl; test.jsonl is not trained on."""
    if not (isinstance(value, str) and (Path(value).is_dir() or value.startswith(("/", ".", "~")))):
        found.lacking[key] = f"{value} is not a folder. Download the data, and set data to the file."
        return
    found.set(key, "data", str(Path(value) / "train.jsonl"))
    found.set(key, "eval_data", str(Path(value) / "valid.jsonl"))


def _lora(found: Converted, key: str, value: Any) -> None:
    """MLX multiplies by `scale`, which is alpha / rank."""
    options = dict(value or {})
    rank = options.pop("rank", 8)
    found.set(key, "rank", rank)
    found.set(key, "alpha", rank * options.pop("scale", 20.0))
    found.set(key, "lora_dropout", options.pop("dropout", 0.0))
    if keys := options.pop("keys", None):
        found.set(key, "targets", [str(name).rsplit(".", 1)[-1] for name in keys])
    for name, each in options.items():
        found.lacking[f"{key}.{name}"] = f"{each}: Featherback does not know this option."


def _schedule(found: Converted, key: str, value: Any) -> None:
    options = dict(value or {})
    kinds = {"cosine_decay": "cosine", "linear_schedule": "linear"}
    name, values = options.get("name"), options.get("arguments") or []
    if name not in kinds:
        found.lacking[key] = f"{name}: choose schedule cosine, linear or constant."
        return
    found.set(key, "schedule", kinds[name])
    found.set(key, "warmup", options.get("warmup", 0))
    if values:
        found.set(key, "lr", values[0])
    if len(values) > 2 and values[2]:
        found.lacking[f"{key}.arguments"] = "The rate falls to 0 at the last step."


def _optimizer(found: Converted, key: str, value: Any) -> None:
    if value == "adam":
        found.set(key, "optimizer", "adamw")
        found.set(key, "weight_decay", 0.0)
    else:
        found.set(key, "optimizer", value)


def _length(found: Converted, key: str, value: Any) -> None:
    """mlx-lm truncates what is longer."""
    found.set(key, "seq_len", value)
    found.set(key, "cut", True)


def _prompts(found: Converted) -> None:
    found.lacking["mask_prompt (not set)"] = "mlx-lm trains prompts as well; Featherback trains only answers."


def _default(key: str, name: str, value: Any) -> Any:
    return lambda found: found.set(f"{key} (not set)", name, value)


TOOL = Tool(
    "mlx-lm",
    frozenset({"iters", "lora_parameters", "adapter_path", "fine_tune_type", "steps_per_eval", "steps_per_report",
               "val_batches", "test_batches", "grad_checkpoint", "resume_adapter_file", "mask_prompt", "num_layers"}),
    {
        "model": as_option("model"),
        "train": unneeded("it does not change what is learned"),
        "test": unneeded("use `featherback evaluate`"),
        "test_batches": unneeded("use `featherback evaluate`"),
        "val_batches": unneeded("all held-out data are measured"),
        "config": unneeded("it does not change what is learned"),
        "project_name": unneeded("it does not change what is learned"),
        "fine_tune_type": chosen({"lora": {}, "dora": {"dora": True}, "full": {"train": "full"}}, "no such adapter"),
        "data": _folder,
        "batch_size": as_option("batch_size"),
        "adapter_path": as_option("out"),
        "resume_adapter_file": as_option("from"),
        "save_every": as_option("save_every"),
        "max_seq_length": _length,
        "lora_parameters": _lora,
        "lr_schedule": _schedule,
        "optimizer": _optimizer,
        "optimizer_config": lacking("Set the options of the optimizer: weight_decay, beta1, beta2, eps."),
    },
    unset={
        "mask_prompt": _prompts,
        "optimizer": lambda found: _optimizer(found, "optimizer (not set)", "adam"),
        "learning_rate": _default("learning_rate", "lr", 1e-5),
        "iters": _default("iters", "steps", 1000),
        "num_layers": _default("num_layers", "layers", "last:16"),
        "batch_size": _default("batch_size", "batch_size", 4),
        "lora_parameters": lambda found: _lora(found, "lora_parameters (not set)", {}),
        "lr_schedule": _default("lr_schedule", "schedule", "constant"),
    },
)  # fmt: skip
