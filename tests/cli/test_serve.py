"""Mistakes in the options of `serve`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.web.serving import write_adapter

MISTAKES = [
    (("--adapter", "{tiny}"), "is a model, not an adapter"),
    (("--adapter", "nowhere"), "There is no adapter"),
    (("--adapter", "{notes}", "--adapter", "{notes}"), "Two adapters are named notes"),
    (("--adapter", "tiny={notes}"), "The base model is named tiny"),
    (("--adapters-folder", "{tiny}"), "there is no such folder"),
    (("--pooling", "men"), "Did you mean `mean`"),
    (("--api-key", " "), "must be text without spaces"),
    (("--temperature", "-1"), "must be at least 0"),
    (("--host", "192.0.2.1"), "This machine has no address 192.0.2.1"),
    (("--memory", "20MB"), "--memory"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES, ids=lambda value: " ".join(value) if type(value) is tuple else "")
def test_mistakes_are_sentences(
    command: Command, chat_model: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    notes = write_adapter(chat_model, tmp_path / "notes", 0)
    given = [word.format(tiny=chat_model, notes=notes) for word in words]
    code, out, err = command("serve", chat_model, "--port", 0, *given)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
