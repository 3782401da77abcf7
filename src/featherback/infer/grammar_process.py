"""Follow JSON schemas in separate, limited processes: `python -m featherback.infer.grammar_process`.

A schema is a program for llguidance, and nothing about its text says how long that program runs or how much memory it
takes, when it is compiled or later, at any token (docs/decisions/serving.md). So each request has a process that begins
with the tables of a vocabulary (`core/system/branches`), and whose CPU time and memory the system limits.
"""

from __future__ import annotations

import marshal
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from featherback.core.messages import receive, send
from featherback.core.system import branches, limits

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

COMPILE_SECONDS, TOKEN_SECONDS = 1.0, 0.5
"""CPU time for a schema, and for each token of its answers."""
SCHEMA, TAKEN, ABOUT = (struct.Struct(form) for form in ("<qI", "<cIi", "<cI"))
"""Memory and number of answers before a schema; a token and its answer; a kind and its answer."""
MASK, FAILED, ENCODE = b"M", b"!", b"E"
"""Kinds: the tokens that may come next, as bits; a message of llguidance; a text of which the token ids are needed."""
TOKEN, IDS = b"T", b"I"
"""Kinds of what comes back: a token of an answer; the token ids of a text."""

_SPACE = r" |\n {0,24}"
"""White space between parts of a JSON text. Any amount would be valid, and a small model might write nothing else."""
_STATES = 10_000  # of the automaton that divides a text into parts
_LONGEST_TEXT = 4096  # bytes of a text whose token ids are needed; only the first id decides


class _Vocabulary:
    """A vocabulary in the form that llguidance's TokenizerWrapper reads."""

    def __init__(
        self, tokens: list[bytes], end_ids: list[int], bos_id: int | None, special_token_ids: list[int]
    ) -> None:
        self.tokens, self.end_ids, self.special_token_ids = tokens, end_ids, special_token_ids
        self.eos_token_id, self.bos_token_id = end_ids[0], bos_id
        self.encode: Callable[[bytes], list[int]] = lambda text: []

    def __call__(self, text: bytes) -> list[int]:
        return self.encode(text)


Prepared = tuple["LLTokenizer", _Vocabulary]


def _prepare(words: bytes) -> Prepared:
    """Return the tables of a vocabulary."""
    vocabulary = _Vocabulary(*marshal.loads(words))
    from llguidance import LLTokenizer, TokenizerWrapper

    tables = LLTokenizer(TokenizerWrapper(vocabulary), eos_token=vocabulary.end_ids)
    vocabulary.tokens.clear()
    return tables, vocabulary


def _follow(stream: socket.socket, prepared: Prepared, used: int | None) -> None:
    """Follow one schema until the other side has gone. `used`: bytes of memory before that."""
    tables, vocabulary = prepared
    request, taken = receive(stream), deque[bytes]()
    memory, count = SCHEMA.unpack_from(request)
    if used is not None:
        limits.limit_memory(used + memory)

    def encode(text: bytes) -> list[int]:
        send(stream, ABOUT.pack(ENCODE, 0), text[:_LONGEST_TEXT])
        while not (reply := receive(stream)).startswith(IDS):
            taken.append(reply)
        return [*marshal.loads(reply[1:]), *tables.greedy_tokenize(text[_LONGEST_TEXT:].decode(errors="replace"))]

    vocabulary.encode = encode
    try:
        limits.limit_time(COMPILE_SECONDS)
        matcher = _compiled(tables, request[SCHEMA.size :].decode())
        mask = matcher.compute_bitmask()
        matchers = [matcher, *(matcher.deep_copy() for _ in range(1, count))]
        _answer(stream, 0, matcher, mask)
        while True:
            limits.limit_time(0)
            _, number, token = TAKEN.unpack(taken.popleft() if taken else receive(stream))
            limits.limit_time(TOKEN_SECONDS)
            matcher = matchers[number]
            mask = matcher.compute_bitmask() if matcher.consume_token(token) else b""
            _answer(stream, number, matcher, mask)
    except MemoryError:
        os.abort()
    except ValueError as error:
        send(stream, ABOUT.pack(FAILED, 0), str(error).encode())


def _compiled(tables: LLTokenizer, schema: str) -> LLMatcher:
    """Return the matcher of a schema, at the start of an answer. Raises ValueError."""
    from llguidance import LLMatcher, LLParserLimits

    text = LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": _SPACE})
    most = LLParserLimits(max_lexer_states=_STATES, verbose_errors=False)
    matcher = LLMatcher(tables, text, log_level=0, limits=most)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


def _answer(stream: socket.socket, number: int, matcher: LLMatcher, mask: bytes) -> None:
    """Send the tokens that may come next in an answer, or why none may."""
    if matcher.is_error() or not any(mask):
        send(stream, ABOUT.pack(FAILED, number), b"The schema is too complex, or no value fits it")
    else:
        send(stream, ABOUT.pack(MASK, number), mask)


if __name__ == "__main__":
    branches.serve("schema", _prepare, _follow)
