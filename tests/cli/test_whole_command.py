"""--memory bounds the whole command: all its processes, what they share counted once."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.support.tiny_chat import byte_level_metadata
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny

from featherback.bench import watch

MB = 10**6
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what processes share")


def _train(model: Path, data: Path, out: Path, memory: int) -> list[str]:
    words = (
        "train",
        model,
        "--data",
        data,
        "--out",
        out,
        "--memory",
        f"{memory}MB",
        "--seq-len",
        96,
        "--steps",
        2,
    )
    return [sys.executable, "-m", "featherback", *map(str, words)]


def _least(model: Path, data: Path, out: Path) -> tuple[int, list[str]]:
    """The budget that refusals name in the end, and what they said on the way."""
    budget, said = 1, list[str]()
    for _ in range(4):  # first what training needs, then what preparation does
        done = subprocess.run(_train(model, data, out, budget), capture_output=True, text=True)
        if done.returncode == 0:
            return budget, said
        assert len(done.stderr.splitlines()) == 1
        assert not out.exists()
        said.append(done.stderr)
        budget = int(re.findall(r"--memory (\d+)MB", done.stderr)[0])
    pytest.fail(f"none of the budgets named will do: {said}")


def test_the_budget_is_the_whole_commands(chat_model: Path, messages: Path, tmp_path: Path) -> None:
    budget, _ = _least(chat_model, messages, tmp_path / "run")
    outcome = watch.run(_train(chat_model, messages, tmp_path / "again", budget), tree=True)
    assert outcome.tree_mb is not None
    assert outcome.tree_mb <= budget


@pytest.fixture(scope="module")
def large_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with 200,000 more tokens and merges, which the tokenizer keeps tables of."""
    metadata = byte_level_metadata()
    plain = [token for token in metadata["tokenizer.ggml.tokens"] if len(token) == 1]  # type: ignore[union-attr]
    pairs = [(a, b) for a in plain for b in plain]
    triples = [(a + b, c) for a, b in pairs[:800] for c in plain][: 200_000 - len(pairs)]
    merged = pairs + triples
    metadata["tokenizer.ggml.tokens"] += [a + b for a, b in merged]  # type: ignore[operator]
    metadata["tokenizer.ggml.merges"] = [f"{a} {b}" for a, b in merged]
    types = metadata["tokenizer.ggml.token_type"]
    metadata["tokenizer.ggml.token_type"] = np.concatenate([types, np.ones(len(merged), np.int32)])
    count = len(metadata["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    path = tmp_path_factory.mktemp("model") / "large.gguf"
    return write_tiny(path, tiny(TINY_LLAMA, vocab_size=count), metadata=metadata)


def test_a_budget_that_preparation_exceeds_is_refused_with_one_that_does(
    large_vocabulary: Path, messages: Path, tmp_path: Path
) -> None:
    budget, said = _least(large_vocabulary, messages, tmp_path / "run")
    assert said[-1].startswith(f"error: Preparing {messages} does not fit in")
    outcome = watch.run(_train(large_vocabulary, messages, tmp_path / "again", budget), tree=True)
    assert outcome.tree_mb is not None
    assert outcome.tree_mb <= budget


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


@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.csv"])
def test_a_long_record_is_refused_with_a_budget_that_has_room_for_all(
    chat_model: Path, tmp_path: Path, name: str
) -> None:
    """A chat of 14 MB in one line took seven times the budget, and the amount named was refused again."""
    data, out = _rows(tmp_path / name, (50, 700_000, 50, 1_500_000)), tmp_path / "run"
    enough = subprocess.run(
        [*_train(chat_model, data, out, 60), "--cut"], capture_output=True, text=True, check=False
    )
    assert enough.returncode == 2
    assert f"Preparing {data} does not fit in 60MB: the example in {data}, " in enough.stderr
    assert len(enough.stderr.splitlines()) == 1
    budget = int(re.findall(r"--memory (\d+)MB has room for it", enough.stderr)[0])
    outcome = watch.run([*_train(chat_model, data, out, budget), "--cut"], tree=True)
    assert outcome.tree_mb is not None
    assert outcome.tree_mb <= budget
