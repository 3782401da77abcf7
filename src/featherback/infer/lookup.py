"""Prompt lookup decoding: guess the next tokens from a repetition in the text, and check the guesses in one pass.

An answer often repeats its prompt: a quotation, a corrected text, changed code. If the last tokens occurred before, the
tokens that followed them are guesses of the next ones. The text does not depend on guesses: each token is chosen from
its own logits, and products and attention of up to four rows have the bits of single ones. A wrong guess, and those
after it, are removed from the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from featherback.infer.decoder import Decoder
from featherback.infer.passes import Check, go_on

GUESSES = 3
"""The most tokens that are guessed at a time. With the token before them they are four rows, which share one reading of
the weights and have the bits of single rows."""
LEAST, MOST = 2, 64
"""Tokens that must be a repetition before any are guessed: at first, and after many wrong guesses."""


class Repetition:
    """Finds where the last tokens of a text occurred before. The text takes four bytes per token.

    `length`: how many tokens are known to be a repetition, 0 or at least `LEAST`.
    """

    def __init__(self, text: Sequence[int]) -> None:
        self.length = 0
        self._text = bytearray(np.asarray(text, np.int32).tobytes())
        self._next = 0  # the byte after the earlier occurrence

    def append(self, token: int) -> None:
        """Add a token to the text."""
        added = np.int32(token).tobytes()
        if self.length and self._text.startswith(added, self._next):
            self.length, self._next = self.length + 1, self._next + 4
            self._text += added
            return
        self._text += added
        size = 4 * LEAST
        key = self._text[-size:]
        at = self._text.rfind(key, 0, -1)
        while at > 0 and at % 4:  # it begins inside a token
            at = self._text.rfind(key, 0, at + size - 1)
        self.length, self._next = (LEAST, at + size) if at >= 0 else (0, 0)

    def next(self, count: int) -> list[int]:
        """Return the tokens that followed the earlier occurrence, at most `count`."""
        return np.frombuffer(bytes(self._text[self._next : self._next + 4 * count]), np.int32).tolist()


class Lookup:
    """A decoder whose passes also check guesses. `text`: the tokens in its cache.

    A pass with guesses takes longer than one without. So after a pass whose guesses are all wrong, a repetition must be
    twice as long as before, and after a pass with at most one wrong guess, half as long.
    """

    def __init__(self, decoder: Decoder, text: Sequence[int]) -> None:
        self._decoder = decoder
        self._repetition = Repetition(text)
        self._needed = LEAST
        self._guesses: list[int] = []  # of the last pass
        self._rows = np.empty((0, 0), np.float32)  # (1 + guesses, V), logits of the last pass

    def forward(self, token: int, check: Check = go_on) -> NDArray[np.float32]:
        """Append the next token to the text and return its logits (V,), as `Decoder.forward` does."""
        if not self._decoder.guesses:
            return self._decoder.forward([token], check=check)
        self._repetition.append(token)
        unsure = self._decoder.unsure
        if unsure and self._guesses[-unsure] == token:
            check()
            self._decoder.unsure = unsure - 1
            return self._rows[len(self._guesses) - unsure + 1]
        self._settle()
        guesses = self._guess()
        self._rows = self._decoder.forward([token, *guesses], every=True, check=check)
        self._guesses, self._decoder.unsure = guesses, len(guesses)
        return self._rows[0]

    def _settle(self) -> None:
        """Remove the guesses that were not right from the cache."""
        decoder, wrong = self._decoder, self._decoder.unsure
        if self._guesses and wrong == len(self._guesses):
            self._needed = min(MOST, 2 * self._needed)
        elif self._guesses and wrong <= 1:
            self._needed = max(LEAST, self._needed // 2)
        if wrong:
            decoder.rewind(len(decoder.tokens) - wrong)
        self._guesses = []

    def _guess(self) -> list[int]:
        """Return guesses of the tokens after the next one: none if the repetition is too short to trust it."""
        decoder, past = self._decoder, len(self._decoder.tokens)
        count = min(decoder.guesses, decoder.capacity - past - 1)
        # Not in a pass that computes the whole text again, in more rows.
        if self._repetition.length < self._needed or decoder.stretched(past) != decoder.stretched(past + 1 + count):
            return []
        return self._repetition.next(count)
