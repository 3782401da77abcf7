"""Runs that learn from the model's own answers: they learn, resume to the same bits, and refuse what does not fit."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featherback as fb
from featherback.engine.host.interrupt import Interrupt
from featherback.errors import FeatherbackError
from featherback.infer.rollouts import Desk
from featherback.runs.config import TrainConfig
from featherback.runs.preparation import prepare_run, resume_run
from featherback.runs.rehearsal import rehearsed_baseline
from featherback.runs.run_directory import RunDirectory
from featherback.runs.trainer import train_run
from featherback.view.show import draw
from tests.runs.runs import PATIENCE, worker
from tests.support.tiers import some
from tests.support.tiny_chat import write_tiny_chat

Make = Callable[..., RunDirectory]
ROWS = [{"prompt": f"{i}?", "answer": str(i % 7)} for i in range(60)]
SMALL = {
    "objective": "grpo", "reward": ("regex:Y",), "compute": "fp32", "rank": 4, "steps": 6, "learning_rate": 1e-2,
    "threads": 1, "answer_tokens": 10, "prompts": 3, "answers": 4, "keep_checkpoints": True, "save_every": 2,
    "samples": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_chat(tmp_path_factory.mktemp("model") / "chat.gguf")


@pytest.fixture
def make(model: Path, tmp_path: Path) -> Make:
    def prepared(name: str = "run", **options: Any) -> RunDirectory:
        config = TrainConfig.of(model=str(model), data="records", out=str(tmp_path / name), **{**SMALL, **options})
        return prepare_run(config, ROWS, baseline=rehearsed_baseline)

    return prepared


def trained(run: RunDirectory, **how: Any) -> RunDirectory:
    train_run(run, draw=draw, **how)
    return RunDirectory.open(run.path)


def bits(run: RunDirectory) -> bytes:
    """The adapter, and the arrays of the last checkpoint: parameters and all states of the optimiser."""
    content = max(run.path.glob("checkpoint-*.fbc")).read_bytes()
    state = int.from_bytes(content[-16:-8], "little")  # bytes of what names the run (`runs.checkpoint`)
    return (run.path / "adapter_model.safetensors").read_bytes() + content[: -16 - state]


def letters(answer: str, record: Mapping[str, Any]) -> float:
    """Reward visible letters of the answer."""
    return sum(each.isascii() and each.isalpha() for each in answer) / 10


@pytest.mark.parametrize("objective", some(["grpo", "dapo", "rft"], 1))
def test_the_reward_rises_held_out(model: Path, tmp_path: Path, objective: str) -> None:
    run = fb.train(
        model, ROWS, tmp_path / "run", objective=objective, reward=letters, progress=False, compute="fp32", rank=8,
        steps=25, lr=2e-2, threads=1, answer_tokens=10, prompts=4, answers=8, eval_data=ROWS[:8], samples=0,
    )  # fmt: skip
    held_out = run.summary.held_out
    assert held_out is not None
    assert held_out.kept["reward"] > held_out.first["reward"] + 0.2
    after = fb.evaluate(model, ROWS[:8], adapter=run, reward=letters, answer_tokens=10, compute="fp32")
    assert after.measures["reward"] == pytest.approx(held_out.kept["reward"])
    assert after.counted == "prompts"


def test_metrics_and_records(make: Make) -> None:
    run = trained(make(reward=("0.5*regex:Y", "regex:[a-z]")))
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for line in lines:
        assert line["reward"] == pytest.approx(line["reward_regex"], abs=1)
        assert line["entropy"] > 0
        assert 0 <= line["equal"] <= 1
        assert 1 <= line["answer_length"] <= 10
    first = run.record.evaluations[0]
    assert first.step == 0
    assert first.loss == -first.measures["reward"]
    assert [each.prompt[-22:] for each in first.answers] == ["<|im_start|>assistant\n"] * 3
    report = (run.path / "report.html").read_text()
    assert "Answers to held-out prompts" in report
    assert "Mean reward" in report


@pytest.mark.parametrize("updates", some([1, 3], 1))
def test_a_run_that_is_stopped_while_it_writes_resumes_to_the_same_bits(
    make: Make, model: Path, monkeypatch: pytest.MonkeyPatch, updates: int
) -> None:
    whole = bits(trained(make("whole", updates=updates)))
    run, interrupt, calls = make("parts", updates=updates), Interrupt(), 0
    write = Desk.write

    def stopping(self: Desk, asked: Any, most: int, ends: Any, check: Any) -> Any:
        def counted() -> None:
            nonlocal calls
            calls += 1
            if calls == 60:
                signal.raise_signal(signal.SIGTERM)
            check()

        return write(self, asked, most, ends, counted)

    monkeypatch.setattr(Desk, "write", stopping)
    assert train_run(run, interrupt=interrupt) == "interrupted"
    run = RunDirectory.open(run.path)
    assert 0 < (run.record.summary.steps if run.record.summary else 0) < 6
    again = resume_run({"model": str(model), "out": str(run.path)}, baseline=rehearsed_baseline)
    assert bits(trained(again)) == whole


@pytest.mark.full("seconds; the test above stops at one place")
@pytest.mark.parametrize("number", range(20))
def test_a_killed_run_resumes_to_the_same_bits(make: Make, model: Path, number: int) -> None:
    import random
    import time

    whole, run, chance = bits(trained(make("whole"))), make("killed"), random.Random(number)
    for _ in range(1 + number % 3):
        run.release()
        process = worker(run.path)
        time.sleep(chance.uniform(0.5, 2.5))
        process.kill()
        process.communicate(timeout=PATIENCE)
        if process.returncode == 0:
            break
        run = resume_run({"model": str(model), "out": str(run.path)}, baseline=rehearsed_baseline)
    if RunDirectory.open(run.path).record.status != "finished":
        trained(run)
    assert bits(RunDirectory.open(run.path)) == whole


def test_the_number_of_answers_at_once_does_not_change_the_run(make: Make) -> None:
    """It depends on the budget."""
    from dataclasses import replace

    runs = []
    for slots in (1, 12):
        run = make(f"run{slots}")
        run.update(plan=replace(run.plan, slots=slots))
        runs.append((trained(run).path / "adapter_model.safetensors").read_bytes())
    assert runs[0] == runs[1]


def test_a_step_in_which_nothing_differs_changes_nothing(make: Make) -> None:
    run = trained(make(reward=("regex:never",), steps=2))
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["loss"], line["grad_norm"], line["equal"]) for line in lines] == [(0, 0, 1)] * 2


def test_dynamic_sampling_takes_further_prompts(make: Make) -> None:
    run = make(objective="dapo", sampling_rounds=2, reward=("regex:never",), steps=2)
    trained(run)
    state = RunDirectory.open(run.path)
    assert state.record.status == "finished"
    asked = list[int]()
    write = Desk.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Desk, "write", lambda self, a, *rest: asked.append(len(a)) or write(self, a, *rest))
        trained(make("other", objective="dapo", sampling_rounds=2, reward=("regex:never",), steps=2, eval_share=0))
    assert asked == [12] * 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reward": None}, "needs something that judges answers: add --reward numeric"),
        ({"objective": "next_token", "objective_options": {}}, "only works with an objective on the model's own"),
        ({"accumulate": 2}, "use --prompts 16"),
        ({"train": "full", "rank": None}, "trains an adapter, because the model writes the answers"),
        ({"reward": ("numbers",)}, "unknown reward 'numbers'; .*numeric"),
        ({"reward": ("regex",)}, "regex needs PATTERN after a colon"),
        ({"answers": 1}, "answers is 1; it must be at least 2"),
    ],
)
def test_refusals(make: Make, options: dict[str, Any], said: str) -> None:
    own = {"answer_tokens": 10, "prompts": 3, "answers": 4}
    given = {**SMALL, **options}
    if options.get("objective") == "next_token":
        given = {name: value for name, value in given.items() if name not in own}
    given = {name: value for name, value in given.items() if value is not None or name == "reward"}
    with pytest.raises(FeatherbackError, match=said):
        TrainConfig.of(model="m", data="d", out="o", **given)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "no prompt"}, 'expected "prompt" or "messages"; found .text'),
        ({"messages": "hello"}, '"messages" must be a list'),
        ({"prompt": ""}, '"prompt" is empty'),
        ({"prompt": "a" * 3000}, "longer than"),
    ],
)
def test_bad_records(model: Path, tmp_path: Path, row: dict[str, Any], said: str) -> None:
    config = TrainConfig.of(model=str(model), data="records", out=str(tmp_path / "run"), **SMALL)
    with pytest.raises(FeatherbackError, match=said):
        prepare_run(config, [row, *ROWS], baseline=rehearsed_baseline)
    assert not (tmp_path / "run").exists()


def test_a_function_is_needed_again_to_resume(model: Path, tmp_path: Path) -> None:
    options = {"objective": "grpo", "threads": 1, "answer_tokens": 4, "steps": 1, "samples": 0, "progress": False}
    fb.train(model, ROWS, tmp_path / "run", reward=letters, keep_checkpoints=True, **options)
    with pytest.raises(FeatherbackError, match=r"The reward letters is a function"):
        fb.train(model, out=tmp_path / "run", resume=True, steps=2, progress=False)
    run = fb.train(model, out=tmp_path / "run", resume=True, steps=2, progress=False, reward=letters)
    assert run.summary.steps == 2


def test_rewards_are_judged_by_the_record_of_their_own_prompt(model: Path, tmp_path: Path) -> None:
    seen = list[tuple[str, Any]]()

    def watching(answer: str, record: Mapping[str, Any]) -> float:
        seen.append((record["prompt"], record["answer"]))
        return float(np.random.default_rng(len(seen)).random())

    fb.train(
        model, ROWS, tmp_path / "run", objective="grpo", reward=watching, threads=1, answer_tokens=3, steps=2,
        prompts=2, answers=2, progress=False, samples=0, eval_share=0,
    )  # fmt: skip
    assert len(seen) == 8
    assert seen[0] == seen[1] != seen[2] == seen[3]
    assert set(seen) <= {(row["prompt"], row["answer"]) for row in ROWS}


def test_a_strangers_run_runs_no_program(make: Make, model: Path) -> None:
    """A run directory may come from somebody else; its record alone must not run programs."""
    run = trained(make(reward=("regex:Y",), steps=2))
    record = json.loads((run.path / "run.json").read_text())
    record["configuration"]["reward"] = ["command:/bin/true"]
    (run.path / "run.json").write_text(json.dumps(record))
    named = {"model": str(model), "out": str(run.path), "steps": 4}
    with pytest.raises(FeatherbackError, match=r"may come from somebody else.*--reward command:/bin/true"):
        resume_run(named, baseline=rehearsed_baseline)
