"""Fixtures shared by all tests."""

import os
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# PyTorch's threads spin while they wait: on a small machine they would starve the kernels under test.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Messages are tested in the words of the command line; tests of Python's words take this away.
os.environ["FEATHERBACK_FACE"] = "flags"

_NUMBERS = count()

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@pytest.fixture(autouse=True)
def remembered_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process remembers what it measures: not in the user's cache, and each test anew."""
    place = tmp_path_factory.getbasetemp() / "remembered" / f"{next(_NUMBERS)}"
    monkeypatch.setattr("featherback.engine.host.remembered.cache_place", lambda: place)
    return place / "measured"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct in Q4_1: $FEATHERBACK_SMOLLM2, else from the cache, fetched at need."""
    if given := os.environ.get("FEATHERBACK_SMOLLM2"):
        return Path(given)
    if os.environ.get("FEATHERBACK_OFFLINE"):
        pytest.skip("FEATHERBACK_OFFLINE is set: no test of the real model")
    from featherback.models.hub.fetch import fetch

    return fetch("smollm2-135m")


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_path: Path) -> "PreTrainedModel":
    """The same model in transformers, float32: the base for `tests.support.oracle.reference`."""
    from tests.support.oracle import reference_model

    return reference_model(smollm2_path)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without stores of models, and no others."""
    from featherback.models.hub.stores import ollama

    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("OLLAMA_MODELS", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FEATHERBACK_CACHE", str(tmp_path / "ours"))
    monkeypatch.setattr(ollama, "_SERVICE", tmp_path / "service")
    return tmp_path
