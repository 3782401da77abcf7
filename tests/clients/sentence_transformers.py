"""Sentence Transformers opens a trained encoder, with our vectors, and its losses are ours: `make test-embeddings`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featherback
from featherback import methods
from featherback.data.alike import text_batch
from featherback.data.batch import ANCHOR, POSITIVE
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.methods import cached
from featherback.methods.memory.plan import Plan
from featherback.models import loader
from featherback.nn.objectives.contrastive import Contrastive
from featherback.runs.embedding import Embedder
from tests.support.encoders import tiny_folder, write_pairs

sys.path.insert(0, str(Path("build/sentence-transformers").absolute()))

TEXTS = ["the cat sat on the mat", "a dog", "Ünder the house, and in the tree?"]
PAIRS = [
    ("the cat", "a mat is big"),
    ("a lazy dog ran", "the dog is lazy."),
    ("red house", "the house was red and big"),
]


@pytest.fixture(scope="module")
def library() -> Any:
    import sentence_transformers

    return sentence_transformers


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_it_opens_what_we_export(library: Any, tmp_path: Path, pooling: str) -> None:
    base, pairs = tiny_folder(tmp_path / "base"), write_pairs(tmp_path / "pairs.jsonl", 40)
    common: dict[str, Any] = {"objective": "contrastive", "pooling": pooling, "pairs": 8, "steps": 3, "lr": 1e-2}
    featherback.train(str(base), data=str(pairs), out=str(tmp_path / "run"), **common)
    featherback.export(str(tmp_path / "run"), to="sentence_transformers", out=str(tmp_path / "st"))
    theirs = library.SentenceTransformer(str(tmp_path / "st"), device="cpu").encode(TEXTS)
    model = loader.load(base)
    embedder = Embedder(model, load_tokenizer(base), tmp_path / "run")
    ours = np.stack(list(embedder.embed(("TEXT", text) for text in TEXTS)))
    embedder.close()
    np.testing.assert_allclose(theirs, ours, atol=1e-5)


def test_its_loss_is_ours(library: Any, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "base")
    from sentence_transformers import losses, models

    modules = [models.Transformer(str(folder)), models.Pooling(48, "mean")]
    theirs = library.SentenceTransformer(modules=modules, device="cpu")
    theirs.eval()
    features = [theirs.preprocess([pair[side] for pair in PAIRS]) for side in (0, 1)]
    expected = losses.MultipleNegativesRankingLoss(theirs)(features, None).item()
    model, tokenizer = loader.load(folder), load_tokenizer(folder)

    def ids(text: str) -> np.ndarray:
        return np.array([*tokenizer.encode(text, bos=True), tokenizer.eos_id], np.int32)

    batch = text_batch([[(ANCHOR, ids(one)), (POSITIVE, ids(other))] for one, other in PAIRS])
    plan = Plan.default(model.config, tokens=batch.n_tokens, compute="fp32")
    method = methods.create("mesp", model, None, plan, objective=Contrastive())
    assert cached.loss(method, batch, Contrastive()) / len(PAIRS) == pytest.approx(expected, rel=1e-5)
    method.close()
