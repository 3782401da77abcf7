"""Options with absurd values: each is rejected in one sentence, or works."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from featherback.cli.app import read
from featherback.core.options import described, flags
from featherback.runs.config import TrainConfig
from tests.cli.conftest import Command

ABSURD = (10**30, -(10**30), 1e300, "nan", "1e999", "", "\x1b[31m", "9" * 400)
# What would be computed with, if it is accepted: here the model is not there, so that nothing is.
NUMBERS = [name for name, about in described(TrainConfig).items() if about.parse is None and not about.choices]


@pytest.mark.parametrize("name", NUMBERS)
def test_nothing_is_a_bug(command: Command, messages: Path, tmp_path: Path, chat_model: Path, name: str) -> None:
    flag = flags(TrainConfig, name)[0]
    for value in ABSURD:
        options = {"--data": messages, "--out": tmp_path / "run", "--seq-len": 10**6, flag: value}
        arguments = [word for pair in options.items() for word in pair]
        code, _, err = command("train", chat_model, *arguments)
        assert code == 2, (flag, value, err)
        assert len(err.splitlines()) == 1
        assert "\x1b" not in err
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("trian", "m.gguf"), "error: There is no command trian. Did you mean `train`? See featherback --help."),
        (("merge", "a", "b"), "There is no command merge. Did you mean `export RUN --to merged`? See featherback"),
        (("Fine-Tune", "m.gguf"), "There is no command Fine-Tune. Did you mean `train`? See featherback --help."),
        (("xyzzy",), "error: There is no command xyzzy. See featherback --help."),
        (("train", "m", "--seqlen", "9"), "error: There is no option --seqlen. Did you mean `--seq-len`? See feath"),
        (("train", "m", "--lora-rnak", "9"), "error: There is no option --lora-rnak. Did you mean `--lora-rank`"),
        (("train", "m", "--epoch", "9"), "error: There is no option --epoch. Did you mean `--epochs`"),
        (("generate", "m", "--xyzzy"), "error: There is no option --xyzzy. See featherback generate --help-all."),
        (("train", "m", "--out", "o", "--optimizer", "adam"), "apollo_mini, lion, lomo, mlorc, sgd."),
        (("train", "m", "--out", "o", "--optimizer", "adam"), " Did you mean `adamw`?"),
        (("train", "m", "--out", "o", "--schedule", "cos"), "linear, constant. Did you mean `cosine`?"),
        (("train", "m", "--out", "o", "--method", "mez"), "Did you mean `mezo`?"),
        (("train", "m", "--out", "o", "--compute", "bf-16"), "Did you mean `bf16`?"),
        (("train", "m", "--out", "o", "--adapter", "."), "lora, spartan. To start from that path: --from ."),
        (("export", "run", "--to", "olama"), "Did you mean `ollama`?"),
        (("export", "run", "--to", "hf"), "sentence_transformers. Did you mean `merged` or `peft`?"),
        (("export", "run", "--to", "merged", "--type", "q8"), "--type is 'q8'; expected one of: f32, f16, q4_0, "),
        (("generate", "smollm2", "--prompt", "a"), "Did you mean `smollm2-135m`"),
        (("generate", "Qwen/Qwen2-0.5B", "--prompt", "a"), "featherback fetch Qwen/Qwen2-0.5B"),
    ],
)  # fmt: skip
def test_what_was_probably_meant(command: Command, words: tuple[str, ...], says: str) -> None:
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert says in err
    assert err.startswith("error: ")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("generate", "m.gguf", "hello you"), "featherback generate m.gguf --prompt 'hello you'"),
        (("evaluate", "m.gguf", "d.jsonl", "--json"), "featherback evaluate m.gguf --data d.jsonl --json"),
        (("train", "m.gguf", "d.jsonl", "--out", "run"), "featherback train m.gguf --data d.jsonl --out run"),
    ],
)
def test_a_word_too_many_gets_its_option(command: Command, words: tuple[str, ...], meant: str) -> None:
    code, _, err = command(*words)
    assert code == 2
    assert f"Did you mean `{meant}`?" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train", "m", "--data", "--out", "o"), "--data needs a value."),
        (("generate", "m", "--prompt", "-x"), "--prompt needs a value. To give it -x, write --prompt=-x."),
        (("generate", "m", "--raw=3"), "--raw takes no value."),
        (("chat", "m", "--no-lookup=no"), "--no-lookup takes no value."),
        (("generate", "--prompt", "x"), "MODEL is missing. See featherback generate --help."),
        (
            ("export", "r"),
            "--to is missing. Add --to gguf|merged|mlx|ollama|peft|sentence_transformers. "
            "See featherback export --help.",
        ),
        (("evaluate", "m"), "--data is missing. Add --data PATH. See featherback evaluate --help."),
        (("fetch", "a", "b"), "'b' is one word too many. See featherback fetch --help."),
        (("generate", "m", "--max-tokens", "0"), "--max-tokens is 0; it must be at least 1."),
        (("generate", "m", "--max_tokens=x"), "--max-tokens is 'x'; it must be a whole number."),
        (("serve", "m", "--port", "99999"), "--port is 99999; it must be at least 0 and at most 65535."),
        (("generate", "m", "--temperature", "hot"), "--temperature is 'hot'; it must be a number."),
        (("--bogus",), "There is no option --bogus. See featherback --help."),
        (("generate", "m", "--json-mode"), "There is no option --json-mode. See featherback generate --help-all."),
        (("fetch", "--", "-a", "--b_c"), "'--b_c' is one word too many. See featherback fetch --help."),
    ],
)
def test_one_sentence_about_words(command: Command, words: tuple[str, ...], says: str) -> None:
    assert command(*words) == (2, "", f"error: {says}\n")


def test_what_the_words_mean() -> None:
    """Reading a command line runs nothing and leaves nothing behind."""
    before = dict(os.environ)
    function, values = read(
        ["serve", "--adapter", "a", "m", "--adapter=b", "--json-mode", "--no-json-mode", "--top-p", "1"]
    )
    assert function.__name__ == "serve"
    assert (values["model"], values["adapter"], values["json_mode"], values["top_p"]) == ("m", ["a", "b"], False, 1.0)
    assert (values["port"], values["threads"], values["allow_host"]) == (8000, None, None)
    function, values = read(["inspect", "a.csv", "--cut", "b.csv", "--", "-c.csv"])
    assert (values["what"], values["cut"], values["examples"]) == (["a.csv", "b.csv", "-c.csv"], True, 3)
    function, values = read(["train", "m", "--lr", "-1", "--lr=1", "--map", "text=a", "--packing", "--dry_run"])
    assert {name: value for name, value in values.items() if value} == {
        "model": "m", "learning_rate": 1.0, "columns": ("text=a",), "packing": True, "dry_run": True,
    }  # fmt: skip
    assert dict(os.environ) == before


def test_a_run_of_an_adapter_is_no_model(command: Command, tmp_path: Path) -> None:
    run = tmp_path / "my run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"configuration": {"model": "some model.gguf"}}))
    for words in (("generate", run, "--prompt", "a"), ("evaluate", run, "--data", "d.jsonl")):
        code, _, err = command(*words)
        assert code == 2
        assert "is a run that trained an adapter; use it with its model" in err
        assert f"--adapter '{run}'" in err


def test_batches_smaller_than_a_sequence(command: Command, chat_model: Path, messages: Path, tmp_path: Path) -> None:
    words = ("train", chat_model, "--data", messages, "--out", tmp_path / "run", "--dry-run")
    code, _, err = command(*words, "--seq-len", 96, "--batch-tokens", 10)
    assert code == 2
    assert "--batch-tokens is 10, less than --seq-len 96. A batch must hold a whole sequence" in err
    assert "--batch-tokens 10 is less than the longest example" in command(*words, "--batch-tokens", 10).out
    assert "--batch-size 100 is more than the number of examples" in command(*words, "--batch-size", 100).out


def test_a_warm_up_that_takes_the_whole_run(command: Command, chat_model: Path, messages: Path, tmp_path: Path) -> None:
    words = ("train", chat_model, "--data", messages, "--out", tmp_path / "run", "--dry-run", "--lr", "0.01")
    note = "--warmup 20 takes all 10 steps of the run: the learning rate rises to 0.005 and never falls"
    assert note in command(*words, "--warmup", 20, "--steps", 10).out
    assert "--warmup 500 takes all" in command(*words, "--warmup", 500, "--epochs", 2).out
    for fits in (("--warmup", 3, "--steps", 10), ("--warmup", 0.5, "--steps", 10), ("--warmup", 2, "--epochs", 2)):
        assert "takes all" not in command(*words, *fits).out


def test_two_columns_of_any_name_are_mapped_as_they_are_called(
    command: Command, chat_model: Path, tmp_path: Path
) -> None:
    data = tmp_path / "d.csv"
    for columns, meant in (
        ("qq,aa", "--map prompt=qq --map completion=aa"),
        ("qq,aa,bb", "--map prompt=qq --map completion=aa"),
    ):
        data.write_text(f"{columns}\n{','.join('xyz'[: len(columns.split(','))])}\n")
        code, _, err = command("train", chat_model, "--data", data, "--out", tmp_path / "run")
        assert code == 2
        assert meant in err


def test_model_and_data_are_swapped_with_the_directory_kept(
    command: Command, chat_model: Path, messages: Path, tmp_path: Path
) -> None:
    code, _, err = command("train", messages, "--data", chat_model, "--out", tmp_path / "run")
    assert code == 2
    assert f"--data {messages} --out {tmp_path / 'run'}" in err
