"""A trained encoder in a folder for Sentence Transformers, and its adapter in PEFT: the vectors are ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModel

import featherback
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.errors import FeatherbackError
from featherback.models import loader
from featherback.models.pooled import stored_pooling
from featherback.runs.embedding import Embedder
from tests.support.encoders import pooled, tiny_folder, write_pairs

TEXTS = ["the cat sat on the mat", "a dog", "the mat is red and the dog is big " * 3]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trained a tiny encoder with the first token's state."""
    place = tmp_path_factory.mktemp("trained")
    tiny_folder(place / "base")
    write_pairs(place / "pairs.jsonl", 40)
    featherback.train(
        str(place / "base"),
        data=str(place / "pairs.jsonl"),
        out=str(place / "run"),
        objective="contrastive",
        pooling="cls",
        pairs=8,
        steps=4,
        lr=1e-2,
        compute="fp32",
    )
    return place


def vectors(folder: Path, adapter: Path | None = None, **how: Any) -> np.ndarray:
    model = loader.load(folder)
    embedder = Embedder(model, load_tokenizer(folder), adapter, **how)
    found = list(embedder.embed(("TEXT", text) for text in TEXTS))
    embedder.close()
    model.close()
    return np.stack(found)


def in_transformers(model: Any, folder: Path, pooling: str) -> np.ndarray:
    tokenizer = load_tokenizer(folder)
    found = []
    with torch.no_grad():
        for text in TEXTS:
            ids = np.array([*tokenizer.encode(text, bos=True), tokenizer.eos_id])
            found.append(torch.nn.functional.normalize(pooled(model, ids, pooling), dim=0).numpy())
    return np.stack(found)


def test_the_merged_model_gives_the_adapters_vectors(trained: Path) -> None:
    featherback.export(str(trained / "run"), to="sentence_transformers", out=str(trained / "st"))
    mine = vectors(trained / "base", trained / "run")
    np.testing.assert_allclose(vectors(trained / "st"), mine, atol=1e-5)
    merged = AutoModel.from_pretrained(trained / "st", add_pooling_layer=False).eval()
    np.testing.assert_allclose(in_transformers(merged, trained / "st", "cls"), mine, atol=1e-5)
    assert np.abs(vectors(trained / "base", pooling="cls") - mine).max() > 1e-3  # it has learned something


def test_the_folder_says_how_vectors_are_made(trained: Path) -> None:
    out = trained / "said"
    featherback.export(str(trained / "run"), to="sentence_transformers", out=str(out))
    modules = json.loads((out / "modules.json").read_text())
    assert [each["type"].rpartition(".")[2] for each in modules] == ["Transformer", "Pooling", "Normalize"]
    assert all((out / each["path"]).is_dir() for each in modules)
    pooling = json.loads((out / "1_Pooling" / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == 48
    assert [name for name, value in pooling.items() if value is True and name.startswith("pooling")] == [
        "pooling_mode_cls_token"
    ]
    model = loader.load(out)
    assert stored_pooling(model) == "cls"
    model.close()


def test_peft_opens_the_adapter(trained: Path) -> None:
    base = AutoModel.from_pretrained(trained / "base", add_pooling_layer=False)
    adapted = PeftModel.from_pretrained(base, trained / "run").eval()
    np.testing.assert_allclose(
        in_transformers(adapted, trained / "base", "cls"), vectors(trained / "base", trained / "run"), atol=1e-5
    )


def test_an_unsupported_pooling_is_rejected(trained: Path, tmp_path: Path) -> None:
    place = tiny_folder(tmp_path / "max")
    (place / "1_Pooling").mkdir()
    (place / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(FeatherbackError, match="asks for pooling_mode_max_tokens"):
        vectors(place)
