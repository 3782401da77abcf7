"""--memory limits the whole command: all processes together, with shared memory counted once."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from benchmarks import watch
from featherback.engine.formats.types import TensorType
from featherback.worker import ENDED
from tests.support import tiers
from tests.support.budget import least_mb, named_mb
from tests.support.tiny_chat import byte_level_metadata
from tests.support.tiny_models import TINY_WIDE, tiny, write_tiny

MB = 10**6
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what processes share")


LENGTH = 96


def _train(model: Path, data: Path, out: Path, *others: object) -> list[str]:
    words = ("train", model, "--data", data, "--out", out, *others)
    return [sys.executable, "-m", "featherback", *map(str, words)]


def _steps(model: Path, data: Path, out: Path, memory: str, *others: object) -> list[str]:
    return _train(model, data, out, "--memory", memory, "--steps", 2, "--seq-len", LENGTH, *others)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with 40,000 tokens: its head, the tokenizer's tables and its five layers each take megabytes."""
    metadata = byte_level_metadata()
    plain = [token for token in metadata["tokenizer.ggml.tokens"] if len(token) == 1]  # type: ignore[union-attr]
    pairs = [(a, b) for a in plain for b in plain]
    triples = [(a + b, c) for a, b in pairs[:400] for c in plain][: 40_000 - len(pairs)]
    merged = pairs + triples
    metadata["tokenizer.ggml.tokens"] += [a + b for a, b in merged]  # type: ignore[operator]
    metadata["tokenizer.ggml.merges"] = [f"{a} {b}" for a, b in merged]
    types = metadata["tokenizer.ggml.token_type"]
    metadata["tokenizer.ggml.token_type"] = np.concatenate([types, np.ones(len(merged), np.int32)])
    config = tiny(
        TINY_WIDE,
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),  # type: ignore[arg-type]
        intermediate_size=2560,
        num_hidden_layers=5,
    )
    path = tmp_path_factory.mktemp("model") / "large.gguf"
    return write_tiny(path, config, TensorType.Q8_0, metadata=metadata)


@dataclass(frozen=True)
class Least:
    """A run with the least budget that the refusal of a smaller one names."""

    out: Path
    refusal: str
    outcome: watch.Outcome

    @classmethod
    def of(cls, model: Path, data: Path, out: Path, *others: object) -> Least:
        words = _train(model, data, out, "--steps", 2, *others)
        refused = subprocess.run([*words, "--memory", "20MB"], capture_output=True, text=True, check=False)
        assert refused.returncode == 2
        assert not out.exists()
        outcome = watch.run([*words, "--memory", f"{named_mb(refused.stderr)}MB"], tree=True, ends=ENDED)
        return cls(out, refused.stderr, outcome)

    def check(self) -> None:
        assert re.match(r"error: Preparing .* does not fit in 20MB: these options need at least ", self.refusal)
        assert len(self.refusal.splitlines()) == 1
        assert _within(self.outcome, self.out) == named_mb(self.refusal)


@pytest.fixture(scope="module")
def least(large: Path, messages: Path, tmp_path_factory: pytest.TempPathFactory) -> Least:
    """The data's longest example decides about the length, once they are tokens."""
    data = tmp_path_factory.mktemp("data") / "long.jsonl"
    data.write_text(messages.read_text() + json.dumps({"prompt": "Hi?", "completion": "word " * 120}) + "\n")
    return Least.of(large, data, tmp_path_factory.mktemp("first") / "run", "--keep-checkpoints")


@pytest.fixture(scope="module")
def first(least: Least) -> Path:
    """A run that can be resumed or continued."""
    return least.out


CASES: dict[str, tuple[object, ...]] = {
    "evaluation": ("--eval-data", "DATA", "--eval-every", 1),
    "full": ("--train", "full", "--dequantize"),
    "default": (),
    "from": ("--from", "FIRST"),
    "dora": ("--dora",),
    "high rank": ("--rank", 128),
    "full, by examples": ("--train", "full", "--dequantize", "--batch-size", 2),
    "mebp": ("--method", "mebp"),
    "fp32": ("--compute", "fp32"),
}
"""Options of a command; FIRST and DATA stand for an earlier run and a data file."""


def _run_within(command: list[str], out: Path) -> int:
    return _within(watch.run(command, tree=True, ends=ENDED), out)


def _within(outcome: watch.Outcome, out: Path) -> int:
    """Check that a command stayed within its budget in every phase, and return the budget in MB."""
    record = json.loads((out / "run.json").read_text())
    budget, summary = record["configuration"]["memory"] / MB, record["summary"]
    assert outcome.tree_mb is not None
    assert outcome.tree_mb <= budget
    assert summary["peak_rss_mb"] <= budget
    assert len(record["samples"]) == 2, "the answers before and after are within the budget, too"
    return int(budget)


@pytest.mark.full("a budget that a refusal names is checked in the default tier")
@pytest.mark.parametrize("case", CASES)
def test_the_least_budget_is_the_whole_commands(
    large: Path, messages: Path, first: Path, tmp_path: Path, case: str
) -> None:
    """Regression: the answers of a run took 82 MB of 62. The budget covers every part of a command."""
    stand_ins = {"FIRST": first, "DATA": messages}
    options = [stand_ins.get(str(word), word) for word in CASES[case]]
    _run_within(_steps(large, messages, tmp_path / "run", "least", *options), tmp_path / "run")


def test_a_run_that_is_resumed_stays_within_its_budget(
    large: Path, messages: Path, first: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(first, out)
    words = ("train", large, "--out", out, "--resume", "--steps", 4, "--samples", 2)
    _run_within([sys.executable, "-m", "featherback", *map(str, words)], out)


def test_the_least_that_a_refusal_names_is_enough_for_the_whole_command(least: Least) -> None:
    """Regression: the budget that training suggested was too small for preparing the data."""
    least.check()


@pytest.mark.full("the length of the data stands for it")
def test_the_least_with_a_length(large: Path, messages: Path, tmp_path: Path) -> None:
    Least.of(large, messages, tmp_path / "run", "--seq-len", LENGTH).check()


@pytest.fixture(scope="module")
def labels(large: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier."""
    folder = tmp_path_factory.mktemp("labels")
    data, out = folder / "data.jsonl", folder / "run"
    rows = [{"text": f"text {number}", "label": "odd" if number % 2 else "even"} for number in range(8)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    subprocess.run(_steps(large, data, out, "least", "--objective", "classify"), check=True, capture_output=True)
    return out


@pytest.mark.full("a budget that a refusal names is checked in the default tier")
def test_the_minimum_that_a_run_prints_is_enough_for_the_whole_command(
    large: Path, messages: Path, tmp_path: Path
) -> None:
    """Regression: it was the least plan of training, and the preparation of the data needed more."""
    said = subprocess.run(
        _steps(large, messages, tmp_path / "dry", "400MB", "--dry-run"), check=True, capture_output=True, text=True
    ).stdout
    named = re.findall(r"--memory (\d+)MB is the minimum", said)[0]
    out = tmp_path / "run"
    assert _run_within(_steps(large, messages, out, f"{named}MB"), out) == int(named)


USING: dict[str, tuple[str, ...]] = {
    "evaluate": ("evaluate", "MODEL", "--data", "DATA", "--adapter", "FIRST", "--compute", "fp32"),
    "classify": ("classify", "MODEL", "Hi there", "--adapter", "LABELS", "--compute", "fp32"),
    "generate": (
        "generate", "MODEL", "--adapter", "FIRST", "--compute", "fp32", "--prompt", "Hi there", "--max-tokens", "6",
    ),
    "chat": (
        "chat", "MODEL", "--adapter", "FIRST", "--compute", "fp32", "--temperature", "0", "--max-tokens", "6",
        "--context", "200",
    ),
    "report": ("report", "FIRST", "--samples", "1"),
    "classify a file": ("classify", "MODEL", "--file", "DATA", "--adapter", "LABELS", "--compute", "fp32"),
    "evaluate a classifier": ("evaluate", "MODEL", "--data", "LABELLED", "--adapter", "LABELS", "--compute", "fp32"),
}  # fmt: skip


@pytest.mark.parametrize("case", tiers.some(USING, 1))
def test_a_trained_model_is_used_within_the_least_budget_that_a_refusal_names(
    large: Path, first: Path, messages: Path, case: str, request: pytest.FixtureRequest
) -> None:
    stand_ins = {"MODEL": large, "FIRST": first, "DATA": messages}
    if "LABELS" in USING[case]:
        stand_ins["LABELS"] = request.getfixturevalue("labels")
        stand_ins["LABELLED"] = stand_ins["LABELS"].parent / "data.jsonl"
    command = [sys.executable, "-m", "featherback", *(str(stand_ins.get(word, word)) for word in USING[case])]
    free = watch.run(command, tree=True, given="Hello\n")
    named = least_mb(command)
    within = watch.run([*command, "--memory", f"{named}MB"], tree=True, given="Hello\n")
    assert within.tree_mb is not None
    assert within.tree_mb <= named
    assert named < free.rss_mb, "without a budget the command takes more, so the check can fail"
    assert within.output == free.output
    assert within.output.strip()


def _rows(path: Path, lengths: tuple[int, ...]) -> Path:
    rows = [{"prompt": "Hi?", "completion": "some word, " * (length // 11)} for length in lengths]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, ["prompt", "completion"])
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("name", tiers.some(["d.jsonl", "d.json", "d.csv"], 1))
@pytest.mark.full("data/test_record_limits.py refuses such records in the process")
def test_a_long_record_is_refused_with_a_budget_that_has_room_for_all(
    chat_model: Path, messages: Path, tmp_path: Path, name: str
) -> None:
    """Regression: a chat of 14 MB in one line took seven times the budget, and the suggested budget was too small."""
    data, out = _rows(tmp_path / name, (50, 700_000, 50, 1_500_000)), tmp_path / "run"
    least = least_mb(_train(chat_model, messages, out, "--seq-len", LENGTH))
    little = f"{least + 4}MB"
    refused = subprocess.run(
        [*_steps(chat_model, data, out, little), "--cut"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert f"Preparing {data} does not fit in {little}: the example in {data}, " in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    budget = int(re.findall(r"Use --memory (\d+)MB, or split", refused.stderr)[0])
    outcome = watch.run([*_steps(chat_model, data, out, f"{budget}MB"), "--cut"], tree=True)
    assert outcome.tree_mb is not None
    assert outcome.tree_mb <= budget


@pytest.mark.full("prepares 6 MB of text")
def test_examples_are_held_out_of_large_data_in_little_memory(chat_model: Path, tmp_path: Path) -> None:
    """Regression: the search for duplicates mapped the whole token file, 123 MB of a budget of 60, without an error."""
    data, out = tmp_path / "text.txt", tmp_path / "run"
    random = np.random.default_rng(0)
    letters = random.integers(97, 123, 6_000_000).astype(np.uint8)
    letters[::6], letters[::60] = ord(" "), ord("\n")
    data.write_bytes(letters.tobytes())
    words = _train(chat_model, data, out, "--seq-len", LENGTH, "--samples", 0, "--epochs", 0.0001)
    budget = least_mb(words)
    outcome = watch.run([*words, "--memory", f"{budget}MB"], tree=True)
    assert outcome.tree_mb is not None
    assert outcome.tree_mb <= budget
