"""Adapters, runs and classifiers as objects: saved, exported, opened again."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featherback as fb
from tests.support import tiers
from tests.support.tiny_chat import write_tiny_chat

pytestmark = pytest.mark.usefixtures("in_python")
PAIRS = [(f"What is {i}?", f"A number, {i}.") for i in range(8)]
LABELLED = [
    {"text": f"the {word} {i}", "label": label}
    for i in range(4)
    for word, label in (("ball", "sport"), ("bank", "money"))
]


@pytest.fixture
def model(tmp_path: Path) -> fb.Model:
    return fb.load(write_tiny_chat(tmp_path / "model.gguf"))


def _trained(model: fb.Model, out: Path, **options: object) -> fb.Run:
    return fb.train(model, PAIRS, out, steps=2, lr=1e-2, progress=False, **options)  # type: ignore[arg-type]


def _drawn(model: fb.Model) -> fb.LoRA:
    adapter = fb.LoRA(model, rank=2)
    numbers = np.random.default_rng(0)
    adapter.load_state({name: numbers.normal(size=shape).astype("f4") for name, shape in adapter.shapes().items()})
    return adapter


@pytest.mark.parametrize("kind", tiers.some(["lora", "ia3", "spartan"], 1))
def test_a_saved_adapter_is_read_again(model: fb.Model, tmp_path: Path, kind: str) -> None:
    adapter = _trained(model, tmp_path / "run", adapter=kind).adapter
    assert adapter.save(tmp_path / "kept") == tmp_path / "kept"
    answers = [model.generate("Hi", adapter=each, max_tokens=6) for each in (adapter, tmp_path / "kept")]
    assert answers[0] == answers[1]
    losses = [fb.evaluate(model, PAIRS, adapter=each).loss for each in (adapter, tmp_path / "kept")]
    assert losses[0] == losses[1] != fb.evaluate(model, PAIRS).loss


def test_save_replaces_an_adapter_and_nothing_else(model: fb.Model, tmp_path: Path) -> None:
    run = _trained(model, tmp_path / "run")
    adapter, place = _drawn(model), tmp_path / "kept"
    run.adapter.save(place)
    with pytest.raises(fb.FeatherbackError, match=r"kept already exists.*force=True"):
        adapter.save(place)
    adapter.save(str(place), force=True)
    assert fb.evaluate(model, PAIRS, adapter=place).loss == fb.evaluate(model, PAIRS, adapter=adapter).loss
    for taken in (run.path, tmp_path):
        before = sorted(taken.iterdir())
        with pytest.raises(fb.FeatherbackError, match="holds other files"):
            adapter.save(taken, force=True)
        assert sorted(taken.iterdir()) == before
    with pytest.raises(fb.FeatherbackError, match="is a file"):
        adapter.save(model.path, force=True)


@pytest.mark.parametrize("to", ["peft", "gguf", "mlx", "merged"])
def test_an_adapter_in_memory_is_exported_like_a_saved_one(model: fb.Model, tmp_path: Path, to: str) -> None:
    adapter = _drawn(model)
    adapter.save(tmp_path / "saved")
    one = fb.export(adapter, to, out=tmp_path / "one").path
    two = fb.export(tmp_path / "saved", to, out=tmp_path / "two", model=model).path
    files = [
        {each.relative_to(path): each.read_bytes() for each in (path, *path.rglob("*")) if each.is_file()}
        for path in (one, two)
    ]
    assert files[0] == files[1] != {}


def test_an_adapter_in_memory_needs_a_place_and_its_own_model(model: fb.Model, tmp_path: Path) -> None:
    adapter = _drawn(model)
    with pytest.raises(fb.FeatherbackError, match=r"^`?out`? is missing"):
        fb.export(adapter, "peft")
    other = write_tiny_chat(tmp_path / "other.gguf", seed=5)
    with pytest.raises(fb.FeatherbackError, match="was made for the model"):
        fb.export(adapter, "peft", out=tmp_path / "x", model=other)
    assert fb.merge(adapter, out=tmp_path / "merged.gguf", model=model.path).path.exists()


def test_a_run_is_opened_again(model: fb.Model, tmp_path: Path) -> None:
    run = _trained(model, tmp_path / "run")
    again = fb.open_run(tmp_path / "run")
    assert (again.summary, again.status, again.path, again.metrics) == (run.summary, run.status, run.path, run.metrics)
    for name, values in run.adapter.state().items():
        np.testing.assert_array_equal(again.adapter.state()[name], values)
    assert again.model.generate("Hi", adapter=again, max_tokens=4) == model.generate("Hi", adapter=run, max_tokens=4)
    moved = model.path.rename(tmp_path / "moved.gguf")
    without = fb.open_run(str(tmp_path / "run"))
    assert without.metrics == run.metrics
    with pytest.raises(fb.FeatherbackError, match=r'not on this machine.*model="PATH"'):
        without.model  # noqa: B018
    assert fb.open_run(tmp_path / "run", model=moved).adapter.rank == 8
    with pytest.raises(fb.FeatherbackError, match="is not a run directory"):
        fb.open_run(tmp_path)
    with pytest.raises(fb.FeatherbackError, match=r"There is no run .*none"):
        fb.open_run(tmp_path / "none")


def test_a_whole_model_that_was_trained_is_opened_again(model: fb.Model, tmp_path: Path) -> None:
    run = fb.train(model, PAIRS, tmp_path / "run", train="full", dequantize=True, steps=1, progress=False)
    model.path.unlink()
    assert fb.open_run(run.path).trained_model.generate("Hi", max_tokens=2) is not None


def test_texts_are_classified_by_a_function_too(model: fb.Model, tmp_path: Path) -> None:
    options = {"objective": "classify", "steps": 2, "rank": 2, "progress": False}
    run = fb.train(model, LABELLED, tmp_path / "run", **options)  # type: ignore[arg-type]
    expected = model.classify(["the ball", "the bank"], adapter=run)
    assert fb.classify(model, ["the ball", "the bank"], adapter=run) == expected
    assert fb.classify(model.path, "the ball", adapter=run.path) == expected[:1]
    assert fb.classify(run, "the ball") == expected[:1]
    assert fb.classify(run.path, "the ball") == expected[:1]
    with pytest.raises(fb.FeatherbackError, match="is not a run"):
        fb.classify(model.path, "the ball")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "The data are empty; pass at least one example"),
        (iter(()), "The data are empty"),
        (
            ["The cat sat on the mat.", "The dog slept."],
            r'pass records: data=\[\{"text": \'The cat sat on the mat.\'\}',
        ),
        ("Once upon a time.\nThe end.", r'pass records: data=\[\{"text": '),
        (("Where is it?", "There"), r"Put the \(prompt, completion\) tuples into a list: data=\[\('Where is it\?'"),
        (["no.jsonl", "my other data.jsonl"], "The data file no.jsonl does not exist"),
        ("my data.jsonl", "The data file my data.jsonl does not exist"),
    ],
)
def test_data_that_are_none(model: fb.Model, tmp_path: Path, data: Any, says: str) -> None:
    with pytest.raises(fb.FeatherbackError, match=says):
        fb.train(model, data, tmp_path / "run", steps=1, progress=False)
    with pytest.raises(fb.FeatherbackError, match=says):
        fb.evaluate(model, iter(()) if hasattr(data, "__next__") else data)
    assert not (tmp_path / "run").exists()


def test_callbacks_are_a_list(model: fb.Model, tmp_path: Path) -> None:
    with pytest.raises(fb.FeatherbackError, match=r"callbacks=<.*>; it must be a list, such as callbacks=\[<"):
        fb.train(model, PAIRS, tmp_path / "run", callbacks=fb.Callback())  # type: ignore[arg-type]


def test_an_evaluation_is_shown_by_its_figures(model: fb.Model) -> None:
    found = fb.evaluate(model, PAIRS)
    assert repr(found) == f"Evaluation(loss={found.loss}, tokens={found.tokens}, measures={{}}, counted='tokens')"


def test_relative_paths_stay_those_of_the_folder_where_they_were_named(
    model: fb.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = fb.load("model.gguf")
    trained = _trained(model, Path("run"))
    opened = fb.open_run("run")
    answers = {model.generate("Hi", adapter=trained, max_tokens=4)}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    fb.train(model, PAIRS, "other", steps=1, progress=False)
    assert (tmp_path / "elsewhere" / "other" / "run.json").is_file()
    answers |= {model.generate("Hi", adapter=each, max_tokens=4) for each in (trained, opened, opened.adapter)}
    assert len(answers) == 1
    assert fb.export(opened, to="gguf").path == tmp_path / "run.gguf"
    assert fb.evaluate(model, PAIRS, adapter=trained).loss == fb.evaluate(opened.model, PAIRS, adapter=opened).loss
    assert fb.open_run(tmp_path / "run").model.path == tmp_path / "model.gguf"


def test_models_runs_and_adapters_are_pickled_and_copied(model: fb.Model, tmp_path: Path) -> None:
    run = _trained(model, tmp_path / "run")
    drawn = _drawn(model)
    for through in (lambda it: pickle.loads(pickle.dumps(it)), copy.deepcopy, copy.copy):
        answers = {model.generate("Hi", adapter=each, max_tokens=6) for each in (run, through(run))}
        answers.add(through(model).generate("Hi", adapter=run, max_tokens=6))
        assert len(answers) == 1
        again = through(drawn)
        assert again.state().keys() == drawn.state().keys()
        assert all(np.array_equal(values, drawn.state()[name]) for name, values in again.state().items())
        assert model.generate("Hi", adapter=again, max_tokens=6) == model.generate("Hi", adapter=drawn, max_tokens=6)
