"""The facts that commands print about a model agree with its file."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFReader

from featherback import models
from featherback.models.architecture.config import ModelConfig
from featherback.models.model import parameters
from tests.support.families import MODELS
from tests.support.tiny_models import write_tiny


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_parameters_are_the_elements_of_the_file(config: ModelConfig, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", config)
    stored = [tensor for tensor in GGUFReader(path).tensors if not tensor.name.startswith("rope_")]
    assert parameters(models.load(path)) == sum(int(tensor.n_elements) for tensor in stored)
