"""Options of other tools that Featherback does not accept: which option of ours does the same, or what replaces it.

`convert-config` translates files with these tables, and errors about an unknown option suggest the right one.
"""

from __future__ import annotations

from collections.abc import Mapping


def _by_word(table: Mapping[str, str]) -> dict[str, str]:
    """{"a b": c} -> {"a": c, "b": c}: the words in a key share the value."""
    return {word: value for words, value in table.items() for word in words.split()}


SAME_AS: Mapping[str, str] = _by_word({
    "dataset dataset_name dataset_path train_file": "data",
    "eval_dataset validation_file": "eval_data",
    "val_set_size val_size": "eval_share",
    "dataset_text_field": "columns",
    "sequence_len cutoff_len max_seq_len model_max_length context_length": "seq_len",
    "micro_batch_size train_batch_size": "batch_size",
    "loraplus_lr_ratio": "loraplus_ratio",
    "lora_target_modules lora_target": "targets",
    "num_layers layers_to_transform lora_layers": "layers",
    "use_rslora": "rslora",
    "use_dora": "dora",
    "finetuning_type fine_tune_type": "train",
    "optim": "optimizer",
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "adam_epsilon": "eps",
    "lr_scheduler_type lr_scheduler": "schedule",
    "warmup_ratio num_warmup_steps": "warmup",
    "gradient_clipping": "max_grad_norm",
    "label_smoothing_factor": "label_smoothing",
    "eval_steps steps_per_eval": "eval_every",
    "early_stopping_patience": "patience",
    "save_steps": "save_every",
    "report_to": "log_to",
    "dtype torch_dtype": "compute",
    "random_state": "seed",
})  # fmt: skip
"""Option of training in another tool -> our field that means the same."""

IN_COMMANDS: Mapping[str, str] = _by_word({
    "p": "prompt", "n n_predict max_new_tokens": "max_tokens", "c ctx_size": "context", "temp": "temperature",
})  # fmt: skip
"""Option of llama.cpp's and other tools' commands -> our commands' option that means the same."""

_QUANTISED = "A GGUF file with {}-bit weights is trained as it is. For a Hugging Face folder, use {{quantize {}}}."
_RECOMPUTED = "The memory budget decides which activations are recomputed: remove the option, or use {memory 96MB}."
_NO_SCORES = "Attention never stores the whole score matrix: remove the option."

REPLACED: Mapping[str, str] = {
    word: text
    for text, words in {
        _QUANTISED.format("4", "q4_0"): "load_in_4bit quantization_bit",
        _QUANTISED.format("8", "q8_0"): "load_in_8bit",
        "Use {compute bf16} for matrix products. fp16 is not supported.": "bf16 fp16 tf32",
        _RECOMPUTED: "gradient_checkpointing use_gradient_checkpointing grad_checkpoint gradient_checkpointing_kwargs",
        "LoRA is the default: remove the option. To train the whole model, use {train full}.":
            "use_lora use_peft lora peft",
        "Every step is recorded in metrics.jsonl of the run: remove the option.":
            "logging_steps logging_strategy logging_first_step steps_per_report",
        "The run's directory has all records: remove it. {log_to tensorboard} adds TensorBoard's files.": "logging_dir",
        "Set the interval instead: use {save_every 50} for checkpoints and {eval_every 50} for the held-out loss.":
            "save_strategy eval_strategy evaluation_strategy",
        "Old checkpoints are removed automatically: remove the option.": "save_total_limit save_only_model",
        "This is the default: the best adapter is kept if data are held out. Remove the option.":
            "load_best_model_at_end",
        "Use {resume} with the {out} of the run, which then continues from the last checkpoint.":
            "resume_from_checkpoint",
        "This is the default: only completions and the assistant's messages are trained. Remove the option.":
            "completion_only_loss assistant_only_loss train_on_inputs mask_prompt",
        "This is the default: remove the option.": "do_train",
        "{eval_data} measures the held-out loss during training: remove the option.": "do_eval",
        "Held-out data are measured in batches of the training size: remove the option.": "per_device_eval_batch_size",
        "Training runs on the CPU, or on {device}: remove the option. {threads} sets the number of threads.":
            "device_map no_cuda use_cpu deepspeed fsdp fsdp_config ddp_timeout local_rank "
            "dataloader_pin_memory",
        _NO_SCORES: "flash_attention xformers_attention sdp_attention flash_attn attn_implementation",
        "Logits are never stored as a whole: remove the option.": "use_liger_kernel",
        "report.html of the run has a chart: remove the option.": "plot_loss",
        "The result is a folder on this machine: remove the option, and upload the folder yourself.":
            "hub_model_id push_to_hub",
        "Data are prepared for each run: remove the option.": "overwrite_cache",
        "{threads} sets the number of threads: remove the option.":
            "preprocessing_num_workers dataset_num_proc dataloader_num_workers",
        "The result is always a safetensors file: remove the option.": "save_safetensors",
        "The held-out loss is always measured before training: remove the option.": "eval_on_start",
        "The name of the run is its directory: remove the option.": "run_name",
        "It has no meaning in training: remove the option.": "use_cache",
        "Columns that are not used are ignored: remove the option.": "remove_unused_columns",
        "A run never overwrites another one: use a new {out}, or {resume} to continue.": "overwrite_output_dir",
        "Packing already avoids padding: remove the option.": "group_by_length",
        "Code from a model folder is never run: remove the option.": "trust_remote_code",
        "The model's own tokenizer is always used: remove the option.": "use_fast_tokenizer",
        "The model is the first argument, without a name.": "m model base_model model_name_or_path",
        "Use {from PATH} to continue an adapter, and {out} for the new one.": "adapter_path",
    }.items()
    for word in words.split()
}  # fmt: skip
"""Option of another tool without a counterpart -> what takes its place. {rank 8} becomes `--rank 8`, or `rank=8`."""

_BESIDE = "Embeddings, norms and heads are not trained beside an adapter."
_BEGUN = "A is random and B is zero; there is no other way to begin."
_ALL_USED = "All examples are used. Shorten the file of the data."

LACKING: Mapping[str, str] = {
    "neftune_noise_alpha": "No noise is added to embeddings.",
    **dict.fromkeys(("modules_to_save", "lora_modules_to_save", "additional_target"), _BESIDE),
    "special_tokens": "No token is added, and the model's own special tokens are used.",
    "added_tokens": "No token is added to the vocabulary.",
    **dict.fromkeys(("init_lora_weights", "pissa_init", "loftq_config"), _BEGUN),
    **dict.fromkeys(("max_samples", "max_train_samples"), _ALL_USED),
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
