"""WordPiece, the tokenizer of BERT: words are cut into the longest pieces of the vocabulary, from the left.

A text is cleaned, written in lower case without accents if the vocabulary is, and cut at spaces and at punctuation.
A word of which some part has no piece is one unknown token.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.data.tokenizers.tokenizer import Ids, Part

LONGEST = 100  # characters of a word that is cut into pieces
_REMEMBERED = 4096  # words whose pieces are remembered
_PLAIN_WORDS = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]")
_OTHER = re.compile(r"[^ -~\t\n\r]")
_TIGHT = (" .", " ?", " !", " ,", " n't", " 'm", " 's", " 've", " 're")
_WIDE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
"""Ranges of characters that are words of their own: Chinese ones."""


class Rules(NamedTuple):
    """What happens to a text before it is cut into words."""

    lower: bool = True
    strips_accents: bool = True
    cleans: bool = True
    cuts_chinese: bool = True


USUAL = Rules()


class _Word(NamedTuple):
    text: str
    places: Sequence[int]  # the character of the text that each character comes from


@dataclass
class WordPieceCore:
    """A tokenizer core. `pieces`: each piece -> its id; those inside a word begin with `inside`."""

    pieces: Mapping[str, int]
    n_vocab: int
    unknown: int
    inside: str = "##"
    rules: Rules = USUAL
    _words: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._spelled: dict[int, str] = {}

    def encode(self, text: str, parts: Sequence[Part], places: bool) -> tuple[Ids, NDArray[np.uint32] | None]:
        ids: list[int] = []
        ranges: list[tuple[int, int]] = []
        for token, start, end in parts:
            if token >= 0:
                ids.append(token)
                ranges.append((start, end))
                continue
            text[start:end].encode()  # half a surrogate pair raises its own error
            for word in self._cut(text[start:end]):
                found = self._pieces_of(word.text)
                for piece, first, last in found:
                    ids.append(piece)
                    if places:
                        ranges.append((start + word.places[first], start + word.places[last - 1] + 1))
        return np.array(ids, np.uint32), np.array(ranges, np.uint32).reshape(-1, 2) if places else None

    def decode(self, ids: Sequence[int]) -> str:
        words = " ".join(self._spelling(i) for i in ids).replace(f" {self.inside}", "")
        for mark in _TIGHT:
            words = words.replace(mark, mark[1:])
        return words

    def token_bytes(self, id: int) -> bytes:
        return self._spelling(id).removeprefix(self.inside).encode()

    def _spelling(self, id: int) -> str:
        if not self._spelled:
            self._spelled = {number: piece for piece, number in self.pieces.items()}
        return self._spelled.get(id, "")

    def _pieces_of(self, word: str) -> list[tuple[int, int, int]]:
        """Return the pieces of a word: (id, first character, the one after the last)."""
        found = self._words.get(word)
        if found is None:
            if len(self._words) >= _REMEMBERED:
                self._words.clear()
            found = self._words[word] = self._longest_pieces(word)
        at, placed = 0, []
        for piece, end in found:
            placed.append((piece, at, end))
            at = end
        return placed

    def _longest_pieces(self, word: str) -> list[tuple[int, int]]:
        if len(word) > LONGEST:
            return [(self.unknown, len(word))]
        at, found = 0, []
        while at < len(word):
            for end in range(len(word), at, -1):
                piece = self.pieces.get((self.inside if at else "") + word[at:end])
                if piece is not None:
                    found.append((piece, end))
                    at = end
                    break
            else:
                return [(self.unknown, len(word))]
        return found

    def _cut(self, text: str) -> Iterator[_Word]:
        """Yield the words of a text, and its marks of punctuation."""
        if not _OTHER.search(text):
            plain = text.lower() if self.rules.lower else text
            for match in _PLAIN_WORDS.finditer(plain):
                yield _Word(match[0], range(match.start(), match.end()))
            return
        word: list[str] = []
        places: list[int] = []
        for char, place in self._normalized(text):
            alone = _is_punctuation(char)
            if (alone or char == " ") and word:
                yield _Word("".join(word), places)
                word, places = [], []
            if alone:
                yield _Word(char, [place])
            elif char != " ":
                word.append(char)
                places.append(place)
        if word:
            yield _Word("".join(word), places)

    def _normalized(self, text: str) -> Iterator[tuple[str, int]]:
        """Yield the characters of the cleaned text, each with the place that it comes from."""
        rules = self.rules
        for place, char in enumerate(text):
            if rules.cleans and (char in "\0�" or _is_control(char)):
                continue
            if char.isspace():
                yield " ", place
                continue
            wide = rules.cuts_chinese and any(first <= ord(char) <= last for first, last in _WIDE)
            if wide:
                yield " ", place
            parts = unicodedata.normalize("NFD", char) if rules.strips_accents else char
            for part in parts:
                if rules.strips_accents and unicodedata.category(part) == "Mn":
                    continue
                for each in part.lower() if rules.lower else part:
                    yield each, place
            if wide:
                yield " ", place


def _is_control(char: str) -> bool:
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf", "Cn", "Co")


def _is_punctuation(char: str) -> bool:
    return bool(33 <= ord(char) <= 126 and not char.isalnum()) or unicodedata.category(char).startswith("P")


def strings(content: Any, at: int, count: int) -> Iterator[str]:
    """Yield strings as GGUF files hold them: 64-bit lengths, each followed by as many bytes."""
    for _ in range(count):
        size = int.from_bytes(bytes(content[at : at + 8]), "little")
        yield bytes(content[at + 8 : at + 8 + size]).decode("utf-8", "replace")
        at += 8 + size
