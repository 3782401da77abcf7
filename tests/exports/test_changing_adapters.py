"""An adapter that another program changes while it is read ends in one sentence that names it, never in a signal.

The rule is that of `engine/formats/mapping.py`. Each format is read once to count the accesses. Then the file is
changed when it is opened, and before its first, middle and last access.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback import models
from featherback.errors import FeatherbackError
from featherback.exports import FORMATS, formats
from featherback.exports.formats import own
from featherback.infer.decoder import Decoder
from featherback.models.adapter import Adapter, LoRA
from featherback.models.form import Form
from featherback.models.model import Model
from featherback.web.openai.shelf import Shelf
from tests.support import changing
from tests.support.changing import CHANGED, CHANGES, TRUNCATED, UNNOTICED
from tests.support.tiny_models import write_tiny

FILES = {"peft": "adapter_model.safetensors", "mlx": "adapters.safetensors", "gguf": "", "own": "adapter.safetensors"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return models.load(write_tiny(tmp_path_factory.mktemp("model") / "m.gguf"))


def _saved(model: Model, name: str, folder: Path) -> tuple[Path, Path]:
    """The adapter of a format, and the file that holds its weights."""
    adapter = Adapter(model, Form.of(adapter="spartan")) if name == "own" else LoRA(model, rank=4)
    rng = np.random.default_rng(3)
    adapter.load_state({key: rng.normal(0, 0.1, shape).astype("f4") for key, shape in adapter.shapes().items()})
    path = folder / f"{name}.gguf" if name == "gguf" else folder / name
    (own.FORMAT if name == "own" else FORMATS[name]).save(adapter, path)
    return path, path / FILES[name] if FILES[name] else path


def _state(adapter: Adapter) -> dict[str, list[Any]]:
    return {name: values.tolist() for name, values in adapter.state().items()}


@pytest.mark.parametrize("name", FILES)
def test_every_change_at_every_moment(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path, file = _saved(model, name, tmp_path)
    good = file.read_bytes()
    with changing.changing(monkeypatch, file, None, 0) as views:
        expected = _state(formats.load(model, path))
    count = len(views)
    assert count > 4
    opened = -2 if name == "gguf" else -1  # the first time, only its kind is read
    for at in (opened, 0, 1, count // 2, count - 1):
        for how, change in CHANGES.items():
            file.write_bytes(good)
            with changing.changing(monkeypatch, file, change, at), pytest.raises(FeatherbackError) as raised:
                formats.load(model, path)
            said = str(raised.value)
            assert said.startswith(f"{file} was "), (at, how, said)
            assert (TRUNCATED in said) or (CHANGED in said), (at, how, said)
        for change in UNNOTICED.values():
            file.write_bytes(good)
            with changing.changing(monkeypatch, file, change, at):
                assert _state(formats.load(model, path)) == expected
            file.write_bytes(good)
    assert _state(formats.load(model, path)) == expected  # the model, and the file, are as they were


@pytest.mark.parametrize("how", CHANGES)
def test_the_form_of_an_adapter(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    path, file = _saved(model, "gguf", tmp_path)
    with (
        changing.changing(monkeypatch, file, CHANGES[how], -2),
        pytest.raises(FeatherbackError, match="by another program"),
    ):
        formats.form(model, path)


def test_a_server_answers_others(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a changed adapter does to a server's pages is no matter of its model."""
    path, file = _saved(model, "peft", tmp_path)
    decoder = Decoder(model, capacity=16)
    shelf = Shelf(model, "base", [tmp_path])
    before = decoder.forward([1, 2, 3]).tolist()
    for how in ("truncated to nothing", "a hole", "written again"):
        with changing.changing(monkeypatch, file, CHANGES[how], 3), pytest.raises(FeatherbackError, match="program"):
            shelf.add("notes", str(path))
        _saved(model, "peft", tmp_path)
    assert Decoder(model, capacity=16).forward([1, 2, 3]).tolist() == before
    shelf.add("notes", str(path))
    assert shelf.take("notes") is not None
