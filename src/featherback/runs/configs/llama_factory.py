"""YAML and JSON files of LLaMA-Factory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from featherback.core.files import read_json
from featherback.errors import FeatherbackError
from featherback.runs.configs.base import Converted, Tool, as_option, chosen, data, lacking, share, unneeded


def _eval_data(found: Converted, key: str, value: Any) -> None:
    data(found, key, value, "eval_data")


def _columns(found: Converted, key: str, value: Any) -> None:
    found.lacking[f"{key.removesuffix('_columns')} ({value})"] = (
        "Columns are found by name. Check with `featherback inspect`, or set map."
    )


def _alpha(found: Converted) -> None:
    found.set("lora_alpha (not set)", "alpha", 2 * found.values.get("rank", 8))


def _length(found: Converted, key: str, value: Any) -> None:
    """LLaMA-Factory truncates what is longer."""
    found.set(key, "seq_len", value)
    found.set(key, "cut", True)


def _listed(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys with the files of data sets that are listed in dataset_info.json, and their columns."""
    folder = Path(str(keys.get("dataset_dir") or "data"))
    try:
        listed = read_json(folder / _LIST, _MOST_LIST)
    except FeatherbackError:
        return keys
    found = dict(keys)
    for key in ("dataset", "eval_dataset"):
        value = keys.get(key)
        names = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
        sets: list[dict[str, Any]] = []
        for name in names:
            each = listed.get(str(name).strip()) if isinstance(listed, dict) else None
            if isinstance(each, dict) and each.get("file_name"):
                sets.append(each)
        if not names or len(sets) < len(names):
            continue
        found[key] = [str(folder / str(each["file_name"])) for each in sets]
        other = sorted({option for each in sets for option in each if option not in _UNDERSTOOD})
        columns = {name: column for each in sets for name, column in (each.get("columns") or {}).items()}
        unlike = {
            f"columns.{name}={column}" for name, column in columns.items() if column not in _COLUMNS.get(name, ())
        }
        if other or unlike:
            found[f"{key}_columns"] = ", ".join([*other, *sorted(unlike)])
    return found


_LIST, _MOST_LIST = "dataset_info.json", 16 << 20
_UNDERSTOOD = ("file_name", "formatting", "columns", "tags", "ranking")
_COLUMNS = {
    "prompt": ("instruction", "prompt", "question"), "query": ("input",), "system": ("system",), "tools": ("tools",),
    "response": ("output", "completion", "answer", "response"), "messages": ("conversations", "messages"),
    "chosen": ("chosen",), "rejected": ("rejected",), "kto_tag": ("label",),
}  # fmt: skip
"""Column in dataset_info.json -> the names in files that are understood without an option."""

_INERT = (
    "dataset_dir", "media_dir", "tokenized_path", "preprocessing_batch_size", "quantization_method",
    "double_quantization", "enable_thinking", "upcast_layernorm", "include_num_input_tokens_seen", "cache_dir",
    "data_seed", "flash_attn", "disable_gradient_checkpointing", "infer_backend", "per_device_eval_batch_size",
)  # fmt: skip
_OBJECTIVES = {"sigmoid": "dpo", "ipo": "ipo", "orpo": "orpo", "simpo": "simpo"}

TOOL = Tool(
    "LLaMA-Factory",
    frozenset({"stage", "finetuning_type", "cutoff_len", "template", "lora_target", "dataset", "model_name_or_path",
               "preprocessing_num_workers", "overwrite_cache", "plot_loss", "dataset_dir", "val_size", "pref_beta"}),
    {
        **dict.fromkeys(_INERT, unneeded("it does not change what is learned")),
        "model_name_or_path": as_option("model"),
        "adapter_name_or_path": as_option("from"),
        "stage": chosen({"sft": {}, "pt": {}, "dpo": {"objective": "dpo"}, "kto": {"objective": "kto"},
                         "rm": {"objective": "reward"}}, "no such objective"),
        "finetuning_type": chosen({"lora": {}, "full": {"train": "full"}}, "adapters are LoRA, DoRA, IA3 or SpaRTAN"),
        "lora_target": as_option("targets"),
        "dataset": data,
        "eval_dataset": _eval_data,
        "dataset_columns": _columns,
        "eval_dataset_columns": _columns,
        "val_size": share,
        "cutoff_len": _length,
        "template": unneeded("the model's own chat template is used"),
        "default_system": lacking("Put the system message into the data."),
        "neat_packing": as_option("packing"),
        "train_on_prompt": lacking("Only answers are trained, never prompts."),
        "pref_beta": as_option("beta"),
        "pref_loss": chosen({name: {"objective": ours} for name, ours in _OBJECTIVES.items()}, "no such objective"),
        "pref_ftx": lacking("No likelihood of the chosen answer is added. Objective orpo adds one."),
        "simpo_gamma": as_option("simpo_gamma"),
        "freeze_trainable_layers": lacking("Set freeze to the weights that are not trained."),
    },
    read=_listed,
    unset={"lora_alpha": _alpha},
)  # fmt: skip
