"""The measured runs, on a model small enough for a test: they work, and agree with each other."""

import json
from pathlib import Path

import pytest

from benchmarks import memory, published
from benchmarks.markdown import number, table
from benchmarks.synthetic import write_synthetic
from benchmarks.training_run import Measured, train_command, train_synthetic
from featherback.errors import FeatherbackError
from tests.support.budget import named_mb
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
    with pytest.raises(FeatherbackError) as refusal:
        train_synthetic(model, tokens=64, steps=2, folder=tmp_path, memory=10**6)
    least = named_mb(str(refusal.value))
    measured = train_synthetic(model, tokens=64, steps=2, folder=tmp_path, memory=least * 10**6)
    assert measured.rss_mb <= least
    assert measured.predicted_rss_mb <= least


@pytest.mark.full("a whole command, timed")
def test_the_whole_command_is_more_than_its_training(tmp_path: Path) -> None:
    model = write_tiny_chat(tmp_path / "m.gguf")
    data = write_messages(tmp_path / "d.jsonl")
    measured = train_command(model, data, tokens=64, steps=1, folder=tmp_path, memory=200 * 10**6, rank=2, threads=1)
    assert len(measured.losses) == 1
    if measured.tree_mb is not None:
        assert measured.tree_mb > measured.footprint_mb


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


def test_every_published_row_is_measured() -> None:
    keys = [setting.key for setting in memory.settings()]
    assert len(set(keys)) == len(keys)
    assert {*published.MESP, "7b-256-mesp"} <= set(keys)


def test_a_row_has_the_larger_of_the_peaks() -> None:
    found = measured(footprint_mb=40.0, outside_footprint_mb=40.52, rss_mb=60.0, outside_rss_mb=None)
    assert memory.peaks(found) == {"footprint_mb": 40.5, "rss_mb": 60.0, "predicted_rss_mb": 63.0}


def test_markdown() -> None:
    assert table(["a", "b"], [["x", "1"], ["y", "-"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |\n| y | - |"
    assert number(None) == "-"
    assert number(1.26, 1) == "1.3"


def test_results_are_json() -> None:
    values = json.loads(json.dumps(measured().to_json()))
    assert values["prediction_error"] == pytest.approx(0.05)
