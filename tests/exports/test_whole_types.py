"""The rounding when a trained model is stored in another type, and the notes about it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, dequantize

import featherback as fb
from featherback.cli.app import run as command
from featherback.engine.formats.types import TensorType
from featherback.exports.merged_gguf import MergedGGUF
from featherback.models import load
from featherback.models.adapter import LoRA
from tests.support.tiny_models import write_tiny

ADVICE = "note: most of the training is lost: to keep 99% of it, remove --type, or choose a finer type"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short training of all weights of a model in Q4_1."""
    folder = tmp_path_factory.mktemp("whole")
    write_tiny(folder / "f32.gguf")
    MergedGGUF(LoRA(load(folder / "f32.gguf")), TensorType.Q4_1).write(folder / "base.gguf")
    trained = fb.train(
        folder / "base.gguf", [[1, 2, 3, 4, 5, 6]] * 8, folder / "run", train="full", dequantize=True,
        optimizer="adamw", lr=2e-4, steps=3, progress=False,
    )  # fmt: skip
    return trained.path


def _matrices(path: Path) -> dict[str, np.ndarray]:
    tensors = [tensor for tensor in GGUFReader(path).tensors if len(tensor.shape) == 2]
    return {each.name: dequantize(each.data, each.tensor_type).astype(np.float64) for each in tensors}


@pytest.mark.parametrize(("kind", "enough"), [("q4_1", False), ("f16", True)])
def test_how_much_of_the_training_survives_is_measured_and_told(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, enough: bool
) -> None:
    arguments = ["export", str(run), "--to", "merged", "--type", kind, "--out", str(tmp_path / "m.gguf")]
    assert command([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    before, wanted, after = map(_matrices, (run.parent / "base.gguf", run / "model.gguf", tmp_path / "m.gguf"))
    stored = load(tmp_path / "m.gguf").store.tensors
    changed = [name for name in wanted if stored[name].type.name == kind.upper()]
    assert len(changed) > 10
    kept = sum(((after[n] - before[n]) * (wanted[n] - before[n])).sum() for n in changed)
    update = sum(np.square(wanted[n] - before[n]).sum() for n in changed)
    assert told["surviving"] == pytest.approx(kept / update, rel=1e-3)
    assert (abs(1 - told["surviving"]) <= 0.01) == enough
    assert command([*arguments, "--force"]) == 0
    notes = capsys.readouterr().out
    assert f"note: {told['surviving']:.2%} of the training survives" in notes
    assert (ADVICE in notes) == (not enough)


def test_without_a_type_the_weights_are_those_that_were_trained(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["export", str(run), "--to", "merged", "--out", str(tmp_path / "m.gguf")]) == 0
    assert "note: the trained weights were copied byte for byte" in capsys.readouterr().out
    ours, theirs = (GGUFReader(path).tensors for path in (run / "model.gguf", tmp_path / "m.gguf"))
    assert all(np.array_equal(a.data, b.data) for a, b in zip(ours, theirs, strict=True))


def test_without_the_model_that_it_began_with(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the rounding error is known until the user names the base model. Another model is rejected."""
    base = (run.parent / "base.gguf").rename(run.parent / "moved.gguf")
    arguments = ["export", str(run), "--to", "gguf", "--type", "q4_1", "--out", str(tmp_path / "m.gguf")]
    try:
        assert command(arguments) == 0
        assert "survives, name the model that it began with: --model" in capsys.readouterr().out
        assert command([*arguments, "--force", "--model", str(base)]) == 0
        assert ADVICE in capsys.readouterr().out
        other = run.parent / "f32.gguf"
        assert command([*arguments, "--force", "--model", str(other)]) == 2
        assert (
            f"--model is {other}, but {run} was trained from another model. Give the model that it was trained from."
            in capsys.readouterr().err
        )
    finally:
        base.rename(run.parent / "base.gguf")
