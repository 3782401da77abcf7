"""Advice about an option that does not exist: what replaces it, or which option was probably meant.

Advice follows from the meaning of an option's name, not from its spelling. For an option of another tool that
has no counterpart here, a sentence says what replaces it. A word by which people look for an option leads to that
option. Only typing errors are recognised by spelling.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache

from featherback.core.naming import argument, in_python, spelled_option
from featherback.core.options import as_word, described
from featherback.errors import did_you_mean
from featherback.runs.names import aliases, known, spellings, usual_name

_LORA = "LoRA is the default: remove the option. To train the whole model, use {train full}."
_STRATEGY = "Set the interval instead: use {save_every 50} for checkpoints and {eval_every 50} for the held-out loss."
_ANSWERS = "This is the default: only completions and the assistant's messages are trained. Remove the option."
_DEVICE = "Training runs on the CPU: remove the option. {threads} sets the number of threads."
_FORMAT = "Use {compute bf16} for matrix products. fp16 is not supported."
_QUANTISED = "A GGUF file with {}-bit weights is trained as it is. For a Hugging Face folder, use {{quantize {}}}."
_RECOMPUTED = "The memory budget decides which activations are recomputed: remove the option, or use {memory 96MB}."
_MODEL = "The model is the first argument, without a name: featherback train MODEL"
_STEPS = "Every step is recorded in metrics.jsonl of the run: remove the option."

REPLACED: Mapping[str, str] = {
    "load_in_4bit": _QUANTISED.format("4", "q4_0"),
    "load_in_8bit": _QUANTISED.format("8", "q8_0"),
    "use_4bit": _QUANTISED.format("4", "q4_0"),
    "qlora": _QUANTISED.format("4", "q4_0"),
    "bf16": _FORMAT,
    "fp16": _FORMAT,
    "tf32": _FORMAT,
    "gradient_checkpointing": _RECOMPUTED,
    "use_gradient_checkpointing": _RECOMPUTED,
    "grad_checkpoint": _RECOMPUTED,
    "use_lora": _LORA,
    "use_peft": _LORA,
    "lora": _LORA,
    "peft": _LORA,
    "logging_steps": _STEPS,
    "logging_strategy": _STEPS,
    "steps_per_report": _STEPS,
    "logging_dir": "The run's directory has all records: remove it. {log_to tensorboard} adds TensorBoard's files.",
    "save_strategy": _STRATEGY,
    "eval_strategy": _STRATEGY,
    "evaluation_strategy": _STRATEGY,
    "save_total_limit": "Old checkpoints are removed automatically: remove the option.",
    "load_best_model_at_end": "This is the default: the best adapter is kept if data are held out. Remove the option.",
    "resume_from_checkpoint": "Use {resume} with the {out} of the run, which then continues from the last checkpoint.",
    "completion_only_loss": _ANSWERS,
    "assistant_only_loss": _ANSWERS,
    "train_on_inputs": _ANSWERS,
    "mask_prompt": _ANSWERS,
    "do_train": "This is the default: remove the option.",
    "do_eval": "{eval_data} measures the held-out loss during training: remove the option.",
    "label_smoothing_factor": "Use {objective smoothed} with {label_smoothing 0.1}.",
    "per_device_eval_batch_size": "Held-out data are measured in batches of the training size: remove the option.",
    "per_gpu_train_batch_size": "There is one device, the CPU: use {batch_size 4}.",
    "device": _DEVICE,
    "device_map": _DEVICE,
    "no_cuda": _DEVICE,
    "use_cpu": _DEVICE,
    "gpu": _DEVICE,
    "gpus": _DEVICE,
    "cuda": _DEVICE,
    "deepspeed": _DEVICE,
    "fsdp": _DEVICE,
    "flash_attention": "Attention never stores the whole score matrix: remove the option.",
    "xformers_attention": "Attention never stores the whole score matrix: remove the option.",
    "sdp_attention": "Attention never stores the whole score matrix: remove the option.",
    "use_liger_kernel": "Logits are never stored as a whole: remove the option.",
    "gradient_checkpointing_kwargs": _RECOMPUTED,
    "ddp_timeout": _DEVICE,
    "fsdp_config": _DEVICE,
    "local_rank": _DEVICE,
    "logging_first_step": _STEPS,
    "plot_loss": "report.html of the run has a chart: remove the option.",
    "quantization_bit": _QUANTISED.format("4", "q4_0"),
    "hub_model_id": "The result is a folder on this machine: remove the option, and upload the folder yourself.",
    "overwrite_cache": "Data are prepared for each run: remove the option.",
    "preprocessing_num_workers": "{threads} sets the number of threads: remove the option.",
    "dataset_num_proc": "{threads} sets the number of threads: remove the option.",
    "dataloader_num_workers": "{threads} sets the number of threads: remove the option.",
    "dataloader_pin_memory": _DEVICE,
    "save_only_model": "Old checkpoints are removed automatically: remove the option.",
    "save_safetensors": "The result is always a safetensors file: remove the option.",
    "eval_on_start": "The held-out loss is always measured before training: remove the option.",
    "run_name": "The name of the run is its directory: remove the option.",
    "use_cache": "It has no meaning in training: remove the option.",
    "remove_unused_columns": "Columns that are not used are ignored: remove the option.",
    "flash_attn": "Attention never stores the whole score matrix: remove the option.",
    "attn_implementation": "Attention never stores the whole score matrix: remove the option.",
    "overwrite_output_dir": "A run never overwrites another one: use a new {out}, or {resume} to continue.",
    "force": "A run never overwrites another one: use a new {out}, or {resume} to continue.",
    "push_to_hub": "The result is a folder on this machine: remove the option, and upload the folder yourself.",
    "group_by_length": "Packing already avoids padding: remove the option.",
    "trust_remote_code": "Code from a model folder is never run: remove the option.",
    "use_fast_tokenizer": "The model's own tokenizer is always used: remove the option.",
    "model_name_or_path": _MODEL,
    "model": _MODEL,
    "base_model": _MODEL,
    "adam_beta1": "Use {beta1 0.9}.",
    "adam_beta2": "Use {beta2 0.999}.",
    "adam_epsilon": "Use {eps 1e-8}.",
    "adapter_path": "Use {from PATH} to continue an adapter, and {out} for the new one.",
}  # fmt: skip
"""Option of another tool that has no counterpart -> what takes its place. {rank 8} becomes `--rank 8`, or `rank=8`."""

LACKING: Mapping[str, str] = {
    "neftune_noise_alpha": "No noise is added to embeddings.",
    "modules_to_save": "Embeddings, norms and heads are not trained beside an adapter.",
    "lora_modules_to_save": "Embeddings, norms and heads are not trained beside an adapter.",
    "additional_target": "Embeddings, norms and heads are not trained beside an adapter.",
    "special_tokens": "No token is added, and the model's own special tokens are used.",
    "added_tokens": "No token is added to the vocabulary.",
    "init_lora_weights": "A is random and B is zero; there is no other way to begin.",
    "pissa_init": "A is random and B is zero; there is no other way to begin.",
    "loftq_config": "A is random and B is zero; there is no other way to begin.",
    "max_samples": "All examples are used. Shorten the file of the data.",
    "max_train_samples": "All examples are used. Shorten the file of the data.",
    "relora_steps": "ReLoRA is not available.",
    "use_galore": "GaLore is not available; with {train full}, {optimizer apollo} is similar.",
    "use_badam": "BAdam is not available.",
    "layer_replication": "Layers are not repeated.",
    "rank_pattern": "All projections have the same rank.",
    "alpha_pattern": "All projections have the same alpha.",
    "rope_scaling": "The model's own rotary frequencies are used.",
    "mask_history": "Every answer of a conversation is trained, and not the last one alone.",
}
"""Option of another tool that changes what is learned and that nothing replaces -> what Featherback does."""

_PLACE = re.compile(r"\{(\w+)(?: (\S+))?\}")
_MOST = 3
"""Options that are suggested at once; also the most typing errors in a name."""
_LONGEST = 100
"""Letters of a name that is compared with others."""


def advice(name: str, among: Collection[str] | None = None) -> str:
    """Sentences, after a space, about an unknown option; empty if there is nothing to say.

    `among`: the options that exist where it was used, as words ("rank"); None for all options of training.
    """
    names = _names()
    if among is not None:
        names = {each: usual for each, usual in names.items() if usual in among} | {each: each for each in among}
    told = {**REPLACED, **LACKING}
    replaced = [each for each in told if among is None or _mentions(told[each]) <= set(among)]
    meant = nearest(name, [*replaced, *names])
    spell = _in_file if among is None else spelled_option
    if meant in names:
        same = f" It is the same as `{spell(names[meant])}`." if meant in aliases() else ""
        return did_you_mean([spell(meant if same else names[meant])]) + same
    if meant is not None:
        return f" {with_options(told[meant])}"
    begun = dict.fromkeys(usual for each, usual in names.items() if each.startswith(f"{_folded(name)}_"))
    return did_you_mean([spell(usual) for usual in begun][:_MOST])


def with_options(text: str) -> str:
    """Return a text of REPLACED or LACKING with its options as they are written: {rank 8} as `--rank 8`."""
    return _PLACE.sub(_option, text)


def _in_file(name: str) -> str:
    """An option's name as it is written in a file of options, and in Python."""
    return spelled_option(name) if in_python() else name


def typing_errors(one: str, other: str) -> int:
    """Letters to insert, remove, replace or swap with a neighbour to make one text of the other (restricted Damerau and
    Levenshtein).
    """
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one):
        row = [i + 1]
        for j, its in enumerate(other):
            row.append(min(last[j + 1] + 1, row[j] + 1, last[j] + (letter != its)))
            if i and j and letter == other[j - 1] and its == one[i - 1]:
                row[-1] = min(row[-1], before[j - 1] + 1)
        before, last = last, row
    return last[-1]


def typing_errors_allowed(name: str) -> int:
    """How many typing errors a name of this length may have: one in four letters, and none in very short names."""
    return min(_MOST, len(name) // 4)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of these names that was probably meant: the same but for dashes, or a typing error away; else None."""
    word = _squeezed(name)
    spelled = {_squeezed(each): each for each in names}
    if word in spelled or len(word) > _LONGEST:
        return spelled.get(word)
    errors = {each: typing_errors(word, each) for each in spelled if abs(len(each) - len(word)) <= _MOST}
    near = [each for each, count in errors.items() if count <= typing_errors_allowed(min(word, each, key=len))]
    return spelled[min(near, key=lambda each: errors[each])] if near else None


@cache
def _names() -> dict[str, str]:
    """Map every name of a training option, and every word that leads to the option, to its usual name, as words."""
    found: dict[str, str] = {}
    for field, kinds in known().items():
        usual = usual_name(field)
        hints = (as_word(hint) for hint in described(kinds[0])[field].hints)
        found |= dict.fromkeys([*spellings(kinds[0], field), *hints], usual)
    return found


def _mentions(text: str) -> set[str]:
    return {match[1] for match in _PLACE.finditer(text)}


def _option(match: re.Match[str]) -> str:
    name, value = match[1], match[2]
    return f"`{argument(name) if value is None else argument(name, _number(value))}`"


def _number(text: str) -> object:
    """Convert text to a number if it is one, so that messages show it without quotes."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _folded(name: str) -> str:
    return as_word(name.strip().lower())


def _squeezed(name: str) -> str:
    return _folded(name).replace("_", "")
