"""Answers that are JSON, or JSON of a schema: only tokens that a grammar allows are drawn.

llguidance keeps a grammar's state, and says which tokens may follow. It needs the bytes of every token, because a token
may be part of a character.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from featherback.core.sizes import MB
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError
from featherback.infer.sampler import Sampler
from featherback.infer.schema_limits import MOST_BYTES, check_size

if TYPE_CHECKING:
    from llguidance import LLMatcher

_SPACE = r" |\n {0,24}"
"""White space between parts of a JSON text. Any amount would be valid, and a small model might write nothing else."""
_STATES = 10_000  # of the automaton that divides a text into parts: up to 20 MB
_SAID = {
    "recursion limit": "The schema is nested too deeply.",
    "coerce_one_of": "The schema has a oneOf whose choices overlap. Use anyOf.",
    "retriever": 'A $ref of the schema must point into the schema, such as "#/$defs/name".',
}
"""A part of a message of llguidance -> our sentence."""
_LONGEST = 300
"""The most characters of a message of llguidance."""
_IMPORTED, _PER_TOKEN, _PER_BYTE = 8 * MB, 150, 90
"""Bytes for the library, and for each token of the vocabulary and each of its bytes, at most: measured."""


def check_installed() -> None:
    """Raise FeatherbackError if llguidance is not installed."""
    if find_spec("llguidance") is None:
        raise FeatherbackError(
            "JSON mode needs llguidance, which this Python does not have: pip install 'featherback[serve]'."
        )


class Grammars:
    """Makes grammars for a tokenizer. Its tables take up to `nbytes(tokenizer)` and a fraction of a second to make.

    Raises FeatherbackError if llguidance is not installed, or if the tokenizer does not give the bytes of its tokens.
    """

    def __init__(self, tokenizer: Tokenizer, most_bytes: int = MOST_BYTES) -> None:
        """`most_bytes`: of a schema."""
        check_installed()
        from llguidance import LLTokenizer, TokenizerWrapper

        if not tokenizer.end_ids:
            raise FeatherbackError("JSON mode needs a token that ends an answer, and the model's file names none.")
        self._most_bytes = most_bytes
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer)), eos_token=sorted(tokenizer.end_ids))

    @staticmethod
    def nbytes(tokenizer: Tokenizer) -> int:
        """Return an upper bound of the memory of the tables, in bytes."""
        sizes = [len(tokenizer.core.token_bytes(token)) for token in range(tokenizer.n_vocab)]
        return _IMPORTED + _PER_TOKEN * len(sizes) + _PER_BYTE * sum(sizes)

    def json(self, schema: Mapping[str, Any]) -> Grammar:
        """Return the grammar of the JSON texts of a schema, at its start.

        Raises FeatherbackError if the schema is not valid, uses a keyword that llguidance does not support, or is too
        complex, and if no value fits it.
        """
        from llguidance import LLMatcher, LLParserLimits

        check_size(schema, self._most_bytes)
        limits = LLParserLimits(max_lexer_states=_STATES, verbose_errors=False)
        try:
            text = LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults={"whitespace_pattern": _SPACE})
        except ValueError as error:
            raise FeatherbackError(_sentence(error)) from None
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=limits)
        if matcher.is_error():
            raise FeatherbackError(_sentence(matcher.get_error()))
        mask = matcher.compute_bitmask()
        if matcher.is_error() or not any(mask):
            raise FeatherbackError("The schema is too complex, or no value fits it.")
        return Grammar(matcher)


class Grammar:
    """What may follow the tokens of an answer so far."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def copy(self) -> Grammar:
        """Return the same grammar for another answer."""
        return Grammar(self._matcher.deep_copy())

    def allowed(self, count: int) -> NDArray[np.bool_]:
        """Return which of `count` tokens may come next. Raises FeatherbackError if the schema is too complex."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        found = np.zeros(count, np.bool_)
        bits = np.unpackbits(mask, count=min(count, 8 * mask.size), bitorder="little")
        found[: bits.size] = bits
        self._check(bool(found.any()))
        return found

    def take(self, token: int) -> None:
        """Append a token that is allowed."""
        self._check(self._matcher.consume_token(token))

    def _check(self, works: bool) -> None:
        if self._matcher.is_error() or not works:
            raise FeatherbackError("The answer cannot go on: the schema is too complex.")


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
    """Return one sentence about what llguidance says."""
    text = str(said)
    for mark, sentence in _SAID.items():
        if mark in text:
            return sentence
    if text.startswith("regex"):
        text = f"A pattern of the schema is not valid: {text.rpartition('error:')[2]}"
    return f"{' '.join(text.split()).rstrip('.')[:_LONGEST]}."
