"""The server's folder: whole rounds or none, PEFT directories, and other models and forms are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from featherback import models
from featherback.errors import FeatherbackError
from featherback.exports import FORMATS, formats
from featherback.federated import rounds
from featherback.federated.identity import identity_of
from featherback.federated.rounds import Round
from featherback.models.adapter import Adapter, LoRA
from featherback.models.model import Model
from tests.support.tiny_chat import write_tiny_chat


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return models.load(write_tiny_chat(tmp_path / "tiny.gguf"))


@pytest.fixture
def adapter(model: Model) -> Adapter:
    return LoRA(model, rank=4, seed=3)


def test_a_round_is_read_as_it_was_written(tmp_path: Path, model: Model, adapter: Adapter) -> None:
    state = {"m_t:a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    made = Round("0123456789abcdef", 7, identity_of(model), [{"round": 7, "loss": 1.5}], [0.5], state)
    place = made.save(tmp_path / "out", adapter)
    assert place.name == "round-000007"
    found = rounds.load(place, identity_of(model))
    assert vars(found) | {"state": None} == vars(made) | {"state": None}
    np.testing.assert_array_equal(found.state["m_t:a"], state["m_t:a"])
    other = LoRA(model, rank=4, seed=4)
    rounds.load_adapter(place, other)
    assert all(np.array_equal(each, other.state()[name]) for name, each in adapter.state().items())
    assert formats.detect(place) is FORMATS["peft"]


def test_the_newest_complete_round_counts(tmp_path: Path, model: Model, adapter: Adapter) -> None:
    assert rounds.newest(tmp_path / "out") is None
    for number in (0, 2, 10):
        Round("0123456789abcdef", number, identity_of(model)).save(tmp_path / "out", adapter)
    (tmp_path / "out" / "round-000011").mkdir()  # without a record
    (tmp_path / "out" / ".round-000012.1.tmp").mkdir()  # of a server that was killed
    assert rounds.newest(tmp_path / "out") == rounds.folder(tmp_path / "out", 10)


def test_what_does_not_fit_is_refused(tmp_path: Path, model: Model, adapter: Adapter) -> None:
    place = Round.first(identity_of(model)).save(tmp_path / "out", adapter)
    with pytest.raises(FeatherbackError, match="made with another model"):
        rounds.load(place, {**identity_of(model), "hidden_size": 1})
    with pytest.raises(FeatherbackError, match="another form than the options"):
        rounds.load_adapter(place, LoRA(model, rank=2))
    record = json.loads((place / rounds.RECORD).read_text())
    del record["norms"]
    (place / rounds.RECORD).write_text(json.dumps(record))
    with pytest.raises(FeatherbackError, match=r"round\.json: norms is missing"):
        rounds.load(place, identity_of(model))


def test_a_folder_has_one_server(tmp_path: Path) -> None:
    out = tmp_path / "out"
    used = pytest.raises(FeatherbackError, match="Another run of the federation uses")
    with rounds.locked(out), used, rounds.locked(out):
        pytest.fail("two servers")
    with rounds.locked(out):
        pass
