"""An adapter opened with another base model: the error names its own base model before any shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from featherback import models
from featherback.errors import FeatherbackError
from featherback.exports import FORMATS, formats
from featherback.models.adapter import LoRA
from tests.support.tiny_models import TINY_LLAMA, TINY_QWEN2, tiny, write_tiny


def _saved(name: str, folder: Path, **options: str) -> Path:
    path = folder / (f"{name}.gguf" if name == "gguf" else name)
    mine = models.load(write_tiny(folder / "mine.gguf", TINY_LLAMA))
    FORMATS[name].save(LoRA(mine, 4), path, **options)
    return path


@pytest.mark.parametrize("name", ["peft", "mlx", "gguf"])
@pytest.mark.parametrize("called", [{}, {"base_model": "some/Tiny-Llama"}])
def test_the_error_names_the_model_that_it_was_trained_on(tmp_path: Path, name: str, called: dict[str, str]) -> None:
    path = _saved(name, tmp_path, **called)
    other = models.load(write_tiny(tmp_path / "other.gguf", tiny(TINY_LLAMA, intermediate_size=192)))
    base = called.get("base_model", str(tmp_path)[:40])  # a name may be cut
    for use in (formats.load, formats.form):
        with pytest.raises(FeatherbackError) as refused:
            use(other, path)
        said = str(refused.value)
        assert said.index(base) < said.index(f"does not fit {other.path} (llama, 2 layers of width 96): ")
        assert said.count("not (") <= 1  # one shape, and how many more there are
        assert said.endswith(" more. Name the model that it was trained on.")


def test_a_run_names_its_model(tmp_path: Path) -> None:
    """Before what its adapter's configuration says, which may be a name on the Hub."""
    path = _saved("peft", tmp_path, base_model="some/Tiny-Llama")
    (path / "run.json").write_text('{"configuration": {"model": "/models/tiny-llama.gguf"}}')
    other = models.load(write_tiny(tmp_path / "other.gguf", tiny(TINY_LLAMA, intermediate_size=192)))
    with pytest.raises(FeatherbackError, match=r"was trained on '/models/tiny-llama.gguf' and does not fit"):
        formats.load(other, path)


def test_of_another_architecture(tmp_path: Path) -> None:
    path = _saved("gguf", tmp_path)
    other = models.load(write_tiny(tmp_path / "other.gguf", TINY_QWEN2))
    said = r"was trained on 'mine.gguf' and does not fit .* \(qwen2, .*\): its architecture is 'llama', but the model"
    with pytest.raises(FeatherbackError, match=said):
        formats.load(other, path)


def test_a_damaged_adapter_of_this_very_model_is_not_another_models(tmp_path: Path) -> None:
    path = _saved("peft", tmp_path)
    config = path / "adapter_config.json"
    config.write_text(config.read_text().replace('"r": 4', '"r": 5'))
    with pytest.raises(FeatherbackError, match=r"^The adapter in .* does not fit .*mine.gguf: .*; "):
        formats.load(models.load(tmp_path / "mine.gguf"), path)
