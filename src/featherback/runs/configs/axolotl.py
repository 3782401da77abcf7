"""YAML files of Axolotl."""

from __future__ import annotations

from typing import Any

from featherback.runs.configs.base import Converted, Tool, as_option, chosen, data, is_off, lacking, share, unneeded

_FOUND = ("type", "ds_type", "name", "split", "data_files", "path", "trust_remote_code")
_USUAL: dict[str, tuple[Any, ...]] = {
    "field_messages": ("messages", "conversations"),
    "message_property_mappings": ({"role": "role", "content": "content"}, {"role": "from", "content": "value"}),
    "roles_to_train": (["assistant"], ["gpt"]),
    "train_on_eos": ("turn",),
    "chat_template": ("tokenizer_default", "tokenizer_default_fallback_chatml"),
}
"""Key of a data set -> the values that mean what Featherback does."""
_TEMPLATE = "the model's own chat template is used"


def _datasets(found: Converted, key: str, value: Any, name: str = "data") -> None:
    entries = [each for each in value or () if isinstance(each, dict)]
    data(found, key, entries, name)
    others = sorted(
        {each for entry in entries for each in entry if each not in _FOUND and entry[each] not in _USUAL.get(each, ())}
    )
    custom = [entry["type"] for entry in entries if isinstance(entry.get("type"), dict)]
    if others or custom:
        read = ", ".join([*others, *(["type"] if custom else [])])
        found.lacking[f"{key} ({read})"] = "Columns are found by name. Check with `featherback inspect`, or set map."


def _test_datasets(found: Converted, key: str, value: Any) -> None:
    _datasets(found, key, value, "eval_data")


def _linear(found: Converted, key: str, value: Any) -> None:
    if is_off(value):
        found.unneeded[key] = "it is not used"
    else:
        found.set(key, "targets", "all")


def _special_tokens(found: Converted, key: str, value: Any) -> None:
    """A padding token has no effect, because Featherback does not pad."""
    others = [name for name in value if name != "pad_token"] if isinstance(value, dict) else []
    lacking("No token is added, and the model's own special tokens are used.")(found, key, others)


def _logged(found: Converted, key: str, value: Any) -> None:
    if is_off(value):
        found.unneeded[key] = "it is not used"
    else:
        found.set(key, "log_to", "wandb")


def _whole(found: Converted) -> None:
    found.set("adapter (not set)", "train", "full")


_INERT = (
    "model_type", "tokenizer_type", "tokenizer_config", "is_llama_derived_model", "dataset_prepared_path",
    "dataset_processes", "shuffle_merged_datasets", "eval_sample_packing", "pad_to_sequence_len", "evals_per_epoch",
    "saves_per_epoch", "eval_table_size", "eval_max_new_tokens", "strict", "debug", "lora_mlp_kernel",
    "lora_qkv_kernel", "lora_o_kernel", "loss_watchdog_threshold", "loss_watchdog_patience", "s2_attention",
    "lora_fan_in_fan_out", "eval_batch_size", "bfloat16", "float16", "save_first_step", "low_cpu_mem_usage",
    "auto_resume_from_checkpoints",
)  # fmt: skip

TOOL = Tool(
    "Axolotl",
    frozenset({"base_model", "datasets", "micro_batch_size", "sequence_len", "val_set_size", "lora_target_linear",
               "sample_packing", "dataset_prepared_path", "model_type", "adapter"}),
    {
        **dict.fromkeys(_INERT, unneeded("it does not change what is learned")),
        "base_model": as_option("model"),
        "adapter": chosen({"lora": {}, "qlora": {}, "": {"train": "full"}, None: {"train": "full"}}, "no such adapter"),
        "lora_model_dir": as_option("from"),
        "lora_target_linear": _linear,
        "datasets": _datasets,
        "test_datasets": _test_datasets,
        "pretraining_dataset": _datasets,
        "val_set_size": share,
        "sample_packing": as_option("packing"),
        "excess_length_strategy": chosen({"truncate": {"cut": True}, "drop": {}}, "longer chats are rejected"),
        "optimizer": as_option("optimizer"),
        "chat_template": unneeded(_TEMPLATE),
        "default_system_message": lacking("Put the system message into the data."),
        "special_tokens": _special_tokens,
        "tokens": lacking("No token is added to the vocabulary."),
        "unfrozen_parameters": lacking("Set freeze to the weights that are not trained."),
        "wandb_project": _logged,
        "use_wandb": _logged,
        "rl": chosen({name: {"objective": name} for name in ("dpo", "ipo", "kto", "orpo", "simpo")} | {None: {}},
                     "no such objective"),
        "rl_beta": as_option("beta"),
        "dpo_beta": as_option("beta"),
        "peft_use_dora": as_option("dora"),
        "peft_use_rslora": as_option("rslora"),
    },
    unset={"adapter": _whole},
)  # fmt: skip
