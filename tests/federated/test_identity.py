"""Nodes join with any quantisation of the federation's model, and with no other model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from featherback import models
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.federated.identity import check_same, identity_of
from tests.support.tiny_chat import CHATML, N_VOCAB, byte_level_metadata
from tests.support.tiny_models import TINY_LLAMA, TINY_QWEN3, tiny, write_tiny

SIZES = {"hidden_size": 64, "intermediate_size": 128}


def _model(path: Path, base=TINY_LLAMA, types=TensorType.F32, metadata=(), seed=0, **sizes):  # type: ignore[no-untyped-def]
    config = tiny(base, vocab_size=N_VOCAB, **sizes)
    return models.load(write_tiny(path, config, types, seed, metadata={**byte_level_metadata(), **dict(metadata)}))


def test_another_quantisation_and_fine_tune_may_join(tmp_path: Path) -> None:
    first = _model(tmp_path / "f32.gguf", **SIZES)
    for number, kind in enumerate((TensorType.Q4_0, TensorType.Q8_0), 1):
        check_same(_model(tmp_path / f"{kind.name}.gguf", types=kind, seed=number, **SIZES), identity_of(first))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_hidden_layers": 3}, "num_hidden_layers 3 instead of 2"),
        ({"base": TINY_QWEN3}, "architecture qwen3 instead of llama"),
    ],
)
def test_another_model_is_refused_in_one_sentence(tmp_path: Path, options: dict, message: str) -> None:  # type: ignore[type-arg]
    wanted = identity_of(_model(tmp_path / "first.gguf"))
    with pytest.raises(FeatherbackError, match=message) as caught:
        check_same(_model(tmp_path / "other.gguf", **options), wanted)
    assert str(caught.value).count(". ") == 0
    assert "gguf" not in str(caught.value)


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    wanted = identity_of(_model(tmp_path / "first.gguf"))
    tokens = byte_level_metadata()["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    moved = {"tokenizer.ggml.tokens": [*tokens[1:256], tokens[0], *tokens[256:]]}
    with pytest.raises(FeatherbackError, match="another tokenizer"):
        check_same(_model(tmp_path / "other.gguf", metadata=moved), wanted)
    check_same(_model(tmp_path / "template.gguf", metadata={"tokenizer.chat_template": CHATML + " "}), wanted)


def test_the_identity_is_made_of_json_values(tmp_path: Path) -> None:
    found = identity_of(_model(tmp_path / "first.gguf"))
    assert found["rms_norm_eps"] == float(np.float32(TINY_LLAMA.rms_norm_eps))
    assert all(isinstance(value, (bool, int, float, str, list)) for value in found.values())
