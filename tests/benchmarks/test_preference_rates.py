"""Default learning rates of preferences were measured, and the page shows what was measured."""

from pathlib import Path

import pytest

import featherback as fb
from benchmarks.preference_rates import DATA, FILE, HELD_OUT, PAIRS, markdown, measure, noticed, preferences
from benchmarks.results import ROOT, Result
from featherback.nn.objectives import OBJECTIVES
from tests.support.tiny_chat import write_tiny_chat

DESTROYED = {"tone, dpo, 1", "tone, dpo, 0.3", "tone, simpo, 0.1", "tone, kto, 0.1"}
"""Rows whose answers, read by a person, are no longer sentences, and whose rejected answers became unlikely."""


@pytest.mark.parametrize("data", DATA)
def test_the_default_rate_of_every_objective_was_measured(data: str) -> None:
    rows = [row for row in Result.read(FILE).rows.values() if row["data"] == data]
    measured = {(row["objective"], row["share"]) for row in rows}
    assert {name for name in preferences() if (name, OBJECTIVES[name].rate) not in measured} == set()


def test_every_destroyed_model_is_noticed_and_no_other() -> None:
    rows = Result.read(FILE).rows
    assert {name.partition(", ")[2] for name, row in rows.items() if noticed(row)} == DESTROYED


def test_the_page_shows_the_rows() -> None:
    assert markdown(Result.read(FILE).rows) in (ROOT / "docs/decisions/preferences.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("data", DATA)
def test_data_sets_share_no_prompt(data: str) -> None:
    train, held_out = ({pair["prompt"] for pair in pairs} for pairs in DATA[data]())
    assert (len(train), len(held_out)) == (PAIRS, HELD_OUT)
    assert not train & held_out


def test_a_run_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.preference_rates.EPOCHS", 1)
    monkeypatch.setattr("benchmarks.preference_rates.LENGTH", 160)  # the tiny tokenizer has longer texts
    row = measure(fb.load(write_tiny_chat(tmp_path / "tiny.gguf")), "tone", "kto", 0.1, tmp_path / "run")
    assert row["steps"]
    assert 0 <= row["accuracy"] <= 1
    assert len(row["chosen"]) == len(row["rejected"]) == len(row["answers"]) == 2
