"""Answers that are JSON, or JSON of a schema: only tokens that a grammar allows are drawn.

llguidance keeps a grammar's state, and says which tokens may follow. It needs the bytes of every token, because a token
may be part of a character.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from featherback.core.sizes import MB
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError
from featherback.infer.sampler import Sampler

if TYPE_CHECKING:
    from llguidance import LLMatcher

_SPACE = r" |\n {0,24}"
"""White space between parts of a JSON text. Any amount would be valid, and a small model might write nothing else."""
_LONGEST = 300
"""The most characters of a message of llguidance."""
_IMPORTED, _PER_TOKEN, _PER_BYTE = 8 * MB, 150, 90
"""Bytes for the library, and for each token of the vocabulary and each of its bytes, at most: measured."""


class Grammars:
    """Makes grammars for a tokenizer. Its tables take up to `nbytes(tokenizer)` and a fraction of a second to make.

    Raises FeatherbackError if llguidance is not installed, or if the tokenizer does not give the bytes of its tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError:
            raise FeatherbackError(
                "JSON mode needs llguidance, which this Python does not have: pip install 'featherback[serve]'."
            ) from None
        if not tokenizer.end_ids:
            raise FeatherbackError("JSON mode needs a token that ends an answer, and the model's file names none.")
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer)), eos_token=sorted(tokenizer.end_ids))

    @staticmethod
    def nbytes(tokenizer: Tokenizer) -> int:
        """Return an upper bound of the memory of the tables, in bytes."""
        sizes = [len(tokenizer.core.token_bytes(token)) for token in range(tokenizer.n_vocab)]
        return _IMPORTED + _PER_TOKEN * len(sizes) + _PER_BYTE * sum(sizes)

    def json(self, schema: Mapping[str, Any]) -> Grammar:
        """Return the grammar of the JSON texts of a schema, at its start.

        Raises FeatherbackError if the schema is not valid or uses what llguidance does not know.
        """
        from llguidance import LLMatcher

        try:
            text = LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults={"whitespace_pattern": _SPACE})
        except ValueError as error:
            raise FeatherbackError(_sentence(error)) from None
        matcher = LLMatcher(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            raise FeatherbackError(_sentence(matcher.get_error()))
        return Grammar(matcher)


class Grammar:
    """What may follow the tokens of an answer so far."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def allowed(self, count: int) -> NDArray[np.bool_]:
        """Return which of `count` tokens may come next. Raises FeatherbackError if the schema is too complex."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        found = np.zeros(count, np.bool_)
        bits = np.unpackbits(mask, count=min(count, 8 * mask.size), bitorder="little")
        found[: bits.size] = bits
        return found

    def take(self, token: int) -> None:
        """Append a token that is allowed."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise FeatherbackError(f"The answer cannot follow the schema: {_sentence(self._matcher.get_error())}")


@dataclass
class Constrained:
    """A sampler that draws tokens that a grammar allows."""

    sampler: Sampler
    grammar: Grammar

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """Return the next token's id, from logits (vocab,)."""
        token = self.sampler(np.where(self.grammar.allowed(logits.size), logits, -np.float32(np.inf)))
        self.grammar.take(token)
        return token


class _Vocabulary:
    """A tokenizer in the form that llguidance's TokenizerWrapper reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id, self.bos_token_id = min(tokenizer.end_ids), tokenizer.bos_id
        self.tokens = [tokenizer.core.token_bytes(token) for token in range(tokenizer.n_vocab)]
        self.special_token_ids = [*tokenizer.control.values()]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode(errors="replace"), continues=True)


def _sentence(said: object) -> str:
    """Make one line of what llguidance says, without its internal state."""
    words = " ".join(str(said).partition("<")[0].split()).rstrip(".")
    return f"{words[:_LONGEST]}."
