"""`featherback compare`: the same prompts, answered with and without adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import featherback as fb
from featherback.data.general import TEXT
from featherback.errors import FeatherbackError
from featherback.runs.rewards.rouge_l import rouge_l
from tests.cli.conftest import Command
from tests.support.tiny_chat import write_tiny_chat

ROWS = [{"prompt": f"{i}?", "completion": "Y" * (1 + i % 3)} for i in range(24)]
"""What the tiny model learns in a few steps."""


@pytest.fixture
def made(command: Command, tmp_path: Path) -> tuple[Path, Path, Path]:
    """A model, data, and an adapter that was trained on them."""
    model, data, run = write_tiny_chat(tmp_path / "chat.gguf"), tmp_path / "rows.jsonl", tmp_path / "run"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    done = command("train", model, "--data", data, "--out", run, "--steps", 30, "--lr", "0.02", "--threads", 1)
    assert done.code == 0, done.err
    return model, data, run


SHORT = ("--answer-tokens", 4, "--threads", 1, "--compute", "fp32")


def test_an_adapter_is_compared_with_the_model(command: Command, made: Any) -> None:
    model, data, run = made
    found = json.loads(command("compare", model, "--data", data, "--adapter", run, *SHORT, "--json").out)
    base, own = found["candidates"]
    assert (base["name"], own["name"]) == ("chat.gguf", "run")
    assert list(own["metrics"]) == ["exact", "token_f1", "rouge_l"]
    assert len(own["answers"]) == len(found["prompts"]) == 24
    assert found["right"][:3] == ["Y", "YY", "YYY"]
    measured = json.loads(
        command("evaluate", model, "--data", data, "--adapter", run, "--json", "--compute", "fp32").out
    )
    assert own["loss"] == measured["loss"] < base["loss"]
    judged = command("evaluate", model, "--data", data, "--adapter", run, "--reward", "exact", *SHORT, "--json").out
    assert own["metrics"]["exact"] == json.loads(judged)["reward"]
    for each in found["differences"]:
        metric = each["metric"]
        assert each["difference"] == pytest.approx(own["metrics"][metric] - base["metrics"][metric])
        assert each["better"] + each["worse"] + each["equal"] == 24
        assert each["interval"][0] <= each["difference"] <= each["interval"][1]


def test_the_status_says_whether_a_value_is_reached(command: Command, made: Any) -> None:
    model, data, run = made
    asked = ("compare", model, "--data", data, "--adapter", run, *SHORT, "--reward", "regex:.", "--reward", "exact")
    reached = command(*asked, "--at-least", "exact=0")
    assert reached.code == 0, reached.err
    assert "run minus chat.gguf, with intervals of 95 %" in reached.out
    assert "right answer: Y" in reached.out
    missed = command(*asked, "--at-least", "exact=1.5")
    assert missed.code == 3
    assert "run reached exact " in missed.err
    assert "which is less than --at-least exact=1.5." in missed.err


def test_forgetting_is_measured(command: Command, made: Any) -> None:
    model, data, run = made
    found = json.loads(command("compare", model, "--data", data, "--adapter", run, *SHORT, "--json").out)
    base, own = (each["general"] for each in found["candidates"])
    assert len(found["instructions"]) == len(base["answers"]) == 24
    assert base["kept"] == 1.0
    assert own["kept"] == pytest.approx(sum(map(_alike, own["answers"], base["answers"])) / 24)
    for place, wanted in ((), base), (("--adapter", run), own):
        measured = command("evaluate", model, "--data", TEXT, *place, "--json", "--compute", "fp32").out
        assert json.loads(measured)["loss"] == wanted["loss"]
    without = command("compare", model, "--data", data, "--adapter", run, *SHORT, "--no-general")
    assert without.code == 0, without.err
    assert "general" not in without.out
    alone = json.loads(command("compare", model, "--data", data, *SHORT, "--json").out)
    assert alone["candidates"][0]["general"] is None


def _alike(text: str, other: str) -> float:
    return 1.0 if text == other else rouge_l(text, other)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--at-least", "exact"), "write METRIC=VALUE: --at-least token_f1=0.6."),
        (("--at-least", "exact=high"), "write METRIC=VALUE"),
        (("--at-least", "exat=1"), "this is no metric of the comparison; expected one of: exact, token_f1"),
        (("--reward", "exact", "--at-least", "rouge_l=1"), "expected one of: exact."),
        (("--reward", "rouge"), "Did you mean `rouge_l`?"),
    ],
)
def test_refusals(command: Command, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    model, data = write_tiny_chat(tmp_path / "chat.gguf"), tmp_path / "rows.jsonl"
    data.write_text(json.dumps(ROWS[0]))
    refused = command("compare", model, "--data", data, *words)
    assert refused.code == 2
    assert said in refused.err


def test_data_without_right_answers_need_a_reward(command: Command, tmp_path: Path) -> None:
    model, data = write_tiny_chat(tmp_path / "chat.gguf"), tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "a?"}\n{"prompt": "b?"}\n')
    refused = command("compare", model, "--data", data, *SHORT)
    assert refused.code == 2
    assert "no right answer to compare with" in refused.err
    assert "--reward regex:PATTERN" in refused.err
    found = command("compare", model, "--data", data, *SHORT, "--reward", "regex:Y")
    assert "note: the held-out loss was not measured." in found.out


def test_python(made: Any) -> None:
    model, data, run = made

    def short(answer: str, record: Any) -> float:
        return -float(len(answer))

    options: dict[str, Any] = {"adapters": [run], "answer_tokens": 4, "compute": "fp32", "threads": 1}
    found = fb.compare(model, data, reward=["exact", short], **options)
    assert [each.name for each in found.candidates] == ["chat.gguf", "run"]
    assert found.candidates[1].metrics["short"] <= 0
    assert found.candidates[1].loss == fb.evaluate(model, data, adapter=run, compute="fp32", threads=1).loss
    with pytest.raises(FeatherbackError, match=r"run reached exact .* is less than"):
        fb.compare(model, data, reward=["exact", short], at_least=["exact=2"], **options)
