"""YAML files of TRL's commands: `trl sft --config FILE`, `trl dpo --config FILE`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from featherback.runs.configs.base import Converted, Rule, Tool, as_option, chosen, data, is_off, lacking, unneeded

_INERT = (
    "lora_task_type", "task_type", "bias", "inference_mode", "dataset_train_split", "dataset_config",
    "dataset_streaming", "dataset_kwargs", "pad_token", "padding_free", "packing_strategy", "eval_packing",
    "auto_find_batch_size", "do_predict", "optim_args", "ignore_bias_buffers", "log_level", "disable_tqdm",
    "use_rich", "torch_compile", "average_tokens_across_devices", "activation_offloading", "truncation_mode",
    "model_revision", "revision", "device_map", "precompute_ref_log_probs", "eval_accumulation_steps",
    "dataset_batch_size", "logging_nan_inf_filter", "data_seed", "bnb_4bit_quant_type", "use_bnb_nested_quant",
    "bnb_4bit_compute_dtype", "dtype", "torch_dtype", "include_num_input_tokens_seen", "max_prompt_length",
    "max_completion_length", "env",
)  # fmt: skip
_ONLY_ANSWERS = ("assistant_only_loss", "completion_only_loss", "response_part")
_LOSSES = {"sigmoid": {"objective": "dpo"}, "ipo": {"objective": "ipo"}, "robust": {"objective": "robust_dpo"},
           "nll": {}, "simpo": {"objective": "simpo"}, "kto": {"objective": "kto"}, "dft": None}  # fmt: skip


def _length(found: Converted, key: str, value: Any) -> None:
    """TRL truncates what is longer."""
    if is_off(value):
        found.unneeded[key] = "it is not used"
        return
    found.set(key, "seq_len", value)
    found.set(key, "cut", True)


def _peft(found: Converted, key: str, value: Any) -> None:
    if is_off(value):
        found.set(key, "train", "full")
    else:
        found.unneeded[key] = "it is the default"


def _beta(found: Converted, key: str, value: Any) -> None:
    """Only preferences have it; for DPO it is the usual key."""
    if "objective" not in found.values:
        found.set(key, "objective", "dpo")
    found.set(key, "beta", value)


def _eval_split(found: Converted, key: str, value: Any) -> None:
    found.unneeded[key] = "name the file of held-out data with eval_data"


def prompts(key: str) -> Callable[[Converted], None]:
    """Return what to do if `key`, with which only answers are trained, is not set."""

    def unset(found: Converted) -> None:
        if not (found.values.get("objective", "smoothed") != "smoothed" or set(_ONLY_ANSWERS) & found.unneeded.keys()):
            found.lacking[f"{key} (not set)"] = (
                "Without it, whole conversations are trained there; Featherback trains only the assistant's messages."
            )

    return unset


OWN: dict[str, Rule] = {
    **dict.fromkeys(_INERT, unneeded("it does not change what is learned")),
    "model_name_or_path": as_option("model"),
    "use_peft": _peft,
    "dataset_name": data,
    "dataset_path": data,
    "datasets": data,
    "dataset_test_split": _eval_split,
    "eval_dataset": _eval_split,
    "max_length": _length,
    "max_seq_length": _length,
    "beta": _beta,
    "loss_type": chosen({name: ours for name, ours in _LOSSES.items() if ours is not None}, "no such objective"),
    "label_smoothing": as_option("label_smoothing"),
    "desirable_weight": as_option("desirable_weight"),
    "undesirable_weight": as_option("undesirable_weight"),
    "simpo_gamma": as_option("simpo_gamma"),
    "rpo_alpha": as_option("rpo_alpha"),
    "chat_template_path": unneeded("the model's own chat template is used"),
    "eos_token": unneeded("the model's own end token is used"),
    "dataset_text_field": lacking("Set map to text=COLUMN.", usual=("text",)),
    "ref_model": lacking("The reference is always the model without the adapter."),
    "use_dora": as_option("dora"),
}

TOOL = Tool(
    "TRL",
    frozenset({"dataset_name", "use_peft", "lora_r", "lora_target_modules", "model_name_or_path", "max_length",
               "per_device_train_batch_size", "num_train_epochs", "assistant_only_loss", "lora_task_type", "beta"}),
    OWN,
    unset={
        "use_peft": lambda found: found.set("use_peft (not set)", "train", "full"),
        "assistant_only_loss": prompts("assistant_only_loss"),
    },
)  # fmt: skip
