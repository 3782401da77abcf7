"""`featherback plan` predicts every method and runs nothing."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from featherback.cli.app import run
from featherback.cli.preamble import describe_work
from featherback.engine.host.machine import Baseline, Machine
from featherback.methods.memory.plan import Plan
from featherback.models.architecture.config import QWEN2_5
from tests.support.tiny_models import TINY_PHI3, TINY_QWEN2, write_tiny


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny.gguf", TINY_QWEN2)


@pytest.fixture
def small_yardstick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use only the smallest model of the family, in tests that do not ask for the largest model that fits."""
    smallest = dict(list(QWEN2_5.items())[:1])
    monkeypatch.setattr("featherback.runs.outlook.QWEN2_5", smallest)


@pytest.mark.usefixtures("small_yardstick")
def test_every_method_is_predicted(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(model), "--json", "--seq-len", "64", "--threads", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    methods = {row["method"]: row for row in found["methods"]}
    assert set(methods) == {"lcsb", "mesp", "mebp", "mezo", "sparse_mezo"}
    for row in methods.values():
        assert row["plan"]["predicted_rss_mb"] >= row["least_rss_mb"] > 10
        assert row["least_memory_mb"] > row["least_rss_mb"]
    assert methods["lcsb"]["least_rss_mb"] <= methods["mesp"]["least_rss_mb"]
    assert methods["mezo"]["least_rss_mb"] <= methods["mesp"]["least_rss_mb"] <= methods["mebp"]["least_rss_mb"]


@pytest.mark.usefixtures("small_yardstick")
@pytest.mark.parametrize(
    ("words", "said", "tokens"),
    [
        ("--batch-size 3", "3 examples, up to 96 tokens per batch", 96),
        ("--batch-tokens 80", "80 tokens per batch", 80),
        ("", "32 tokens per batch", 32),
    ],
)
def test_a_batch_is_of_examples_or_of_tokens(
    model: Path, capsys: pytest.CaptureFixture[str], words: str, said: str, tokens: int
) -> None:
    command = ["plan", str(model), "--seq-len", "32", "--compute", "fp32", *words.split()]
    assert run(command) == 0
    assert f", {said}, rank 8" in capsys.readouterr().out
    assert run([*command, "--json"]) == 0
    assert {row["plan"]["tokens"] for row in json.loads(capsys.readouterr().out)["methods"]} == {tokens}


@pytest.mark.usefixtures("small_yardstick")
def test_an_option_of_a_method_changes_its_row_alone(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "measure", lambda *_: Machine(1e9, 1e9, 1e9))  # so that seconds can be compared
    monkeypatch.setattr("featherback.runs.worker_process.worker_baseline", lambda: Baseline(10**7, 2 * 10**7))
    seconds = {}
    for directions in (1, 3):
        options = ["--json", "--threads", "1", "--directions", str(directions)]
        assert run(["plan", str(model), *options]) == 0
        rows = json.loads(capsys.readouterr().out)["methods"]
        seconds[directions] = {row["method"]: row["plan"]["predicted_step_seconds"] for row in rows}
    for method in ("mezo", "sparse_mezo"):
        assert seconds[3].pop(method) > 2.5 * seconds[1].pop(method)
    assert seconds[3] == seconds[1]


def test_larger_memories_train_larger_models(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(model), "--json", "--threads", "1"]) == 0
    sizes = [None, *QWEN2_5]
    ranks = [
        {method: sizes.index(size) for method, size in row.items()}
        for _, row in json.loads(capsys.readouterr().out)["largest"]
    ]
    for smaller, larger in pairwise(ranks):
        assert all(smaller[method] <= larger[method] for method in smaller)
    assert all(row["mebp"] <= row["mesp"] <= row["mezo"] for row in ranks)
    assert ranks[-1]["mesp"] > ranks[0]["mesp"]


@pytest.mark.usefixtures("small_yardstick")
def test_the_least_memory_printed_is_accepted(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["plan", str(model), "--seq-len", "64", "--threads", "1"]
    assert run([*options, "--memory", "5MB"]) == 0
    least = dict(re.findall(r"^(\w+) +(\d+) MB  does not fit$", capsys.readouterr().out, re.MULTILINE))
    assert set(least) == {"lcsb", "mesp", "mebp", "mezo", "sparse_mezo"}
    for method, megabytes in least.items():
        assert run([*options, "--memory", f"{megabytes}MB", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["methods"]
        assert next(row for row in rows if row["method"] == method)["plan"]


@pytest.mark.usefixtures("small_yardstick")
def test_a_budget_that_is_too_small_is_said(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(model), "--memory", "5MB", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count("does not fit") == 5
    assert not list(model.parent.glob("*/"))  # nothing was made


@pytest.mark.parametrize(
    "option",
    [["--memory", "lots"], ["--rank", "0"], ["--seq-len", "100000"], ["--threads", "0"], ["--directions", "0"]],
)
def test_bad_options(model: Path, option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(model), *option]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_what_is_not_kept_exactly_is_said() -> None:
    plan = Plan(tokens=8, keep={"m": 2, "gate": 2, "up": 1}, encodings={"gate": "blocks8", "up": "blocks8"})
    assert describe_work(plan) == ["kept for the backward pass: m, gate in 8bit of 2 blocks; up in 8bit of 1 block"]


def test_targets_that_the_yardstick_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    phi3 = write_tiny(tmp_path / "phi3.gguf", TINY_PHI3)
    assert run(["plan", str(phi3), "--json", "--threads", "1", "--targets", "qkv", "--memory", "200MB"]) == 0
    assert json.loads(capsys.readouterr().out)["largest"]
