"""A batch has a number of examples (batch_size), or as many as fit into a number of tokens (batch_tokens)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import featherback as fb
from featherback.cli.preamble import describe_batches
from featherback.data.packing import rows
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError
from featherback.runs.config import TrainConfig
from featherback.runs.panels.data import SEQUENCE
from featherback.runs.run_directory import RunDirectory
from featherback.runs.run_file import read
from tests.runs.conftest import SEQ_LEN, Start
from tests.support.tiers import some

NAMED = {"model": "m.gguf", "out": "run", "seq_len": SEQ_LEN}
LENGTHS = (4, 5, 7, 9, 11, 13, 16)


def _examples() -> list[list[int]]:
    return [[length] * length for length in LENGTHS]


def _train(model: Path, out: Path, **options: Any) -> tuple[list[int], RunDirectory]:
    """Return the tokens of each step."""
    fixed = {"seq_len": SEQ_LEN, "rank": 2, "epochs": 1, "progress": False, "compute": "fp32", "samples": 0}
    run = fb.train(model, _examples(), out, **(fixed | options))
    return [line["tokens"] for line in run.metrics], run.directory


def test_a_batch_holds_so_many_examples_whatever_their_lengths(tiny_path: Path, tmp_path: Path) -> None:
    steps, run = _train(tiny_path, tmp_path / "run", batch_size=3)
    tokens = TokenFile(run.tokens / "train.tokens")
    order = [int(tokens.lengths(row).sum()) for row in rows(tokens, run.config.batching)]
    assert steps == order
    assert [row.size for row in rows(tokens, run.config.batching)] == [3, 3, 1]
    assert run.plan.tokens == 3 * SEQ_LEN
    assert max(steps) <= run.plan.tokens
    two, _ = _train(tiny_path, tmp_path / "two", batch_size=1, accumulate=3)
    assert two == steps


def test_a_packed_batch_holds_what_fits_into_its_tokens(tiny_path: Path, tmp_path: Path) -> None:
    by_default, run = _train(tiny_path, tmp_path / "run")
    assert run.plan.tokens == SEQ_LEN
    assert max(by_default) <= SEQ_LEN
    packed, run = _train(tiny_path, tmp_path / "packed", batch_tokens=40)
    assert run.plan.tokens == 40
    assert len(packed) < len(by_default)
    assert max(packed) <= 40
    assert sum(packed) == sum(LENGTHS)
    with pytest.raises(fb.FeatherbackError, match="A batch must hold a whole sequence"):
        _train(tiny_path, tmp_path / "small", batch_tokens=8)


def test_examples_of_a_batch_do_not_see_each_other(start: Start) -> None:
    """A step of four examples equals the step of the mean over their supervised tokens, computed one by one."""
    options: dict[str, Any] = {"steps": 2, "max_grad_norm": 0.5}
    runs = [
        start("together", batch_size=4, **options),
        start("one by one", batch_size=1, accumulate=4, **options),
        start("packed", batch_tokens=4 * SEQ_LEN, **options),
    ]
    first, *others = (load_file(run.path / "adapter_model.safetensors") for run in runs)
    for other in others:
        for name, tensor in other.items():
            assert np.linalg.norm(tensor - first[name]) <= 1e-5 * np.linalg.norm(first[name])


def test_memory_is_planned_for_the_longest_examples_there_are(tiny_path: Path, tmp_path: Path) -> None:
    _, run = _train(tiny_path, tmp_path / "run", batch_size=3, seq_len=None)
    assert run.config.seq_len == max(LENGTHS)
    assert run.plan.tokens == 3 * max(LENGTHS)
    _, run = _train(tiny_path, tmp_path / "packed", seq_len=None)  # shorter ones leave room for more
    assert run.plan.tokens == run.config.seq_len == SEQUENCE


@pytest.mark.parametrize("tokens", some([2, 17, 40, 96, 300], 2))
def test_small_batches_without_a_sequence_length(tiny_path: Path, tmp_path: Path, tokens: int) -> None:
    """A batch holds as many tokens as the user asked for, or the longest example."""
    steps, run = _train(tiny_path, tmp_path / "run", batch_tokens=tokens, seq_len=None)
    assert run.plan.tokens == run.config.batching.full == max(tokens, *LENGTHS)
    assert max(steps) <= run.plan.tokens
    assert sum(steps) == sum(LENGTHS)


def test_a_small_batch_of_answers_has_room_for_two() -> None:
    config = TrainConfig(model="m", out="o", objective="dpo", batch_tokens=100)
    assert (config.sequence, config.batching.full) == (50, 100)  # two answers of 50 tokens


def test_one_of_the_two_is_named() -> None:
    with pytest.raises(FeatherbackError, match=r"^Use --batch-size or --batch-tokens, not both\.$"):
        TrainConfig(**NAMED, batch_size=2, batch_tokens=64)


def test_naming_one_replaces_the_other_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "o.yaml").write_text("batch_size: 8\nseq_len: 64\n")
    config = read(tmp_path / "o.yaml").config({"model": "m", "out": "o", "batch_tokens": 512})
    assert (config.batch_size, config.batch_tokens) == (None, 512)


def test_a_resumed_run_keeps_its_batches(tiny_path: Path, start: Start) -> None:
    start(steps=1)
    start(steps=2, resume=True, batch_tokens=SEQ_LEN)  # as by default
    refusal = r"--batch-size was unset, not 2; --batch-tokens was 16, not unset"
    with pytest.raises(FeatherbackError, match=refusal):
        start(steps=2, resume=True, batch_size=2)


# --- what a person is told ---


def test_the_banner_says_how_many_examples_a_step_holds(tiny_path: Path, tmp_path: Path) -> None:
    _, run = _train(tiny_path, tmp_path / "run", batch_size=3, accumulate=2)
    tokens = TokenFile(run.tokens / "train.tokens")
    assert describe_batches(run.config, tokens) == (
        "3 examples, up to 48 tokens; 2 batches a step: 6 examples; examples do not see each other"
    )
    packed = replace(run.config, batch_size=None, batch_tokens=33, accumulate=1)
    average = len(LENGTHS) / len(list(rows(tokens, packed.batching)))
    assert describe_batches(packed, tokens) == (
        f"up to 33 tokens, packed with whole examples: {average:.3g} on average; examples do not see each other"
    )
