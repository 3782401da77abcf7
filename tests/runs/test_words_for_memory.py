"""--memory least and --memory max: their amounts, and that resumed and repeated runs use the same amounts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import featherback as fb
from featherback.cli.app import run as command
from featherback.core.decode import encode
from featherback.errors import FeatherbackError
from featherback.runs import choose
from featherback.runs.config import TrainConfig
from featherback.runs.preparation import resume_run
from featherback.runs.run_directory import RunDirectory
from featherback.runs.run_file import RUN_YAML, read
from tests.runs.conftest import Start, sequences
from tests.support.tiny_chat import write_messages, write_tiny_chat

MB = 10**6


@pytest.mark.parametrize(("word", "field"), [("least", "least_mb"), ("max", "fastest_mb")])
def test_a_word_is_what_the_plan_says(start: Start, word: str, field: str, tiny_path: Path) -> None:
    run = start(memory=word, steps=2)
    plan = run.plan
    amount = getattr(plan, field)
    assert run.config.memory == amount * MB
    assert (plan.predicted_rss_mb or 0) <= amount
    assert f'memory: "{amount}MB"' in (run.path / RUN_YAML).read_text()

    # The same words again, or the amount, change nothing.
    for named in (word, f"{amount}MB"):
        again = resume_run({**encode(run.config), "steps": 4, "memory": named}, sequences())
        again.release()
        assert again.config.memory == amount * MB
        assert again.plan == plan
    repeated = read(run.path / RUN_YAML)
    assert repeated.config({"model": str(tiny_path), "out": "new"}).memory == amount * MB

    # With more threads the word is asked anew.
    other = resume_run({**encode(run.config), "steps": 4, "memory": word, "threads": 3}, sequences())
    other.release()
    assert other.config.memory == getattr(other.plan, field) * MB


def test_the_least_is_for_the_length_that_the_data_need(tmp_path: Path) -> None:
    model = write_tiny_chat(tmp_path / "tiny.gguf")
    data = write_messages(tmp_path / "data.jsonl")
    long = [{"role": "user", "content": "a" * 300}, {"role": "assistant", "content": "b" * 100}]
    with data.open("a") as file:
        file.write(json.dumps({"messages": long}) + "\n")
    fb.train(model, data, tmp_path / "run", memory="least", steps=1, samples=0, progress=False)
    made = RunDirectory.open(tmp_path / "run")
    config = made.config
    assert config.seq_len is not None
    assert config.seq_len > 400
    assert config.memory == (made.plan.least_mb or 0) * MB


def test_python_and_plan_know_the_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_chat(tmp_path / "tiny.gguf")
    usual = fb.plan(model)
    least, most = fb.plan(model, memory="least"), fb.plan(model, memory=" MAX ")
    assert least.predicted_step_seconds is not None
    assert (least.least_mb, most.fastest_mb) == (usual.least_mb, usual.fastest_mb)
    assert (least.predicted_rss_mb or 0) <= (least.least_mb or 0) <= (most.predicted_rss_mb or 0) + 2
    for word in ("least", "max"):
        assert command(["plan", str(model), "--memory", word, "--threads", "1"]) == 0
        assert f"with --memory {word} for each method" in capsys.readouterr().out
    with pytest.raises(FeatherbackError, match=r"memory is 'most'; write an amount .*, or least or max"):
        fb.plan(model, memory="most")


def test_a_plan_is_for_the_machines_memory_unless_less_is_free(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from featherback import models
    from featherback.cli.preamble import describe_choice
    from featherback.engine.host.machine import Baseline

    model = models.load(tiny_path)
    config = TrainConfig.of(model=str(tiny_path), out="run", compute="bf16").for_model(model)

    def planned(free: int) -> fb.Plan:
        monkeypatch.setattr(choose, "memory_limit", lambda: free)
        monkeypatch.setattr("featherback.engine.host.machine.memory_total", lambda: 1000 * MB)
        return choose.plan_for(config, model, lambda: Baseline(15 * MB, 30 * MB))

    def decided(plan: fb.Plan) -> tuple[object, ...]:
        return plan.chunk, plan.mlp_tile, plan.vocab_tile, plan.keep, plan.weights, plan.predicted_rss_mb

    plenty = planned(900 * MB)
    assert plenty.free_mb is None
    assert decided(planned(100 * MB)) == decided(plenty)
    needed = int((plenty.predicted_rss_mb or 0) * MB)
    short = planned(2 * needed - MB)  # no budget is named: half of what is free is left
    assert short.free_mb == (2 * needed - MB) // MB
    said = " ".join(describe_choice(short, named=False))
    assert f"only {short.free_mb} MB are free" in said
    assert "are free" not in " ".join(describe_choice(plenty, named=False))
    with pytest.raises(FeatherbackError, match="only 20MB are free"):
        planned(20 * MB)
