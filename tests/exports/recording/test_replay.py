"""A recorded step, replayed with the numbers of other batches, has the bits of the step itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback import methods, models
from featherback.data.batch import IGNORE, Batch
from featherback.engine.formats.types import TensorType
from featherback.engine.host.paged import PagedArray
from featherback.errors import FeatherbackError
from featherback.exports.recording.file import write
from featherback.exports.recording.step import record
from featherback.models.adapter import LoRA
from featherback.models.model import Model
from tests.optim.paged import as_rows
from tests.support import tiny_models
from tests.support.families.granitemoe import TINY_GRANITEMOE
from tests.support.replay import Replay
from tests.support.tiny_models import write_tiny

FAMILIES = [name for name in vars(tiny_models) if name.startswith("TINY_")]


def a_model(folder: Path, family: str, kind: TensorType = TensorType.F32) -> tuple[Model, LoRA]:
    model = models.load(write_tiny(folder / "m.gguf", getattr(tiny_models, family), kind))
    adapter = LoRA(model, rank=4)
    rng = np.random.default_rng(5)
    for layer in adapter.layout.adapted:
        adapter.parameters.write(layer, 0.02 * rng.standard_normal(adapter.layer_size).astype(np.float32))
    return model, adapter


def a_batch(rng: np.random.Generator, vocabulary: int, most: int) -> Batch:
    """Return up to three sequences, of which some tokens are not supervised."""
    lengths = rng.integers(2, 1 + most // 3, rng.integers(1, 4))
    sequences = [rng.integers(0, vocabulary, n).astype(np.int32) for n in lengths]
    labels = [np.where(rng.random(len(s)) < 0.3, IGNORE, s) for s in sequences]
    labels[0] = sequences[0]
    return Batch.from_sequences(sequences, labels)


def replay_of(model: Model, adapter: LoRA, tokens: int, compute: str, folder: Path) -> Replay:
    path = folder / "step.recording"
    with path.open("wb") as file:
        write(record(model, adapter, tokens, compute), file)
    found = Replay(path, model)
    found.values[...] = as_rows(adapter.parameters)
    return found


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_replay_has_the_bits_of_the_step(family: str, compute: str, tmp_path: Path) -> None:
    """For twenty batches up to the recorded length. Tokens beyond 256 make the loss pass in two tiles of rows."""
    model, adapter = a_model(tmp_path, family)
    longest = min([300, *(rotary.beyond[0] - 8 for rotary in model.rotaries if rotary.beyond)])
    replay = replay_of(model, adapter, longest, compute, tmp_path)
    step = record(model, adapter, longest, compute)
    method = methods.create("mesp", model, adapter, step.plan, tmp_path)
    rng, seen = np.random.default_rng(1), []
    for most in (longest, longest, *18 * (24,)):
        batch = a_batch(rng, model.config.vocab_size, most)
        gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
        loss = method.gradients(batch, 1 / batch.n_targets, gradients)
        replay.gradients[...] = 0
        again = replay.step(batch, 1 / batch.n_targets)
        assert np.array_equal(replay.gradients, as_rows(gradients))
        assert again == pytest.approx(loss, rel=1e-12)
        seen.append(batch.n_targets)
    assert np.abs(replay.gradients).max() > 0
    assert len(set(seen)) > 1
    method.close()


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    """The rotation of the backward pass goes the wrong way."""
    model, adapter = a_model(tmp_path, "TINY_LLAMA")
    replay = replay_of(model, adapter, 24, "fp32", tmp_path)
    method = methods.create("mesp", model, adapter, record(model, adapter, 24, "fp32").plan, tmp_path)
    batch = a_batch(np.random.default_rng(1), model.config.vocab_size, 24)
    gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
    method.gradients(batch, 1.0, gradients)
    replay.step(batch, 1.0)
    assert np.array_equal(replay.gradients, as_rows(gradients))
    [*_, last] = [call for call in replay.sections["calls"] if call[0] == "rope"]
    assert last[-1] == "1"
    last[-1] = "0"
    replay.gradients[...] = 0
    replay.step(batch, 1.0)
    assert not np.allclose(replay.gradients, as_rows(gradients), rtol=1e-3)
    method.close()


@pytest.mark.parametrize(
    ("shape", "options", "says"),
    [
        (tiny_models.TINY_LLAMA, {"dora": True}, "LoRA without dropout can be recorded"),
        (TINY_GRANITEMOE, {}, "Dense models with LoRA can be recorded"),
        (tiny_models.TINY_PHI4, {}, "depend on the length; record fewer tokens"),
    ],
    ids=["dora", "experts", "long positions"],
)
def test_what_cannot_be_recorded_is_refused(shape: Any, options: dict[str, Any], says: str, tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", shape, TensorType.F32))
    with pytest.raises(FeatherbackError, match=says):
        record(model, LoRA(model, rank=2, **options), 400, "fp32")
