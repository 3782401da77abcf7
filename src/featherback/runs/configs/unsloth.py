"""Notebooks and programs with Unsloth, or with TRL and PEFT: the arguments of the calls in them."""

from __future__ import annotations

from featherback.runs.configs.base import Tool, as_option, chosen, data, lacking, unneeded
from featherback.runs.configs.trl import OWN, prompts

_INERT = ("tokenizer", "processing_class", "model", "peft_config", "args", "token", "train_dataset", "data_collator",
          "callbacks", "compute_metrics", "random_state", "max_lora_rank", "fast_inference", "gpu_memory_utilization",
          "instruction_part", "response_part", "full_finetuning")  # fmt: skip

TOOL = Tool(
    "Unsloth (or TRL in Python)",
    frozenset({"model_name", "r", "lora_alpha", "max_seq_length", "load_in_4bit", "per_device_train_batch_size",
               "learning_rate", "max_steps", "num_train_epochs", "target_modules", "lora_dropout"}),
    {
        **OWN,
        **dict.fromkeys(_INERT, unneeded("it does not change what is learned")),
        "trainer": chosen(
            {"SFT": {}, **{name: {"objective": name.lower()} for name in ("DPO", "ORPO", "KTO", "Reward")}},
            "no such objective",
        ),
        "model_name": as_option("model"),
        "full_finetuning": chosen({True: {"train": "full"}, False: {}}, "it must be True or False"),
        "random_state": unneeded("seed is the seed of everything"),
        "r": as_option("rank"),
        "bias": lacking("Biases are not trained.", usual=("none",)),
        "load_dataset": data,
        "finetune_vision_layers": lacking("Only the language model is trained."),
    },
    unset={"response_part": prompts("train_on_responses_only")},
    is_program=True,
)  # fmt: skip
