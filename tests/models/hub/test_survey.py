"""The list of models on a machine."""

from __future__ import annotations

from pathlib import Path

from featherback.models.hub.survey import listed, survey
from tests.support.tiny_chat import write_tiny_chat


def test_models_of_a_folder_come_first_and_a_damaged_one_has_a_reason(home: Path) -> None:
    folder = home / "work"
    folder.mkdir()
    write_tiny_chat(folder / "tiny.gguf")
    (folder / "broken.gguf").write_bytes(b"GGUF")
    (folder / "notes.txt").write_text("not a model")
    broken, tiny, fetched = survey(folder)
    assert (tiny.name, tiny.trainable, tiny.reason) == ("tiny.gguf", True, None)
    assert tiny.path == str(folder / "tiny.gguf")
    assert broken.name == "broken.gguf"
    assert not broken.trainable
    assert broken.reason
    assert fetched.name == "smollm2-135m"
    assert "featherback fetch" in str(fetched.reason)  # this home has no cache


def test_a_name_that_is_no_model_says_why(home: Path) -> None:
    found = listed(str(home / "missing.gguf"))
    assert not found.trainable
    assert "There is no model" in str(found.reason)
