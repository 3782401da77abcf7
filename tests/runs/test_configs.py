"""Configurations of other tools: each key is translated, or listed with the reason why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from featherback.errors import FeatherbackError
from featherback.runs.configs import TOOLS, convert, tool_of
from featherback.runs.run_file import read, render_options
from tests.cli.conftest import Command, command  # noqa: F401

AXOLOTL = """
base_model: NousResearch/Llama-3.2-1B
model_type: AutoModelForCausalLM
load_in_8bit: true
datasets:
  - path: ./train.jsonl
    type: chat_template
dataset_prepared_path: last_run
val_set_size: 0.05
output_dir: ./outputs/lora
adapter: lora
sequence_len: 4096
sample_packing: true
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_modules: [q_proj, v_proj]
gradient_accumulation_steps: 2
micro_batch_size: 2
num_epochs: 1
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
learning_rate: 2e-4
train_on_inputs: false
bf16: auto
neftune_noise_alpha: 5
flash_attention: true
warmup_ratio: 0.1
evals_per_epoch: 4
weight_decay: 0.0
adam_beta2: 0.95
special_tokens:
  pad_token: "<|end_of_text|>"
wandb_project:
made_up: 3
"""
LLAMA_FACTORY = """
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 16
lora_target: all
dataset: identity,alpaca_en_demo
template: llama3
cutoff_len: 2048
max_samples: 1000
preprocessing_num_workers: 16
output_dir: saves/llama3
save_steps: 500
plot_loss: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
val_size: 0.1
eval_steps: 500
report_to: none
"""
MLX = """
model: mlx_model
train: true
fine_tune_type: lora
optimizer: adamw
data: ./data
seed: 0
num_layers: 16
batch_size: 4
iters: 1000
val_batches: 25
learning_rate: 1e-5
steps_per_report: 10
steps_per_eval: 200
adapter_path: adapters
save_every: 100
max_seq_length: 2048
grad_checkpoint: false
mask_prompt: true
lora_parameters:
  keys: ["self_attn.q_proj", "self_attn.v_proj"]
  rank: 8
  scale: 20.0
  dropout: 0.0
lr_schedule:
  name: cosine_decay
  warmup: 100
  warmup_init: 1e-7
  arguments: [1e-5, 1000, 1e-7]
"""
TRL = """
model_name_or_path: Qwen/Qwen2.5-0.5B
dataset_name: trl-lib/Capybara
use_peft: true
lora_r: 32
lora_alpha: 16
lora_target_modules: all-linear
learning_rate: 2.0e-4
num_train_epochs: 1
packing: true
per_device_train_batch_size: 2
max_length: 1024
gradient_checkpointing: true
eval_strategy: steps
eval_steps: 100
output_dir: Qwen2-0.5B-SFT
assistant_only_loss: true
label_smoothing_factor: 0.1
"""
UNSLOTH = """
from unsloth import FastLanguageModel
import torch, os
os.system("touch ran")
max_seq_length = 2048
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "unsloth/Llama-3.2-1B-Instruct", max_seq_length = max_seq_length, dtype = None, load_in_4bit = True)
model = FastLanguageModel.get_peft_model(model, r = 16, target_modules = ["q_proj", "k_proj"], lora_alpha = 16,
    lora_dropout = 0, bias = "none",
    use_gradient_checkpointing = "unsloth", random_state = 3407, use_rslora = False)
dataset = load_dataset("json", data_files = "chats.jsonl", split = "train")
trainer = SFTTrainer(model = model, tokenizer = tokenizer, train_dataset = dataset, dataset_text_field = "text",
    args = SFTConfig(per_device_train_batch_size = 2, gradient_accumulation_steps = 4, warmup_steps = 5, max_steps = 60,
        learning_rate = 2e-4, bf16 = torch.cuda.is_bf16_supported(), optim = "adamw_8bit", weight_decay = 0.01,
        lr_scheduler_type = "linear", seed = 3407, output_dir = "outputs", report_to = "none",
        num_train_epochs = epochs()))
"""
EXPECTED: dict[str, tuple[str, str, dict[str, Any], set[str]]] = {
    "axolotl": ("a.yml", AXOLOTL, {
        "model": "NousResearch/Llama-3.2-1B", "data": "./train.jsonl", "eval_share": 0.05,
        "out": "./outputs/lora",
        "seq_len": 4096, "packing": True, "rank": 16, "alpha": 32, "lora_dropout": 0.05,
        "targets": ["q_proj", "v_proj"],
        "accumulate": 2, "batch_size": 2, "epochs": 1, "optimizer": "adamw8bit", "schedule": "cosine", "lr": 2e-4,
        "warmup": 0.1, "weight_decay": 0.0, "beta2": 0.95}, {"neftune_noise_alpha", "made_up"}),
    "llama_factory": ("l.yaml", LLAMA_FACTORY, {
        "model": "meta-llama/Meta-Llama-3-8B-Instruct", "rank": 16, "alpha": 32, "targets": "all", "seq_len": 2048,
        "cut": True, "out": "saves/llama3", "save_every": 500, "batch_size": 1, "accumulate": 8, "lr": 1e-4,
        "epochs": 3.0, "schedule": "cosine", "warmup": 0.1, "eval_share": 0.1, "eval_every": 500, "log_to": "none"},
        {"dataset", "max_samples"}),
    "mlx_lm": ("lora_config.yaml", MLX, {
        "model": "mlx_model", "data": "data/train.jsonl", "eval_data": "data/valid.jsonl",
        "seed": 0,
        "layers": "last:16", "batch_size": 4, "steps": 1000, "eval_every": 200, "out": "adapters", "save_every": 100,
        "seq_len": 2048, "cut": True, "targets": ["q_proj", "v_proj"], "rank": 8, "alpha": 160.0, "lora_dropout": 0.0,
        "schedule": "cosine", "warmup": 100, "lr": 1e-5, "optimizer": "adamw"}, {"lr_schedule.arguments"}),
    "trl": ("t.yaml", TRL, {
        "model": "Qwen/Qwen2.5-0.5B", "rank": 32, "alpha": 16, "targets": "all", "lr": 2e-4, "epochs": 1,
        "packing": True, "batch_size": 2, "seq_len": 1024, "cut": True, "eval_every": 100, "out": "Qwen2-0.5B-SFT",
        "objective": "smoothed", "label_smoothing": 0.1}, {"dataset_name"}),
    "unsloth": ("u.py", UNSLOTH, {
        "model": "unsloth/Llama-3.2-1B-Instruct", "seq_len": 2048, "cut": True, "rank": 16,
        "targets": ["q_proj", "k_proj"],
        "alpha": 16, "lora_dropout": 0.0, "rslora": False, "data": "chats.jsonl", "batch_size": 2, "accumulate": 4,
        "warmup": 5, "steps": 60, "lr": 2e-4, "optimizer": "adamw8bit", "weight_decay": 0.01, "schedule": "linear",
        "seed": 3407, "out": "outputs", "log_to": "none"}, {"num_train_epochs", "train_on_responses_only (not set)"}),
}  # fmt: skip


def _lists(values: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def test_every_tool_is_tested() -> None:
    assert set(EXPECTED) == set(TOOLS.names)


@pytest.mark.parametrize("name", EXPECTED)
def test_what_becomes_of_each_key(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file, text, values, lacking = EXPECTED[name]
    Path(file).write_text(text)
    found = convert(Path(file))
    assert found.title == tool_of(file) == TOOLS[name].title
    assert _lists(found.values) == values
    assert found.lacking.keys() == lacking
    assert not found.translated.keys() & (found.lacking.keys() | found.unneeded.keys())
    Path("run.yaml").write_text(render_options(found.values, "made"))
    back = read("run.yaml")
    assert back.model == values["model"]
    assert back.config({"model": "m", "data": "d", "out": "o"}).seq_len == values["seq_len"]
    assert not Path("ran").exists(), "the program was run"


@pytest.mark.parametrize("name", EXPECTED)
def test_train_points_to_the_command(command: Command, tmp_path: Path, name: str) -> None:  # noqa: F811
    file = tmp_path / EXPECTED[name][0]
    file.write_text(EXPECTED[name][1])
    for words in (["train", file], ["train", "m", "--config", file, "--data", "d", "--out", "o"]):
        code, _, err = command(*words)
        assert code == 2
        assert f"{file} is a configuration of {TOOLS[name].title}" in err
        assert f"featherback convert-config {file}" in err


def test_the_command_lists_everything_at_once(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("a.yml").write_text(AXOLOTL)
    code, out, err = command("convert-config", "a.yml")
    assert (code, err) == (0, "")
    translated, rest = out.split("\nNot needed:\n")
    unneeded, loud = rest.split("\nNOT TRANSLATED: these change what is learned:\n")
    assert "micro_batch_size" in translated
    assert "bf16" in unneeded
    assert "neftune_noise_alpha" in loud
    assert "No noise is added to embeddings." in loud
    assert out.rstrip().endswith("next: featherback train --config run.yaml")
    for key in (line.split(":")[0] for line in AXOLOTL.splitlines() if line[:1].isalpha()):
        assert key in out, key
    code, _, err = command("convert-config", "a.yml")
    assert code == 2
    assert "run.yaml already exists" in err
    assert command("convert-config", "a.yml", "--force").code == 0
    assert (
        command("convert-config", "a.yml", "--out", "-").err
        == "error: --out is '-'; it must be a file, such as run.yaml.\n"
    )
    Path("a.yml").write_text(AXOLOTL.replace("sequence_len: 4096", "sequence_len: 1"))
    code, out, err = command("convert-config", "a.yml", "--force")
    assert (code, "next:" in out) == (2, False)
    assert "run.yaml, line" in err


@pytest.mark.parametrize(
    ("more", "values"),
    [
        ("", {"train": "full"}),
        ("adapter: lora\nrl: dpo\ndpo_beta: 0.2", {"objective": "dpo", "beta": 0.2}),
        ("adapter: lora\nlora_target_linear: true", {"targets": "all"}),
        ("adapter: lora\nlr_scheduler: constant_with_warmup", {"schedule": "constant"}),
        ("adapter: lora\nwandb_project: mine", {"log_to": "wandb"}),
        ("adapter: lora\nearly_stopping_patience: 3", {"patience": 3}),
    ],
)
def test_single_keys_of_axolotl(tmp_path: Path, more: str, values: dict[str, Any]) -> None:
    file = tmp_path / "a.yml"
    file.write_text(f"base_model: m\nsequence_len: 64\n{more}\n")
    assert _lists(convert(file).values) == {"model": "m", "seq_len": 64, **values}


def test_options_without_effect_are_removed(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("model: m\nfine_tune_type: full\niters: 9\nbatch_size: 2\nmask_prompt: true\n")
    found = convert(file)
    assert found.values["train"] == "full"
    assert not {"rank", "alpha", "layers", "targets"} & found.values.keys()
    (tmp_path / "u.py").write_text("a = SFTConfig(max_steps=9, num_train_epochs=3, learning_rate=1e-4, packing=False)")
    found = convert(tmp_path / "u.py")
    assert found.values == {"steps": 9, "lr": 1e-4, "packing": False, "batch_size": 8}
    assert found.unneeded == {"num_train_epochs": "steps replaces it", "trainer": "SFT is the default"}


@pytest.mark.parametrize(
    ("calls", "objective"),
    [
        ("SFTTrainer(args=SFTConfig(max_steps=9))", None),
        ("DPOTrainer(args=DPOConfig(max_steps=9))", "dpo"),
        ("DPOTrainer(args=DPOConfig(max_steps=9, beta=0.2, loss_type='ipo'))", "ipo"),
        ("ORPOTrainer(args=ORPOConfig(max_steps=9, beta=0.2))", "orpo"),
        ("KTOTrainer(args=KTOConfig(max_steps=9, beta=0.2))", "kto"),
        ("RewardTrainer(args=RewardConfig(max_steps=9))", "reward"),
        ("CPOTrainer(args=CPOConfig(max_steps=9, loss_type='simpo'))", "simpo"),
    ],
)
def test_the_trainer_of_a_program_is_the_objective(tmp_path: Path, calls: str, objective: str | None) -> None:
    file = tmp_path / "u.py"
    file.write_text(f"FastLanguageModel.from_pretrained(model_name='m', max_seq_length=64)\nt = {calls}\n")
    found = convert(file)
    assert found.values.get("objective") == objective
    assert ("train_on_responses_only (not set)" in found.lacking) == (objective is None)


def test_other_trainers_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "u.py"
    file.write_text("FastLanguageModel.from_pretrained(model_name='m', max_seq_length=64)\nGRPOTrainer(max_steps=2)\n")
    assert "GRPO" in convert(file).lacking["trainer"]


def test_prompts_that_are_trained_elsewhere_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "u.py"
    listed = "train_on_responses_only (not set)"
    for more, says in (
        ("", True),
        ("train_on_responses_only(t, instruction_part='u', response_part='a')", False),
        ("SFTConfig(assistant_only_loss=True)", False),
    ):
        file.write_text(UNSLOTH + more)
        assert (listed in convert(file).lacking) == says, more
    pairs = TRL.replace("assistant_only_loss: true", "beta: 0.1").replace("label_smoothing_factor: 0.1", "")
    (tmp_path / "t.yaml").write_text(pairs)
    found = convert(tmp_path / "t.yaml")
    assert found.translated["beta"] == {"objective": "dpo", "beta": "0.1"}
    assert found.lacking.keys() == {"dataset_name"}


def test_data_sets_by_a_loader_and_its_files(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    text = TRL.replace("dataset_name: trl-lib/Capybara", "datasets: [{path: json, data_files: pairs.jsonl}]")
    file.write_text(text)
    assert convert(file).values["data"] == "pairs.jsonl"
    file.write_text(text.replace(", data_files: pairs.jsonl", ""))
    assert "datasets" in convert(file).lacking


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("axolotl", "peft_use_dora: true"),
        ("trl", "use_dora: true\nlora_dropout: 0.1"),
        ("llama_factory", "use_dora: true\nlora_dropout: 0.1"),
        ("mlx_lm", "fine_tune_type: dora"),
    ],
)
def test_dora_with_dropout_gives_a_file_that_trains(tmp_path: Path, name: str, line: str) -> None:
    file = tmp_path / EXPECTED[name][0]
    text = EXPECTED[name][1].replace("fine_tune_type: lora", "").replace("dropout: 0.0", "dropout: 0.1")
    file.write_text(f"{text}{line}\n")
    found = convert(file)
    assert found.values["dora"] is True
    assert any("DoRA has no dropout" in reason for reason in found.lacking.values())
    (tmp_path / "run.yaml").write_text(render_options(found.values, "made"))
    assert read(str(tmp_path / "run.yaml")).config({"model": "m", "data": "d", "out": "o"}).lora_dropout == 0


def test_data_sets_that_llama_factory_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    listed = {
        "identity": {"file_name": "identity.json"},
        "alpaca_en_demo": {"file_name": "demo.json", "columns": {"prompt": "instruction", "response": "output"}},
        "odd": {"file_name": "odd.json", "columns": {"prompt": "frage"}, "num_samples": 5},
        "hub": {"hf_hub_url": "a/b"},
    }
    Path("data").mkdir()
    Path("data/dataset_info.json").write_text(json.dumps(listed))

    def of(value: str) -> tuple[Any, set[str]]:
        Path("l.yaml").write_text(LLAMA_FACTORY.replace("identity,alpaca_en_demo", value))
        found = convert(Path("l.yaml"))
        return _lists(found.values).get("data"), set(found.lacking) - {"max_samples"}

    assert of("identity") == ("data/identity.json", set())
    assert of("identity, alpaca_en_demo") == (["data/identity.json", "data/demo.json"], set())
    assert of("odd") == ("data/odd.json", {"dataset (num_samples, columns.prompt=frage)"})
    assert of("hub") == of("unknown") == of("identity,hub") == (None, {"dataset"})
    Path("data/dataset_info.json").write_text("[]")
    assert of("identity") == (None, {"dataset"})


def test_usual_columns_of_axolotl_are_not_listed(tmp_path: Path) -> None:
    file = tmp_path / "a.yml"
    usual = "{path: a.jsonl, field_messages: messages, roles_to_train: [assistant], train_on_eos: turn}"
    for entry, lacking in ((usual, set()), (usual.replace(": messages", ": talk"), {"datasets (field_messages)"})):
        file.write_text(f"base_model: m\nsequence_len: 64\nadapter: lora\ndatasets: [{entry}]\n")
        assert convert(file).lacking.keys() == lacking


@pytest.mark.parametrize(
    "line",
    ["train_on_inputs: true", "val_set_size: 100", "optimizer: muon", "lr_scheduler: rex", "learning_rate: auto",
     "special_tokens: {eos_token: x}", "tokens: [a]", "adapter: llama-adapter", "rl: grpo", "datasets: [{path: a/b}]",
     "lora_modules_to_save: [embed_tokens]", "relora_steps: 100", "label_smoothing: maybe", "lora_r: many"],
)  # fmt: skip
def test_what_changes_learning_is_never_dropped_silently(tmp_path: Path, line: str) -> None:
    file = tmp_path / "a.yml"
    file.write_text(f"base_model: m\nsequence_len: 64\n{line}\n")
    found = convert(file)
    assert any(key.startswith(line.split(":")[0]) for key in found.lacking), found


def test_a_notebook_is_read_like_a_program(tmp_path: Path) -> None:
    file = tmp_path / "u.ipynb"
    cells = [
        {"cell_type": "markdown", "source": ["# Not (code"]},
        {"cell_type": "code", "source": ["%%capture\n", "!pip install (unsloth"]},
        {"cell_type": "code", "source": ["if True:\n", "    !pip install x\n", UNSLOTH]},
    ]
    file.write_text(json.dumps({"cells": cells}))
    (tmp_path / "u.py").write_text(UNSLOTH)
    assert convert(file) == convert(tmp_path / "u.py")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.yaml", "lr: 1e-4\nrank: 8\n", "not a configuration of a known tool; expected one of: Axolotl"),
        ("a.yaml", "- a\n", "has no options"),
        ("a.jsonl", '{"a": 1}\n{"a": 2}\n', "not a configuration of a known tool"),
        ("a.yaml", "a: [", r"a.yaml, line \d+, cannot be read"),
        ("a.json", "{", "cannot be read"),
        ("a.py", "def (", "is not a Python program"),
        ("a.ipynb", "{}", "is not a Python program"),
        ("a.py", "print(1)", "not a configuration"),
        ("a.yaml", "x: !!python/object/apply:os.system ['touch ran']", "cannot be read"),
    ],
)
def test_files_of_something_else(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FeatherbackError, match=says):
        convert(tmp_path / name)
    assert tool_of(tmp_path / name) is None
