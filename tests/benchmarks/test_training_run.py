"""The measured runs, on a model small enough for a test: they work, and agree with each other."""

import json
from pathlib import Path

import pytest

from benchmarks import memory
from benchmarks.ablation import measure_kept_h
from benchmarks.markdown import number, table
from benchmarks.memory import MAIN, Row, Setting, markdown, settings
from benchmarks.synthetic import write_synthetic
from benchmarks.training_run import Measured, train_command, train_synthetic
from tests.support.tiny_chat import write_messages, write_tiny_chat

SMALL = {"num_hidden_layers": 2, "vocab_size": 2000}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("bench") / "m.gguf", "smollm2-135m", **SMALL)


def test_inside_and_outside_agree(model: Path, tmp_path: Path) -> None:
    measured = train_synthetic(model, tokens=64, steps=3, folder=tmp_path)
    assert len(measured.losses) == 3
    assert measured.rss_mb > measured.footprint_mb > 10
    if measured.outside_rss_mb is not None and measured.outside_footprint_mb is not None:
        assert measured.outside_rss_mb == pytest.approx(measured.rss_mb, rel=0.05)
        assert measured.outside_footprint_mb == pytest.approx(measured.footprint_mb, rel=0.15)
    assert abs(measured.error) < 0.15
    assert not any(tmp_path.iterdir())


def test_a_budget_is_kept(model: Path, tmp_path: Path) -> None:
    measured = train_synthetic(model, tokens=64, steps=2, folder=tmp_path, memory=60 * 10**6)
    assert measured.rss_mb <= 60
    assert measured.predicted_rss_mb <= 60


def test_the_whole_command_is_more_than_its_training(tmp_path: Path) -> None:
    model = write_tiny_chat(tmp_path / "m.gguf")
    data = write_messages(tmp_path / "d.jsonl")
    measured = train_command(model, data, tokens=64, steps=1, folder=tmp_path, memory=200 * 10**6, rank=2, threads=1)
    assert len(measured.losses) == 1
    if measured.tree_mb is not None:
        assert measured.tree_mb > measured.footprint_mb


def test_keeping_h_is_another_plan_and_the_same_loss(model: Path, tmp_path: Path) -> None:
    kept, recomputed = (measure_kept_h(model, keep, tmp_path, tokens=32) for keep in (True, False))
    assert kept.losses == recomputed.losses


def measured(**changed: object) -> Measured:
    values = {
        "method": "mesp",
        "optimizer": "adamw",
        "tokens": 256,
        "rank": 8,
        "budget_mb": None,
        "footprint_mb": 40.0,
        "rss_mb": 60.0,
        "outside_footprint_mb": 40.5,
        "outside_rss_mb": 60.0,
        "predicted_rss_mb": 63.0,
        "checkpoints": "file",
        "states": "ram",
        "step_seconds": 1.5,
        "losses": (1.0,),
    }
    return Measured(**(values | changed))  # type: ignore[arg-type]


def test_the_tables_have_published_columns_beside_ours() -> None:
    rows = [Row(setting, measured(tokens=setting.tokens)) for setting in settings([MAIN, "qwen2.5-3b"], False)]
    text = markdown(rows, {True: measured(), False: measured()})
    for expected in ("| qwen2.5-0.5b | mesp, adamw | 136.2 | **40.5** | 60.0 | 0.86 | 1.50 | 48 (80) |",):
        assert expected in text
    assert "| 1024 tokens | mebp, sgd | 1050.3 |" in text
    assert "| rank 32 | mesp, sgd | 158.2 |" in text
    assert "| recomputed | 368.4 |" in text
    assert "| qwen2.5-0.5b | mesp, adamw | 256 | 8 | 96 | 63.0 | 60.0 | +5.0% |" in text
    assert "| 4096 tokens | mesp, adamw | - |" in text


def test_quick_takes_a_row_a_table() -> None:
    quick = list(settings([MAIN], True))
    assert {s.table for s in quick} == {"models", "sequences", "ranks", "budgets"}
    assert len(quick) == 4
    assert all(isinstance(s, Setting) for s in quick)
    assert len(list(settings([MAIN], False))) >= 20  # settings in which the prediction is tested


def test_published_rows_are_all_measured() -> None:
    found = {(s.table, s.tokens, s.rank) for s in settings([MAIN], False)}
    assert {("sequences", t, 8) for t in (128, 512, 1024, *memory.LONG)} <= found
    assert {("ranks", 256, r) for r in (4, 16, 32)} <= found


def test_markdown() -> None:
    assert table(["a", "b"], [["x", "1"], ["y", "-"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |\n| y | - |"
    assert number(None) == "-"
    assert number(1.26, 1) == "1.3"


def test_results_are_json() -> None:
    values = json.loads(json.dumps(measured().to_json()))
    assert values["prediction_error"] == pytest.approx(0.05)
