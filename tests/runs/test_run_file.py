"""run.yaml: every run writes it, and `train --config` repeats the run from it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import featherback as fb
from featherback.cli.app import run as command_line
from featherback.core.decode import encode
from featherback.errors import FeatherbackError
from featherback.methods.memory.plan import Plan
from featherback.runs.changes import with_overrides
from featherback.runs.config import TrainConfig
from featherback.runs.record import DataFiles
from featherback.runs.run_file import RUN_YAML, read, render
from tests.runs.conftest import SEQ_LEN, sequences
from tests.support.records import record_of
from tests.support.systems import NO_FILE
from tests.support.tiny_chat import write_messages, write_tiny_chat

BASE: dict[str, Any] = {
    "model": "/m.gguf",
    "out": "o",
    "learning_rate": 2e-4,
    "rank": 4,
    "alpha": 8,
    "targets": "q,v",
    "rslora": False,
}
PLAN = Plan(tokens=256, keep={"m": 2, "q": 1}, weights="resident", predicted_step_seconds=0.125)
ODD = [
    {"columns": ("prompt=question: #1", 'completion=\U0001f600 "o" \\ \'\t')},
    {"start": "/a folder/no", "lora_dropout": 1e-5, "memory": 96_000_001},
    {"optimizer": "sgd", "weight_decay": 1e-9, "method": "mezo", "epsilon": 1e-3, "memory": 64_000_000},
    {"log_to": "tensorboard", "pause_on": "battery,heat", "nice": 3, "cut": True, "warmup": 0.1},
    {"start": "/bytes \udc80\x7f\x85 \u2028", "seed": 2**63},
]


@pytest.mark.parametrize("options", ODD)
def test_what_is_written_is_read_again(tmp_path: Path, options: dict[str, Any]) -> None:
    config = TrainConfig.of(**BASE, **options)
    text = render(replace(record_of(), configuration=config, plan=PLAN))
    (tmp_path / RUN_YAML).write_text(text, encoding="utf-8")
    file = read(tmp_path / RUN_YAML)
    again = TrainConfig.of(model=file.model, out="o", **file.values)
    assert again == config
    assert file.plan_for(again) == encode(PLAN)
    assert file.plan_for(replace(again, out="elsewhere", save_every=1)) == encode(PLAN)
    assert file.plan_for(replace(again, accumulate=2)) is None
    assert file.plan_for(replace(again, model="/other.gguf")) is None
    assert yaml.safe_load(text)["alpha"] == 8  # readers of YAML 1.1 take it for the same
    assert isinstance(yaml.safe_load(text)["lr"], float)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lr: 1e-3\nleraning_rate: 3", "line 2: training has no option 'leraning_rate'. Did you mean `learning_rate`?"),
        ("xyzzy: 3", "line 1: training has no option 'xyzzy'. `featherback train --help-all` lists all options."),
        ("\n\nrank: eight", "line 3: --rank is 'eight'; it must be a whole number."),
        ("cut: yes", "line 1: --cut is 'yes'; it must be true or false."),
        ("optimizer: adam", "line 1: --optimizer is 'adam'; expected one of:"),
        ("beta1: 2", "line 1: --beta1 is 2; it must be"),
        ("memory: 64XB", "line 1: --memory is '64XB'; write an amount"),
        ("memory: [1]", "line 1: --memory is [1]; it must be a whole number"),
        ("model: 3", "line 1: model is 3; it must be text."),
        ("rank: 8\nlr: 1\nrank: 4", "line 3: rank is already set in line 1; remove one of them."),
        ("lr: 1\nlearning-rate: 1", "line 2: learning-rate is already set in line 1; remove one of them."),
        ("rank: {a: 1}", "line 1: a value must be a number, true, false, text, or a list of texts."),
        ("data: [[a]]", "line 1: a value must be"),
        ("? [a]\n: 1", "line 1: training has no option"),
        ("lr 3", "line 1 is not an option; write lines such as lr: 0.0002."),
        ("rank: 8\n  lr: 3", "line 2 is not YAML: mapping values are not allowed here."),
        ("a: 'b", "is not YAML: found unexpected end of stream."),
        ("a: *b", "line 1 is not YAML: found undefined alias 'b'."),
        ("a: 1\n---\nb: 2", "line 2 is not YAML"),
        ("\x00", "is not YAML: special characters are not allowed."),
        ("alpha: 1e999", "line 1: --alpha is infinite"),
        ("rank: 8\ndata: !!python/object/apply:os.system ['true']", "line 2 is not YAML: could not determine"),
        ("rank: !!int eight", "is not YAML: it cannot be read."),
        ("cut: on", "line 1: --cut is 'on'; it must be true or false."),
        ("seed: 0x10", "line 1: --seed is '0x10'; it must be a whole number."),
        ("seed: 2024-01-01", "line 1: --seed is '2024-01-01'; it must be"),
        ("seed: !!binary aGk=", "line 1: a value must be a number, true, false, text, or a list of texts."),
        ("data: &a [*a]", "line 1 is not YAML: found unconstructable recursive node."),
    ],
)  # fmt: skip
def test_what_cannot_be_meant(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(FeatherbackError) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    assert says in str(caught.value)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("a: " + "[" * 5000)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # packages that other tests import raise it
    try:
        with pytest.raises(FeatherbackError, match="is nested too deeply"):
            read(path)
    finally:
        sys.setrecursionlimit(limit)


def test_aliases_do_not_multiply(tmp_path: Path) -> None:
    """Ten lists of ten aliases each would be ten billion values."""
    path = tmp_path / "mine.yaml"
    bomb = "".join(f", b{at}: &b{at} [{', '.join([f'*b{at - 1}'] * 10)}]" for at in range(1, 10))
    for name, says in (("plan", None), ("data", "a value must be")):
        path.write_text(f"{name}: {{b0: &b0 [x]{bomb}}}\nrank: 010\n")
        if says is None:
            assert read(path).values == {"rank": 10}
        else:
            with pytest.raises(FeatherbackError, match=says):
                read(path)


def test_as_people_write_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("seq-len: 64\nmemory: 64\nlr: 1e-4\nfrom: no\nmap: a=b\ntargets: q,v\nsteps:\neps: 1.e-7\n")
    assert read(path).values == {
        "seq_len": 64,
        "memory": 64_000_000,
        "learning_rate": 1e-4,
        "start": "no",
        "columns": ("a=b",),
        "targets": ("q_proj", "v_proj"),
        "eps": 1e-7,
    }
    path.write_text("# nothing\n")
    assert read(path).values == {}
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(FeatherbackError, match="is not UTF-8 text"):
        read(path)
    with pytest.raises(FeatherbackError, match=NO_FILE):
        read(tmp_path / "absent.yaml")


def test_what_is_named_replaces_what_does_not_go_with_it() -> None:
    values = {"epochs": 3, "rank": 8, "optimizer": "adamw", "beta1": 0.8, "seed": 1}
    assert with_overrides(values, {"steps": 5, "seed": 2}) == {
        "rank": 8, "optimizer": "adamw", "beta1": 0.8, "seed": 2, "steps": 5,
    }  # fmt: skip
    assert with_overrides(values, {"optimizer": "sgd"}) == {"epochs": 3, "rank": 8, "optimizer": "sgd", "seed": 1}
    assert with_overrides({"beta1": 0.8}, {"optimizer": "adamw"}) == {"beta1": 0.8, "optimizer": "adamw"}
    assert with_overrides(values, {"start": "other"}).keys() == {"epochs", "optimizer", "beta1", "seed", "start"}


def test_a_rate_goes_with_the_scale_that_it_was_for() -> None:
    values = {"rank": 8, "learning_rate": 2e-3}
    assert with_overrides(values, {"rank": 16}) == {**values, "rank": 16}
    for named in ({"rslora": True}, {"loraplus_ratio": 16.0}):
        assert with_overrides(values, named) == {"rank": 8, **named}
        assert with_overrides({**values, **named}, named) == {**values, **named}
        assert with_overrides(values, {**named, "learning_rate": 1e-3}) == {**values, **named, "learning_rate": 1e-3}
    assert "learning_rate" not in with_overrides({**values, "rslora": True}, {"rank": 16})


def test_what_is_trained_replaces_what_means_nothing_for_it_and_its_defaults() -> None:
    values = {
        "method": "mezo", "epsilon": 0.01, "directions": 2, "rank": 8, "start": "a",
        "learning_rate": 2e-4, "max_grad_norm": 1.0, "beta1": 0.8,
    }  # fmt: skip
    whole = {"method": "mezo", "directions": 2, "beta1": 0.8, "train": "full"}
    assert with_overrides(values, {"train": "full"}) == whole
    assert TrainConfig.of(model="m", out="o", **whole).method_options["epsilon"] == 1e-3
    back = {**whole, "freeze": ["norm"], "master": "fp32", "epsilon": 1e-3}
    assert with_overrides(back, {"train": "lora"}) == {**whole, "train": "lora"}
    assert with_overrides(values, {"train": "lora"}) == {**values, "train": "lora"}


def test_a_method_with_a_rate_of_its_own_does_not_hand_it_to_another() -> None:
    def kept(train: str, method: str, other: str) -> bool:
        values = {"train": train, "method": method, "learning_rate": 1e-6}
        return "learning_rate" in with_overrides(values, {"method": other})

    assert not kept("full", "mezo", "mesp")
    assert not kept("full", "mesp", "mezo")
    assert kept("full", "mesp", "lcsb")
    assert kept("lora", "mesp", "mezo")  # an adapter's is the optimizer's


@pytest.mark.parametrize(
    ("text", "named", "says"),
    [
        ("rank: 2\nsteps: 3\nepochs: 1", {}, "{path}, line 3: Use --steps or --epochs, not both."),
        ("rank: 2\nlora_dropout: 0.1", {"dora": True}, "{path}, line 2: --lora-dropout does not work with DoRA"),
        ("rank: 2", {"lora_dropout": 0.1, "dora": True}, "--lora-dropout does not work with DoRA"),
        ("eval_share: 0\neval_every: 2", {}, "{path}, line 2: --eval-every needs --eval-data or --eval-share."),
    ],
)  # fmt: skip
def test_what_does_not_go_together(tmp_path: Path, text: str, named: dict[str, Any], says: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(FeatherbackError) as caught:
        read(path).config({"model": "m", "out": "o", **named})
    assert str(caught.value).startswith(says.format(path=path))


def test_options_that_suit_each_other_only_with_what_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("eval_share: 0\neval_every: 2\nepochs: 1")
    config = read(path).config({"model": "m", "out": "o", "eval_data": "held.jsonl", "steps": 4})
    assert (config.eval_every, config.steps, config.epochs) == (2, 4, None)


def test_standard_input_is_no_file(tmp_path: Path) -> None:
    sources = {"train": DataFiles(["-", "/d.jsonl"], []), "eval": DataFiles(["/e.jsonl"], [])}
    config = TrainConfig.of(**BASE, data=("-", "d.jsonl"), eval_data="e.jsonl")
    text = render(replace(record_of(), configuration=config, sources=sources))
    assert "# data: read from standard input" in text
    (tmp_path / RUN_YAML).write_text(text)
    assert read(tmp_path / RUN_YAML).values.get("data") is None
    assert read(tmp_path / RUN_YAML).values["eval_data"] == ("/e.jsonl",)


def test_a_run_is_repeated_to_the_bit_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_chat(tmp_path / "m.gguf")
    write_messages(tmp_path / "d.jsonl")
    (tmp_path / "elsewhere").mkdir()

    def train(*words: object, folder: Path = tmp_path) -> str:
        command = [sys.executable, "-m", "featherback", "train", *map(str, words)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        return done.stderr

    def refused(*words: object) -> str:
        assert command_line(["train", *map(str, words)]) == 2
        return capsys.readouterr().err

    def told(name: str) -> Any:
        return json.loads((tmp_path / name / "run.json").read_text())

    options = ("--steps", 3, "--memory", 96, "--rank", 2, "--optimizer", "adamw8bit", "--warmup", 0.5)
    assert not train("m.gguf", "--data", "d.jsonl", "--out", "first", *options)
    first = tmp_path / "first"
    # The plan holds a time that was measured: another planning would not give the same. The least budgets are measured
    # from the programs of each command, so they are not repeated.
    assert not train("--config", first / RUN_YAML, "--out", tmp_path / "again", folder=tmp_path / "elsewhere")
    again, planned = ({**told(name)["plan"], "least_mb": 0, "fastest_mb": 0} for name in ("again", "first"))
    assert again == planned
    for name in ("adapter_model.safetensors", RUN_YAML):
        assert (tmp_path / "again" / name).read_bytes() == (first / name).read_bytes()
    assert not train("--config", "first/run.yaml", "--out", "other", "--epochs", 0.5, "--lr", 1e-3, "--seq-len", 300)
    other = told("other")["configuration"]
    assert (other["epochs"], other["steps"], other["learning_rate"], other["rank"]) == (0.5, None, 1e-3, 2)
    assert told("other")["plan"]["tokens"] == 300
    monkeypatch.chdir(tmp_path)
    assert "MODEL is missing. Add a model, for example smollm2-135m, or a --config file" in refused(
        "--data", "d.jsonl", "--out", "none"
    )
    assert "--out is missing. Add a new directory, for example --out my-adapter, or a --config" in refused(
        "m.gguf", "--data", "d.jsonl"
    )
    (tmp_path / "mine.yaml").write_text("rank: 4\nlr: fast\n")
    assert refused("m.gguf", "--config", "mine.yaml") == (
        "error: mine.yaml, line 2: --lr is 'fast'; it must be a number.\n"
    )
    (tmp_path / "mine.yaml").write_text((first / RUN_YAML).read_text().replace("adamw8bit", "sgd"))
    line = 1 + (first / RUN_YAML).read_text().splitlines().index("optimizer: adamw8bit")
    assert refused("--config", "mine.yaml", "--out", "none").startswith(
        f"error: mine.yaml, line {line}: --beta1 is not an option of the optimizer sgd. "
        "Its options are: --weight-decay."
    )


def test_data_that_were_no_files_are_said_to_be_none(tiny_path: Path, tmp_path: Path) -> None:
    run = fb.train(tiny_path, sequences(), tmp_path / "run", steps=1, seq_len=SEQ_LEN, progress=False)
    assert "# data: passed from Python, not as a file" in (run.path / RUN_YAML).read_text()
    assert "data" not in read(run.path / RUN_YAML).values
