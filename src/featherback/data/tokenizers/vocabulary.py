"""Compare the vocabularies of two models, token by token."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from featherback.data.tokenizers.folder import check_present
from featherback.data.tokenizers.gguf import TOKENS
from featherback.data.tokenizers.json import read_tokenizer
from featherback.engine.formats.split import open_gguf
from featherback.errors import FeatherbackError


def check_same_vocabulary(student: str | os.PathLike[str], teacher: str | os.PathLike[str]) -> None:
    """Raise FeatherbackError, with the first difference, unless equal ids are equal tokens in both models.

    One vocabulary may be longer, because larger models of a family pad theirs. Two models without any vocabulary pass:
    their data are token ids.
    """
    paths = student, teacher = Path(student), Path(teacher)
    if not any(map(_has_vocabulary, paths)):
        return
    for number, (mine, other) in enumerate(zip(*map(_spelled, paths))):
        if mine != other:
            raise FeatherbackError(
                f"The teacher must have the same tokenizer as the student, but token {number} is {_shown(mine)} in "
                f"{student} and {_shown(other)} in {teacher}. Use a teacher of the same family."
            )


def _has_vocabulary(path: Path) -> bool:
    if path.is_dir():
        return (path / "tokenizer.json").is_file()
    file = open_gguf(path)
    try:
        return TOKENS in file.arrays
    finally:
        file.close()


def _spelled(path: Path) -> Iterator[bytes]:
    """Yield the tokens of a model as its vocabulary spells them, by id."""
    if path.is_dir():
        file = read_tokenizer(check_present(path))
        for token in file.added:
            file.vocabulary.add(token.id, token.content)
        content = file.vocabulary.tokens
        yield from _strings(content, 0, file.vocabulary.size)
        return
    gguf = open_gguf(path)
    try:
        if TOKENS not in gguf.arrays:
            raise FeatherbackError(f"{path} contains no vocabulary, so it cannot be compared with the other model's.")
        found = gguf.arrays[TOKENS]
        yield from _strings(gguf.bytes, found.offset, found.count)
        gguf.drop_header()
    finally:
        gguf.close()


def _strings(content: Any, at: int, count: int) -> Iterator[bytes]:
    """Yield strings as GGUF files hold them: 64-bit lengths, each followed by as many bytes."""
    for _ in range(count):
        size = int.from_bytes(bytes(content[at : at + 8]), "little")
        yield bytes(content[at + 8 : at + 8 + size])
        at += 8 + size


def _shown(token: bytes) -> str:
    return repr(token.decode("utf-8", "replace"))
