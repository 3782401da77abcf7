"""Other tools' option names mean exactly the same as ours, and errors about unknown options suggest the right one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import featherback as fb
from featherback.core.decode import decode, encode
from featherback.errors import FeatherbackError
from featherback.runs.by_name import fields_of
from featherback.runs.config import TrainConfig
from featherback.runs.names import aliases, fields_by_name, known
from featherback.runs.other_names import IN_COMMANDS, LACKING, REPLACED, SAME_AS
from featherback.runs.suggestions import nearest
from tests.cli.conftest import Command

SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"lora_r": 4}, {"rank": 4}),
    ({"lora_rank": 4}, {"rank": 4}),
    ({"lora_alpha": 32}, {"alpha": 32}),
    ({"learning_rate": 1e-3}, {"lr": 1e-3}),
    ({"num_epochs": 2}, {"epochs": 2}),
    ({"num_train_epochs": 2.5}, {"epochs": 2.5}),
    ({"max_steps": 70}, {"steps": 70}),
    ({"iters": 70}, {"steps": 70}),
    ({"per_device_train_batch_size": 2}, {"batch_size": 2}),
    ({"gradient_accumulation_steps": 8}, {"accumulate": 8}),
    ({"max_seq_length": 64}, {"seq_len": 64}),
    ({"max_length": 64}, {"seq_len": 64}),
    ({"warmup_steps": 10}, {"warmup": 10}),
    ({"warmup_steps": 0.1}, {"warmup": 0.1}),
    ({"target_modules": "all-linear"}, {"targets": "all"}),
    ({"target_modules": "q_proj,v_proj"}, {"targets": "q,v"}),
    ({"packing": True}, {}),
    ({"packing": True, "per_device_train_batch_size": 4, "max_length": 64}, {"batch_tokens": 256, "seq_len": 64}),
    ({"packing": True, "batch_tokens": 512}, {"batch_tokens": 512}),
    ({"packing": False, "batch_size": 4}, {"batch_size": 4}),
    ({"lora_dropout": 0.1, "weight_decay": 0.01, "max_grad_norm": 0.5, "seed": 3}, {"lora_dropout": 0.1,
      "weight_decay": 0.01, "max_grad_norm": 0.5, "seed": 3}),
]  # fmt: skip
"""(another tool's options, our options)."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """The options that `train` passes on, one entry per command."""
    found: list[dict[str, Any]] = []

    def request(options: dict[str, Any], **others: object) -> None:
        found.append(options)
        raise FeatherbackError("Enough.")

    monkeypatch.setattr("featherback.cli.train.TrainingRequest", request)
    monkeypatch.setattr("featherback.models.hub.locate.locate", lambda name: tmp_path / name)
    monkeypatch.setattr("featherback.cli.swapped.check_not_swapped", lambda *each: None)
    return found


def words(options: dict[str, Any], underscores: bool = False) -> list[str]:
    """The options as words of a command line."""
    found: list[str] = []
    for name, value in options.items():
        flag = f"--{name}" if underscores else f"--{name.replace('_', '-')}"
        is_flag = value is True and name != "packing"
        found += [flag] if is_flag else [flag, str(value).lower() if isinstance(value, bool) else str(value)]
    return found


@pytest.mark.parametrize(("theirs", "ours"), SAME, ids=lambda each: str(each)[:60])
def test_each_name_of_another_tool_gives_the_same_run(
    command: Command, asked: list[dict[str, Any]], tmp_path: Path, theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    common = ("train", "m", "--data", "d.jsonl")
    said = [
        command(*common, *words(theirs), "--output-dir", "o"),
        command(*common, *words(theirs, underscores=True), "--output_dir", "o"),
        command(*common, *words(ours), "--out", "o"),
    ]
    lists = {name: value.split(",") if name.endswith("modules") else value for name, value in theirs.items()}
    file = tmp_path / "theirs.yaml"
    file.write_text("model: m\ndata: d.jsonl\noutput_dir: o\n" + "".join(
        f"{name}: {str(value).lower() if isinstance(value, bool) else value}\n" for name, value in lists.items()
    ))  # fmt: skip
    said.append(command("train", "--config", file))
    assert [each.err for each in said] == 4 * ["error: Enough.\n"]
    assert asked[0] == asked[1] == asked[2] == asked[3]
    given = {"model": "m", "data": "d.jsonl", "out": "o"}
    configs = [TrainConfig.of(**{**given, **fields_of(options, "test")}) for options in (theirs, lists, ours)]
    assert configs[0] == configs[1] == configs[2]
    assert decode(TrainConfig, encode(configs[0]), "run.json") == configs[0]


def test_every_name_of_another_tool_is_in_the_table() -> None:
    tested = {name for theirs, _ in SAME for name in theirs}
    assert set(aliases()) - tested == {"output_dir"}
    assert len(aliases()) == 15
    assert set(SAME_AS.values()) <= set(known())
    tables = (fields_by_name(), REPLACED, LACKING, SAME_AS, IN_COMMANDS)
    words = [word for table in tables for word in table]
    assert len(words) == len(set(words)), "a word leads to two options"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--lora-r", 0), "error: --lora-r (--rank) is 0; it must be at least 1."),
        (("--lora-r", "many"), "error: --lora-r (--rank) is 'many'; it must be a whole number."),
        (("--num_epochs=three",), "error: --num-epochs (--epochs) is 'three'; it must be a number."),
        (("--learning-rate", -1), "error: --learning-rate (--lr) is -1.0; it must be a positive number."),
        (("--warmup-steps", "many"), "--warmup-steps (--warmup) is 'many'; write a number of steps such as 20, or"),
        (("--target-modules", "query"), "'query'"),
        (("--packing", "maybe"), "--packing is 'maybe'; it must be true or false."),
        (("--packing", "--batch-size", 4), "--packing with --batch-size 4 fills each batch with 4 times --seq-len"),
        (("--packing", "false"), "--packing false needs a number of examples: add --batch-size 4."),
        (("--packing", "false", "--batch-tokens", 9), "--packing false contradicts --batch-tokens 9"),
        (("--num-epochs", 1, "--steps", 3), "Use --steps or --epochs, not both."),
        (("--rank", 4, "--lora-r", 4), "error: --rank and --lora-r are the same option. Remove one of them."),
        (("--lr", 1, "--learning-rate", 2), "--lr and --learning-rate are the same option. Remove one of them."),
        (("--lr", -1), "error: --lr is -1.0; it must be a positive number."),
        (("--max-length", 4, "--max-seq-length", 4), " are the same option. Remove one of them."),
    ],
)
def test_errors_name_the_option_that_was_written(
    command: Command, asked: list[dict[str, Any]], given: tuple[object, ...], says: str
) -> None:
    code, out, err = command("train", "m", "--data", "d", "--out", "o", *given)
    assert (code, out, asked) == (2, "", [])
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_file_is_named_as_it_is_written(command: Command, asked: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    for text, says in (
        ("lora_r: 0", "line 1: --lora-r (--rank) is 0; it must be at least 1."),
        ("lora-r: 0", "line 1: --lora-r (--rank) is 0; it must be at least 1."),
        ("lora_r: 4\nrank: 4", "line 2: rank "),
        ("lora_r: 4\ntrain: full", "--rank only works with adapters"),
    ):
        file.write_text(text)
        err = command("train", "m", "--config", file, "--data", "d", "--out", "o").err
        assert says in err, err
    file.write_text("lora_r: 4")
    command("train", "m", "--config", file, "--data", "d", "--out", "o", "--lora-rank", "6")
    assert asked[-1]["rank"] == 6


@pytest.mark.usefixtures("in_python")
def test_in_python(tmp_path: Path) -> None:
    calls: list[tuple[dict[str, Any], str]] = [
        ({"lora_r": 0}, "lora_r (rank) is 0; it must be at least 1."),
        ({"rank": 4, "lora_r": 4}, "rank and lora_r are the same option. Remove one of them."),
        ({"out": "o", "output_dir": "o"}, "out and output_dir are the same option."),
        ({"lora_rr": 4}, "has no option 'lora_rr'. Did you mean `lora_r`? It is the same as `rank`."),
        ({"load_in_4bit": True}, "For a Hugging Face folder, use `quantize=\"q4_0\"`."),
        ({"bf16": True}, 'Use `compute="bf16"`'),
        ({"use_dora": True}, "has no option 'use_dora'. Did you mean `dora`?"),
        ({}, "out is missing"),
    ]  # fmt: skip
    for options, says in calls:
        with pytest.raises(FeatherbackError) as refusal:
            fb.train(tmp_path / "m.gguf", "d.jsonl", **options)  # type: ignore[arg-type]
        assert says in str(refusal.value)
        assert "--" not in str(refusal.value)


UNKNOWN = {
    "--lora-rr": "Did you mean `--lora-r`? It is the same as `--rank`.",
    "--lorar": "Did you mean `--lora-r`?",
    "--loraalpha": "Did you mean `--lora-alpha`? It is the same as `--alpha`.",
    "--learning-rat": "Did you mean `--learning-rate`? It is the same as `--lr`.",
    "--leraning-rate": "Did you mean `--learning-rate`?",
    "--epoch": "Did you mean `--epochs`?",
    "--seqlen": "Did you mean `--seq-len`?",
    "--max-seq-lenght": "Did you mean `--max-seq-length`?",
    "--per-device-train-batchsize": "Did you mean `--per-device-train-batch-size`?",
    "--gradient-acumulation-steps": "Did you mean `--gradient-accumulation-steps`?",
    "--outptu-dir": "Did you mean `--output-dir`?",
    "--warm-up-ratio": "Did you mean `--warmup`?",
    "--reportto": "Did you mean `--log-to`?",
    "--optim": "Did you mean `--optimizer`?",
    "--lr-scheduler-type": "Did you mean `--schedule`?",
    "--use_dora": "Did you mean `--dora`?",
    "--num-layers": "Did you mean `--layers`?",
    "--save-steps": "Did you mean `--save-every`?",
    "--adam-beta1": "Did you mean `--beta1`?",
    "--dataset": "Did you mean `--data`?",
    "--validation-file": "Did you mean `--eval-data`?",
    "--context-length": "Did you mean `--seq-len`?",
    "--dtype": "Did you mean `--compute`?",
    "--eval": "Did you mean `--eval-data`, `--eval-every` or `--eval-share",
    "--load-in-4bit": "For a Hugging Face folder, use `--quantize q4_0`.",
    "--load-in-4bits": "For a Hugging Face folder, use `--quantize q4_0`.",
    "--bf16": "Use `--compute bf16` for matrix products.",
    "--fp16": "Use `--compute bf16` for matrix products. fp16 is not supported.",
    "--gradient-checkpointing": "use `--memory 96MB`.",
    "--lora": "LoRA is the default",
    "--use-lora": "LoRA is the default: remove the option. To train the whole model, use `--train full`.",
    "--logging-steps": "Every step is recorded in metrics.jsonl of the run: remove the option.",
    "--save-strategy": "use `--save-every 50`",
    "--resume-from-checkpoint": "Use `--resume` with the `--out` of the run",
    "--model": "The model is the first argument, without a name.",
    "-m": "The model is the first argument, without a name.",
    "--device-map": "`--threads` sets the number of threads.",
}


@pytest.mark.parametrize(("given", "says"), UNKNOWN.items())
def test_what_was_meant_by_an_unknown_option(command: Command, given: str, says: str) -> None:
    code, out, err = command("train", "m", given, "4")
    assert (code, out) == (2, "")
    assert says in err
    assert err.startswith(f"error: There is no option {given.replace('_', '-')}. ")
    assert "See featherback train --help" in err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("-p", "`--prompt`?"),
        ("-n", "`--max-tokens`?"),
        ("--temp", "`--temperature`?"),
        ("-m", "The model is the first"),
    ],
)
def test_options_of_llama_cpp(command: Command, given: str, says: str) -> None:
    assert says in command("generate", "m", given, "4").err


@pytest.mark.parametrize(
    "given", ["--xyzzy", "--zero", "--tpu", "--lora-x9", "--moon-phase", "--aardvark", "--" + "a" * 10**6]
)
def test_letters_suggest_nothing_that_means_something_else(command: Command, given: str) -> None:
    err = command("train", "m", given, "4").err
    assert "Did you mean" not in err.replace("Did you mean `--lora-r`?", "")
    assert "dora" not in err


def test_lora_is_no_typing_error_of_dora() -> None:
    for name in (*aliases(), *REPLACED, *SAME_AS):
        if "lora" in name and name != "lora":
            assert nearest(name, ["dora"]) is None, name
    assert nearest("lora", [*fields_by_name(), *REPLACED]) == "lora"


def test_what_takes_the_place_of_an_option_exists() -> None:
    known_names = {*fields_by_name(), "resume", "from"}
    for text in REPLACED.values():
        for name in re.findall(r"\{(\w+)", text):
            assert name in known_names, text


def test_help_of_train_fits_a_beginner(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = command("train", "--help").out
    options = re.findall(r"^  (--[\w-]+)", text, re.MULTILINE)
    assert len(options) == 11, "ten, and --help-all"
    lines = text.partition("Data and result:")[2].splitlines()
    for line in lines:
        assert re.match(r"(  (--|MODEL)|[A-Z][\w ]+:$|$)", line), f"more than a line: {line}"
    assert max(map(len, text.splitlines())) <= 80
    assert "--lr NUMBER" in text
    assert "(default: by model size)" in text
    everything = command("train", "--help-all").out
    assert max(map(len, everything.splitlines())) <= 80
    for name in aliases():
        assert f"--{name.replace('_', '-')}" in everything
    assert set(options) - {"--help-all"} <= set(re.findall(r"^  (--[\w-]+)", everything, re.MULTILINE))


@pytest.mark.parametrize("name", ["plan", "generate", "fetch", "export", "inspect"])
def test_help_all_of_every_command(command: Command, name: str) -> None:
    short, everything = command(name, "--help"), command(name, "--help-all")
    assert short.code == everything.code == 0
    assert len(everything.out) >= len(short.out)
    assert (short.out == everything.out) == (name != "plan")
    assert command("--help-all").code == 0
